"""A suite into records: what is taken up again after an interruption and what is not, and what a record says made it.

pytest tests/test_run_suite.py
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from harness import run_suite as stage
from harness.config import ConfigError, dump, load_config
from harness.data import TaskError, first_messages, next_turn, suite_prompts
from harness.decode import Decoder
from harness.provenance import origin_path
from harness.records import read_records
from harness.run_suite import run_suite
from harness.target import Target
from tests.test_parity import arm_of
from tests.tiny import TEMPLATE, byte_tokenizer, tiny_model, tiny_target

THINKING = TEMPLATE.replace(
    "<|assistant|>{% endif %}", "<|assistant|>{% if enable_thinking %}THINK:{% endif %}{% endif %}"
)
OTHERS = {
    "thinking": dict(thinking=True),
    "template": dict(template=TEMPLATE.replace("<|end|>", "<|end|>\n")),
    "dtype": dict(dtype=torch.float64),
}


def target_of(thinking=False, dtype=torch.float32, template=THINKING, context=2048) -> Target:
    target = Target(tiny_model("llama").to(dtype), byte_tokenizer(template), "pocket", thinking=thinking)
    target.max_positions = context
    return target


def config_of(folder: Path, **decode):
    suites = {
        "pocket_word": {"prompts": 3, "max_new_tokens": 6, "scored": False},
        "pocket_chat": {"prompts": 2, "max_new_tokens": 6, "scored": False},
    }
    return load_config("smoke", {"work_dir": str(folder), "suites": suites, "decode": decode}, check=False)


def go(config, target, suite="pocket_chat", method="ar", temperature=0.0):
    return run_suite(config, target, "pocket", method, suite, temperature, 0, None)


def untimed(records):
    return [{name: value for name, value in record.items() if name != "seconds"} for record in records]


def partial_files(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.jsonl"))


@pytest.fixture
def asked(monkeypatch) -> list[tuple[str, int]]:
    """(id, turn) of every prompt that is really decoded."""
    found: list[tuple[str, int]] = []
    run = Decoder.run

    def spy(self, prompts):
        found.extend((prompt.id, prompt.turn) for prompt in prompts)
        return run(self, prompts)

    monkeypatch.setattr(Decoder, "run", spy)
    return found


@pytest.mark.parametrize("kept", [0, 1, 3])
def test_an_interrupted_run_decodes_what_is_missing_and_nothing_else(tmp_path, asked, kept):
    config, target = config_of(tmp_path), target_of()
    whole = go(config, target)
    names = [(record["prompt_id"], record["turn"]) for record in whole]
    assert sorted(names) == sorted(asked) and len(names) == 4
    (path,) = partial_files(tmp_path)
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:kept]) + lines[kept][:30])
    left = {(record["prompt_id"], record["turn"]) for record in map(json.loads, lines[:kept])}
    asked.clear()
    assert untimed(go(config, target)) == untimed(whole)
    assert set(asked) == set(names) - left and len(asked) == len(set(asked))
    asked.clear()
    assert go(config, target) == go(config, target) and asked == [], "a finished run decodes nothing"


@pytest.mark.parametrize("other", OTHERS)
def test_finished_lines_of_another_setting_are_not_taken(tmp_path, asked, other):
    config = config_of(tmp_path)
    go(config, target_of(), "pocket_word")
    first = list(asked)
    asked.clear()
    got = go(config, target_of(**OTHERS[other]), "pocket_word")
    assert asked == first and len(partial_files(tmp_path)) == 2
    assert untimed(got) == untimed(go(config_of(tmp_path / "new"), target_of(**OTHERS[other]), "pocket_word"))


def test_a_finished_line_of_another_prompt_is_not_taken(tmp_path, asked):
    config, target = config_of(tmp_path), target_of()
    whole = go(config, target, "pocket_word")
    (path,) = partial_files(tmp_path)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    lines[1] |= {"prompt_sha": "0" * 16, "text": "an answer to something else"}
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    asked.clear()
    assert untimed(go(config, target, "pocket_word")) == untimed(whole)
    assert asked == [(lines[1]["prompt_id"], 0)]


def test_a_dialogue_that_cannot_be_ended_is_refused_before_anything_is_decoded(tmp_path, asked):
    config, target = config_of(tmp_path), target_of()
    tasks = suite_prompts("pocket_chat", config.suites["pocket_chat"], config.data_root)
    answer = {"role": "assistant", "content": ""}
    questions = [len(target.render(next_turn(task, [*first_messages(task), answer]))) for task in tasks]
    with pytest.raises(TaskError, match="2 answers .* lower max_new_tokens"):
        go(config, target_of(context=max(questions) + 2 * 6 - 1))
    with pytest.raises(TaskError, match="no chat template"):
        go(config, tiny_target("llama", template=None))
    assert asked == []


def test_records_name_the_accept_rule_the_proposals_and_the_stops(tmp_path, monkeypatch):
    target, wanted = target_of(dtype=torch.float64), []

    def arm(*_):
        def build(rows, capacity):
            runner = arm_of(target)(rows, capacity)
            propose = runner.propose
            runner.propose = lambda rows, sampling=None: (wanted.append(sampling), propose(rows, sampling))[1]
            return runner

        return build

    monkeypatch.setattr(stage, "load_arm", arm)
    config = config_of(tmp_path, accept="rejection", proposals="sampled")
    for temperature, accept, proposals in ((0.0, "exact", "greedy"), (1.0, "rejection", "sampled")):
        wanted.clear()
        records = go(config, target, "pocket_word", "dflash", temperature)
        assert {(r["accept"], r["proposals"], r["temperature"]) for r in records} == {(accept, proposals, temperature)}
        assert all(r["stop_ids"] == list(target.stop_ids) and r["stop_strings"] == [] for r in records)
        assert wanted and all((sampling is not None) == (proposals == "sampled") for sampling in wanted)


def test_code_is_run_where_the_configuration_says_so_and_nowhere_else(tmp_path, monkeypatch):
    ran = []
    monkeypatch.setattr("harness.pocket.grade.extract", lambda reference, text: text)
    monkeypatch.setattr("harness.pocket.grade.run_code", lambda *code: ran.append(code) or True)
    monkeypatch.setattr(stage, "self_test", lambda tasks, limits: asked.append(limits.run_code))
    asked, target = [], target_of()
    suite = {"source": "pocket", "prompts": 2, "max_new_tokens": 6}
    for run_code, verdict in ((False, "not_run"), (True, "right")):
        config = load_config(
            "smoke", {"work_dir": str(tmp_path), "suites": {"pocket_synth": suite}, "run_code": run_code}, check=False
        )
        assert {(r["verdict"], r["score"] is None) for r in go(config, target, "pocket_synth")} == {
            (verdict, not run_code)
        }
        assert len(ran) == 2 * run_code
    assert asked == [False, True] and len(partial_files(tmp_path)) == 2


def test_the_file_of_records_has_its_origin_beside_it(tmp_path, monkeypatch):
    target, settings, out = target_of(), tmp_path / "config.yaml", tmp_path / "out"
    records = out / "pocket_word-T0-seed0.jsonl"
    settings.write_text(dump(config_of(tmp_path)))
    monkeypatch.setattr(Target, "load", lambda *_: target)
    words = ["--config", str(settings), "--target", "pocket", "--method", "ar", "--suites", "pocket_word"]
    stage.main([*words, "--temperature", "0", "--out", str(out)])
    made_by = json.loads(origin_path(records).read_text())
    assert (made_by["target_fingerprint"], made_by["dtype"]) == (target.fingerprint, "float32")
    assert len(read_records(records)) == 3
    with pytest.raises(SystemExit) as ended:
        stage.main([*words, "--temperature", "0", "--out", str(out), "--drafter", str(tmp_path / "none")])
    assert ended.value.code == 2


def test_settings_that_do_not_go_together_or_do_not_exist_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="accept: rejection"):
        config_of(tmp_path, proposals="sampled")
    with pytest.raises(ConfigError, match="pocket_wrod.*pocket_word"):
        go(config_of(tmp_path), target_of(), "pocket_wrod")
