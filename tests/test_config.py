"""The configuration refuses what it does not know, and says what would be valid."""

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from harness.config import (
    SCHEMA,
    ConfigError,
    dump,
    load_config,
    local_source,
    profile_names,
    schema_text,
    temperature_label,
)
from harness.prompt_sections import TRAINING_SOURCES
from harness.sections import TargetConfig
from harness.settings import method_names

PROFILES = ["laptop", "paper", "plateau", "pocket", "reference", "smoke"]


def message(overrides: dict, profile: str = "pocket") -> str:
    with pytest.raises(ConfigError) as caught:
        load_config(profile, overrides, check=False)
    return str(caught.value)


def test_committed_schema_is_the_generated_one():
    assert SCHEMA.read_text() == schema_text(), "run python -m harness.config --write-schema"


def test_shipped_profiles_are_these_and_all_load():
    assert profile_names() == PROFILES
    for name in PROFILES:
        assert load_config(name, check=False).profile == name


@pytest.mark.parametrize("name", PROFILES)
def test_resolved_configuration_reads_back_unchanged(name, tmp_path):
    config = load_config(name, check=False)
    path = tmp_path / "resolved.yaml"
    path.write_text(dump(config))
    again = load_config(path, check=False)
    assert again == config
    assert list(again.suites) == list(config.suites), "tables show the suites in the order of the profile"


def test_no_two_profiles_write_to_the_same_place():
    configs = [load_config(name, check=False) for name in PROFILES]
    for folder in ("output_dir", "figures_dir", "work_dir"):
        assert len({getattr(config, folder) for config in configs}) == len(PROFILES)


@pytest.mark.parametrize(
    ("overrides", "place", "meant", "also_valid"),
    [
        ({"tragets": {}}, "the top level", "targets", "suites"),
        ({"train": {"stpes": 3}}, "train", "steps", "learning_rate"),
        ({"targets": {"pocket": {"dtyp": "float32"}}}, "targets.pocket", "dtype", "source"),
        ({"suites": {"pocket_word": {"promts": 3}}}, "suites.pocket_word", "prompts", "max_new_tokens"),
        ({"drafter": {"blocksize": 3}}, "drafter", "block_size", "alignment"),
    ],
)
def test_misspelt_key_is_an_error_with_its_place_the_key_meant_and_the_valid_ones(overrides, place, meant, also_valid):
    text = message(overrides)
    assert f"in {place}" in text and f"did you mean {meant!r}" in text
    listed = text.split("valid keys: ")[1].split(", ")
    assert meant in listed and also_valid in listed


def test_every_mistake_is_reported_at_once():
    text = message({"train": {"stpes": 3}, "timing": {"repeats": 0}})
    assert "stpes" in text and "timing.repeats" in text


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (
            {"methods": ["ar", "dflahs"]},
            ["dflahs", "did you mean 'dflash'", f"valid methods: {', '.join(method_names())}"],
        ),
        ({"methods": []}, ["methods", "empty"]),
        ({"seeds": [0, 0]}, ["seeds", "twice"]),
        ({"temperatures": [-1]}, ["temperatures", "below 0"]),
        ({"temperatures": [0.1234567]}, ["temperatures", "0.1234567", "write 0.123457"]),
        ({"seeds": [2**70]}, ["seeds", "less than"]),
        ({"trajectories": {"max_new_tokens": 1}}, ["trajectories.max_new_tokens", "greater than 1"]),
        ({"targets": {"pocket": {"dtype": "float8"}}}, ["targets.pocket.dtype", "float8", "bfloat16"]),
        ({"suites": {"pocket_word": {"source": "gms8k"}}}, ["suites.pocket_word.source", "gms8k", "gsm8k"]),
        ({"trajectories": {"source": "pokcet"}}, ["trajectories.source", "'pokcet'", "'pocket'", "gsm8k", ".jsonl"]),
        ({"trajectories": {"sources": {"mpbb": 3}}}, ["trajectories.sources", "'mpbb'", "'mbpp'", ".jsonl"]),
        ({"trajectories": {"sources": {"gsm8k": 3}}}, ["source is 'pocket', prompts 4000", "'gsm8k': 3", "to null"]),
        ({"trajectories": {"source": None}}, ["source is None", "prompts 4000", "source and prompts, or sources"]),
        ({"drafter": {"block_size": 8, "num_proposals": 8}}, ["num_proposals is 8", "at most 7"]),
        ({"train": {"walk_prompts": 99}}, ["walk_prompts is 99", "heldout_prompts"]),
        ({"train": {"learning_rate": float("nan")}}, ["train.learning_rate", "nan"]),
        ({"suites": {"a/b": {"source": "gsm8k", "prompts": 1, "max_new_tokens": 1}}}, ["a/b"]),
        ({"suites": {"avg": {"source": "gsm8k", "prompts": 1, "max_new_tokens": 1}}}, ["avg", "average"]),
    ],
)
def test_value_out_of_bounds_is_an_error_that_names_place_and_value(overrides, words):
    text = message(overrides)
    assert all(word in text for word in words), text


def test_unknown_profile_is_an_error_that_lists_the_profiles():
    with pytest.raises(ConfigError, match="did you mean 'smoke'.*laptop, paper, plateau, pocket, reference, smoke"):
        load_config("smokey")


def test_file_of_ones_own_builds_on_a_profile(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump({"extends": "smoke", "profile": "mine", "train": {"steps": 7}}))
    config, smoke = load_config(path, check=False), load_config("smoke", check=False)
    assert config.train.steps == 7 and config.train.eval_every == smoke.train.eval_every
    assert config.output_dir == "results/mine" and config.work_dir == "work/mine"


def test_profile_that_extends_itself_is_refused(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump({"extends": str(path), "profile": "mine"}))
    with pytest.raises(ConfigError, match="extends itself"):
        load_config(path)


def test_null_removes_an_entry_and_only_that_one():
    config = load_config("pocket", {"suites": {"pocket_chat": None}}, check=False)
    assert sorted(config.suites) == ["pocket_algebra", "pocket_complete", "pocket_synth", "pocket_word"]


def test_text_from_a_command_line_becomes_numbers_and_nulls():
    spelt = {"train": {"steps": "12"}, "drafter": {"taps": "null"}, "temperatures": ["0", "1"]}
    plain = {"train": {"steps": 12}, "drafter": {"taps": None}, "temperatures": [0.0, 1.0]}
    assert load_config("pocket", spelt, check=False) == load_config("pocket", plain, check=False)


@pytest.mark.parametrize("source", ["./nowhere", "/nowhere", "a/b/c", "model.gguf", "~/nowhere"])
def test_path_that_is_not_there_is_an_error_before_anything_runs(source):
    with pytest.raises(ConfigError, match="no such file or folder"):
        load_config("laptop", {"targets": {"model": {"source": source}}})


def test_hub_id_is_left_for_the_hub():
    assert local_source(TargetConfig(source="someone/some-model")) is None


def test_prompt_file_that_is_not_there_is_an_error_before_anything_runs(tmp_path, monkeypatch):
    with pytest.raises(ConfigError, match=r"trajectories.source is 'no/such.jsonl': no such file"):
        load_config("pocket", {"trajectories": {"source": "no/such.jsonl"}})
    (tmp_path / "mine.jsonl").write_text('{"prompt": "x"}\n')
    monkeypatch.chdir(tmp_path)
    assert load_config("pocket", {"trajectories": {"source": "mine.jsonl"}}).trajectories.source == "mine.jsonl"


def test_training_sources_are_those_that_can_be_loaded():
    from harness.data import DataError, training_tasks

    for source in TRAINING_SOURCES:
        if source.startswith("pocket"):  # the others need their files
            assert len(training_tasks(source, 5, 0)) == 5
    with pytest.raises(DataError) as caught:
        training_tasks("pokcet", 5, 0)
    assert set(str(caught.value).split("valid: ")[1].split(", ")) == set(TRAINING_SOURCES)


def test_code_is_run_in_the_pocket_world_and_elsewhere_on_request():
    assert {name: load_config(name, check=False).run_code for name in profile_names()} == {
        **dict.fromkeys(["pocket", "smoke", "plateau", "reference"], True), "laptop": False, "paper": False
    }  # fmt: skip
    assert load_config("laptop", {"run_code": "true"}, check=False).run_code


def test_missing_data_folder_is_an_error(tmp_path, monkeypatch):
    monkeypatch.delenv("HARNESS_DATA_DIR", raising=False)
    with pytest.raises(ConfigError, match="no such folder"):
        load_config("laptop", {"data_dir": str(tmp_path / "nowhere")})
    monkeypatch.setenv("HARNESS_DATA_DIR", str(tmp_path))
    assert load_config("laptop").data_root == tmp_path


def test_temperature_reads_the_same_in_every_file_name():
    assert [temperature_label(value) for value in (0, 0.0, 1, 0.7)] == ["0", "0", "1", "0.7"]


def test_suite_sources_are_those_that_can_be_loaded():
    from typing import get_args

    from harness.data.suites import SOURCES
    from harness.prompt_sections import SuiteSource

    assert set(get_args(SuiteSource)) == set(SOURCES)


def test_every_method_has_its_card():
    cards = Path(__file__).parent.parent / "methods"
    assert [name for name in method_names() if not (cards / name / "README.md").is_file()] == []


def test_configuration_and_plan_import_neither_torch_nor_snakemake():
    code = "import sys, harness.config, harness.plan; print([m for m in ('torch', 'snakemake') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_unknown_target_is_an_error_that_names_the_nearest_and_lists_all():
    config = load_config("pocket", check=False)
    assert config.target("pocket") is config.targets["pocket"]
    with pytest.raises(ConfigError, match=r"no target 'poket' .did you mean 'pocket'\?.; the configuration has pocket"):
        config.target("poket")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("extends: smoke\n", "has no name"),
        ("profile: mine\nextends: [smoke]\n", "extends is"),
        ("profile: mine\nextends: smoke\ntrain: {steps: 7, steps: 8}\n", "'steps' is given twice"),
        ("- a\n", "holds no mapping"),
        ("profile: [\n", "is not YAML"),
    ],
)
def test_a_file_that_cannot_be_a_profile_is_refused_by_its_path(tmp_path, text, words):
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=words) as found:
        load_config(path)
    assert str(path) in str(found.value)


def test_a_profile_finds_its_base_beside_itself(tmp_path):
    (tmp_path / "base.yaml").write_text("extends: smoke\nprofile: base\ntrain: {steps: 7}\n")
    (tmp_path / "mine.yaml").write_text("extends: base.yaml\nprofile: mine\n")
    config = load_config(tmp_path / "mine.yaml")
    assert config.train.steps == 7 and config.output_dir == "results/mine"
