"""Can it run here: what `python -m harness.preflight` asks, finds and says."""

import sys
from types import SimpleNamespace

import pytest
import torch
import yaml

from harness import preflight, readiness
from harness.budget import Cost, Speed
from harness.config import load_config
from harness.readiness import Finding


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(readiness, "measure_speed", lambda device, dtype: Speed(1e11, 1e10, 1e-6))


def run(capsys, *arguments):
    """Exit code, standard output, standard error."""
    try:
        preflight.main([*arguments])
        code = 0
    except SystemExit as ended:
        code = ended.code
    said = capsys.readouterr()
    return code, said.out, said.err


def profile(tmp_path, **over):
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump({"extends": "laptop", "profile": "mine", "output_dir": str(tmp_path / "o"), **over}))
    return str(path)


def test_the_default_profile_can_run_anywhere(capsys):
    code, out, err = run(capsys, "--config", "pocket")
    assert code == 0 and err == ""
    assert "fault" not in out and "ok     model of pocket" in out and "suite pocket_chat" in out
    assert "train         pocket dflow " in out and "one job at a time" in out and "Arithmetic takes" in out


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_the_paper_profile_without_a_gpu_ends_with_one_line(capsys):
    code, out, err = run(capsys, "--config", "paper")
    assert (code, out) == (2, "") and err.count("\n") == 1
    assert err.startswith("paper cannot run here: target qwen3-1.7b: device 'cuda' cannot be used")
    assert err.endswith("(and 2 more targets)\n")


def test_what_is_missing_is_said_together_and_the_estimate_still_stands(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(readiness, "ask_hub", lambda source, revision: "")
    folder = tmp_path / "data"
    folder.mkdir()
    code, out, err = run(capsys, "--config", profile(tmp_path, data_dir=str(folder)))
    assert code == 2 and "ok     model of model" in out and "train         model dflash" in out
    assert "suite gsm8k: data file" in err and "training prompts of gsm8k: data file" in err


def test_a_silent_hub_is_asked_once(tmp_path, capsys, monkeypatch):
    monkeypatch.delenv("HARNESS_DATA_DIR", raising=False)
    monkeypatch.setattr(readiness, "ask_hub", lambda source, revision: f"{readiness.SILENCE} about {source}")
    monkeypatch.setattr(readiness, "suite_prompts", lambda *_: pytest.fail("asked again"))
    code, _, err = run(capsys, "--config", profile(tmp_path))
    assert code == 2 and err.count(readiness.SILENCE) == 4


@pytest.mark.parametrize(
    ("error", "words"),
    [
        ("GatedRepoError", "licence that is not accepted"),
        ("RepositoryNotFoundError", "the hub knows no model some/model"),
        ("ConnectionError", "the hub does not answer about some/model"),
    ],
)
def test_what_a_hub_answers_becomes_a_mend(monkeypatch, error, words):
    from huggingface_hub import errors

    kind = getattr(errors, error, None) or ConnectionError
    fault = kind.__new__(kind)
    fault.args = ("no",)

    class Api:
        def repo_info(self, *_, **__):
            raise fault

        def auth_check(self, *_, **__):
            raise fault

    def absent(*_, **__):
        raise errors.LocalEntryNotFoundError("not cached")

    client = SimpleNamespace(HfApi=Api, snapshot_download=absent, errors=errors)
    monkeypatch.setitem(sys.modules, "huggingface_hub", client)
    assert words in readiness.ask_hub("some/model", None)


def test_a_model_in_the_cache_needs_no_hub(monkeypatch):
    from huggingface_hub import errors

    client = SimpleNamespace(HfApi=lambda: pytest.fail("asked"), snapshot_download=lambda *_, **__: "x", errors=errors)
    monkeypatch.setitem(sys.modules, "huggingface_hub", client)
    assert readiness.ask_hub("some/model", None) == ""


def test_too_little_memory_and_disk_are_faults():
    small, large = Cost("decode", "t ar", 1, 1.0, 0.001, 0.001), Cost("train", "t dflow", 1, 1.0, 1e6, 1e9)
    config = load_config("pocket")
    device = torch.device("cpu")
    assert readiness.memory([small], device).fault == readiness.disk(config, [small]).fault == ""
    assert "train t dflow needs about 1000000 GB" in readiness.memory([small, large], device).fault
    assert "make room or set output_dir" in readiness.disk(config, [small, large]).fault


def test_a_mistake_in_the_configuration_comes_first(tmp_path, capsys):
    code, out, err = run(capsys, "--config", profile(tmp_path, stepps=3))
    assert (code, out) == (2, "") and "unknown key 'stepps'" in err


def test_a_target_of_unknown_dimensions_is_left_out_of_the_estimate(tmp_path):
    config = load_config(profile(tmp_path, targets={"model": {"source": str(tmp_path)}}), check=False)
    assert readiness.budget(config) == [] and "no estimate" in readiness.table([])
    assert readiness.room(config, []) == [] and Finding("a", "b").fault == ""
