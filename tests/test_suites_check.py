"""The check of suites and graders passes where all is sound and says what is not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from harness import suites
from harness.data import files, mbpp
from harness.score import grade as grading
from harness.score.hostile import HOSTILE, Hostile
from tests.data_folder import CONTENTS, pinned_folder

COUNTS = {"gsm8k": 30, "humaneval": 9, "math500": 12, "mbpp": 14, "mt_bench": 8, "alpaca": 6}
TRAINED = {"gsm8k": 37, "mbpp": 17, "instructions": 15}
HELD = [one for one in HOSTILE if one.name == "exits with status 0"]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    folder = pinned_folder(tmp_path, monkeypatch)
    for name, source in list(files.SOURCES.items()):
        rows = files.rows_digest(files.load_rows(name, folder), source.fields)
        monkeypatch.setitem(files.SOURCES, name, replace(files.SOURCES[name], rows_sha256=rows))
    return folder


def failing(folder, counts=None, hostile=(), training=None) -> dict[str, suites.Result]:
    found = suites.checks(folder, counts or {"mt_bench": 8}, training or {}, hostile)
    return {result.name: result for result in found if not result.ok}


def test_a_sound_folder_passes(folder):
    results = list(suites.checks(folder, COUNTS, TRAINED, HELD))
    assert [line for result in results if not result.ok for line in result.lines()] == []
    found = {result.name: (result.right, result.of) for result in results}
    assert found["suite mt_bench"] == (8, 8) and found["training prompts mbpp"] == (17, 17)
    assert found["mbpp: reference solutions right"] == (14, 14)
    assert found["mbpp, all splits: reference solutions right"] == (19, 19) == (len(CONTENTS["mbpp/sanitized"]),) * 2
    assert found["math500: answers to other problems wrong"] == (12, 12)
    assert found["training and evaluation apart"] == (18, 18) and found["hostile programs held"] == (1, 1)


def test_a_changed_a_missing_and_a_short_file_are_named(folder, monkeypatch):
    path = folder / "mt_bench/question.jsonl"
    whole = path.read_text()
    path.write_text(whole.replace("turn 1", "turn 9"))
    found = failing(folder)
    assert "sha256" in found["file mt_bench/question.jsonl"].faults[0] and "suite mt_bench" in found
    path.unlink()
    assert "is missing" in failing(folder)["suite mt_bench"].faults[0]
    path.write_text(whole)
    found = failing(folder, {"mt_bench": 80})
    assert (found["suite mt_bench"].right, found["suite mt_bench"].of) == (8, 80)
    pinned = files.SOURCES["mt_bench/test"]
    monkeypatch.setitem(files.SOURCES, "mt_bench/test", replace(pinned, rows_sha256="0" * 64))
    assert "another digest" in failing(folder)["file mt_bench/question.jsonl"].faults[0]


def test_what_a_licence_keeps_back_may_be_absent(folder):
    (folder / "alpaca/question.jsonl").unlink()
    assert failing(folder, {"alpaca": 6}) == {}


def test_a_training_prompt_that_is_evaluated_is_named(folder, monkeypatch):
    monkeypatch.setitem(mbpp.SPLITS, "train", range(11, 13))
    found = failing(folder, {"mbpp": 14}, (), {"mbpp": 2})
    assert "mbpp/train/0011 = mbpp/test/0011" in found["training and evaluation apart"].faults[0]


def test_a_grader_that_likes_everything_and_one_that_likes_nothing_fail(folder, monkeypatch):
    for word, check in (("right", "broken answers wrong"), ("wrong", "gold answers right")):
        monkeypatch.setattr(grading, "latex_verdict", lambda text, gold, word=word: word)
        assert failing(folder, {"math500": 12})[f"math500: {check}"].right == 0


def test_a_reference_solution_that_fails_is_named(folder, monkeypatch):
    genuine = mbpp.reference
    wrong = {"Write a function to add 12.": "def add_12(x):\n    return 0"}
    monkeypatch.setattr(mbpp, "reference", lambda row: genuine(row | {"code": wrong.get(row["prompt"], row["code"])}))
    found = failing(folder, {"mbpp": 14})
    for name, of in (("mbpp", 14), ("mbpp, all splits", 19)):
        result = found[f"{name}: reference solutions right"]
        assert (result.right, result.of) == (of - 1, of) and result.faults[0].startswith("mbpp/test/0012: score 0.0")


def test_a_program_that_is_not_held_is_named(folder):
    escaped = Hostile("is harmless", "", "failed")
    assert failing(folder, hostile=[escaped])["hostile programs held"].faults == ("is harmless: passed (), not failed",)


def test_the_command_says_what_failed_and_ends_with_one(folder, monkeypatch, capsys):
    whole = suites.checks
    monkeypatch.setattr(suites, "checks", lambda data: whole(data, {"mt_bench": 9}, {}, HELD))
    with pytest.raises(SystemExit) as ended:
        suites.main(["check", "--data", str(folder)])
    said = capsys.readouterr().out
    assert ended.value.code == 1 and "FAIL suite mt_bench" in said and "8/9" in said and "1 checks failed" in said
    monkeypatch.setattr(suites, "checks", lambda data: whole(data, {"mt_bench": 8}, {}, HELD))
    suites.main(["check", "--data", str(folder)])
    assert "all checks passed" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [(["check"], "give --data FOLDER"), (["check", "--data", "nowhere"], "data folder nowhere")],
)
def test_the_command_wants_a_folder_that_is_there(monkeypatch, arguments, words, capsys):
    monkeypatch.delenv(files.DATA_DIR_VARIABLE, raising=False)
    with pytest.raises(SystemExit) as ended:
        suites.main(arguments)
    assert ended.value.code == 2 and words in capsys.readouterr().err
