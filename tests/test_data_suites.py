"""The suites beside GSM8K and HumanEval: their wording, their splits, dialogues as plain text, training prompts from
several sources, and, where the data folder is, the real files."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from harness.config import load_config
from harness.data import (
    DataError,
    Task,
    TaskError,
    build_prompts,
    dialogue,
    files,
    first_messages,
    math500,
    mbpp,
    next_turn,
    prompt_of,
    refuse_overlap,
    shared_prefix,
    stop_strings,
    suite_prompts,
    training_tasks,
)
from harness.prompt_sections import TRAINING_SOURCES
from harness.score.grade import broken_response, gold_response, grade
from harness.suites import SUITES, TRAINING
from harness.train.prompts import tasks_of
from harness.train.trajectories import facts_of
from tests.data_folder import pinned_folder
from tests.test_data import FakeTarget, suite

REAL = ("gsm8k", "humaneval", "math500", "mbpp", "mbpp_bare", "mt_bench", "alpaca")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    return pinned_folder(tmp_path, monkeypatch)


@pytest.fixture(scope="module")
def real():
    found = os.environ.get(files.DATA_DIR_VARIABLE)
    if not found:
        pytest.skip(f"the real files are not here: {files.DATA_DIR_VARIABLE} names no data folder")
    return Path(found)


@pytest.mark.parametrize("source", REAL)
def test_every_suite_is_a_seeded_sample_with_a_form_for_base_models(folder, source):
    asked = suite_prompts("mine", suite(source, 5), folder)
    assert [t.id for t in asked] == [t.id for t in suite_prompts("mine", suite(source, 5), folder)]
    assert [t.id for t in asked] != [t.id for t in suite_prompts("mine", suite(source, 5, sample_seed=1), folder)]
    assert {task.suite for task in asked} == {"mine"} and len({task.id for task in asked}) == 5
    target = FakeTarget(chat=False)
    prompts = build_prompts(asked, target)
    prefix = shared_prefix(asked, prompts, target)
    assert prefix == (tuple(target.encode(asked[0].few_shot)) if asked[0].few_shot else ())
    assert stop_strings(asked, target) and not stop_strings(asked, FakeTarget(chat=True))


def test_math_examples_are_no_problems_of_the_set_and_have_boxed_answers(folder):
    task = suite_prompts("math500", suite("math500", 3), folder)[0]
    assert task.few_shot.count("\\boxed{") == task.few_shot.count("Problem:") == len(math500.EXAMPLES)
    assert "Problem:" not in task.turns[0] and task.turns[0].endswith(math500.INSTRUCTION)
    assert suite_prompts("math500", suite("math500", 3, shots=1), folder)[0].turns[0].count("Problem:") == 1
    with pytest.raises(DataError, match="5 shots asked for, math500 has 4"):
        suite_prompts("math500", suite("math500", 3, shots=5), folder)


def test_mbpp_evaluates_the_test_split_and_shows_its_tests(folder):
    asked = suite_prompts("mbpp", suite("mbpp", 14), folder)
    assert [int(t.id.rsplit("/", 1)[1]) for t in asked] == list(range(11, 25))
    task, bare = asked[0], suite_prompts("mbpp", suite("mbpp_bare", 14), folder)[0]
    for text in (task.turns[0], task.plain[0]):
        assert "assert add_11(2) == 13" in text
    assert bare.turns == ("Write a function to add 11.",) and "assert" not in bare.plain[0] + bare.few_shot
    assert task.few_shot.count("Task:") == mbpp.USUAL_SHOTS and "add_11" not in task.few_shot
    with pytest.raises(DataError, match="15 prompts asked for, there are 14"):
        suite_prompts("mbpp", suite("mbpp", 15), folder)
    with pytest.raises(DataError, match="5 shots asked for, the prompt split of mbpp has 4"):
        suite_prompts("mbpp", suite("mbpp", 3, shots=5), folder)


@pytest.mark.parametrize("source", ["mbpp", "mbpp_bare"])
def test_mbpp_trains_on_neither_test_rows_nor_their_doubles(folder, source):
    trained = training_tasks(source, 17, seed=0, data_dir=folder)
    assert [int(t.id.rsplit("/", 1)[1]) for t in trained] == [*range(511, 520), 601, *range(603, 610)]
    evaluated = suite_prompts("mbpp", suite(source, 3), folder)
    assert {t.few_shot for t in trained} == {t.few_shot for t in evaluated}
    assert "\r" not in trained[0].turns[0] + trained[0].plain[0]
    refuse_overlap(trained, evaluated)
    copied = replace(trained[0], reference={"question": evaluated[0].reference["question"].upper()})
    with pytest.raises(DataError, match="1 training prompts are evaluation prompts"):
        refuse_overlap([copied], evaluated)


@pytest.mark.parametrize("source", ["gsm8k", "math500", "humaneval", "mbpp", "mt_bench"])
def test_an_evaluation_prompt_is_refused_in_every_wording_and_turn(folder, source):
    task = suite_prompts(source, suite(source, 3), folder)[0]
    for text in (task.reference.get("question", task.turns[0]), task.turns[0], task.plain[0]):
        for turns in ((text,), ("Hello.", text)):
            with pytest.raises(DataError, match=f"^1 training prompts are .*mine = {task.id}"):
                refuse_overlap([Task("mine", "prompts", turns)], [task])
    refuse_overlap([Task("mine", "prompts", ("Hello.",))], [task])


@pytest.mark.parametrize(
    ("tests", "imports", "name"),
    [
        (["assert set(f((1, 2))) == set((1,))", "assert f(2) == sorted([2])"], [], "f"),
        (["assert isclose(f(1), 1)", "assert isclose(f(2), 2)"], ["from math import isclose"], "f"),
        (["assert not f(g(1))", "assert f(2)"], [], "f"),
        (["assert sum(1, 2) == 3"], [], "sum"),
    ],
)
def test_the_function_that_tests_are_about_is_found(tests, imports, name):
    assert mbpp.entry_point(tests, imports) == name


@pytest.mark.parametrize("tests", [[], ["assert 1 == 1"], ["assert f(1)", "assert g(1)"], ["assert f(g(1))"]])
def test_tests_about_no_single_function_are_refused(tests):
    with pytest.raises(DataError, match="one function was expected"):
        mbpp.entry_point(tests)


@pytest.mark.parametrize("source", ["math500", "mbpp"])
def test_gold_answers_are_right_and_broken_ones_wrong(folder, source):
    for task in suite_prompts(source, suite(source, 4), folder):
        assert grade(task, gold_response(task)).verdict == "right"
        assert grade(task, broken_response(task)).verdict == "wrong"


@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        ("import math\ndef add_11(x):\n    return x + 11", "right"),  # a base model, behind the fence it was given
        ("Here:\n```python\ndef add_11(x):\n    return x + 11\n```", "right"),
        ("def help(x):\n    return x + 11\n\ndef add_11(x):\n    return help(x)\nIt adds.", "right"),
        ("from the sentence:\n\ndef add_11(x):\n    return x + 11", "right"),
        ("def add_11(x):\n    return x + 11\n```\nTests:\n```\nassert 0\n```", "right"),
        ("Here:\r\n```python\r\ndef add_11(x):\r\n    return x + 11\r\n```", "right"),
        ("```python\nadd_11 = lambda x: x + 11\n```", "right"),
        ("```python\ndef other(x):\n    return x + 11\n```", "wrong"),
        ("def add_11(x):\n    return x", "wrong"),
        ("def add_11(x):\n    exit(0)", "wrong"),
        ("I would add eleven.", "no_answer"),
        ("", "no_answer"),
    ],
)
def test_functions_are_found_without_a_prompt_to_continue(folder, text, verdict):
    task = suite_prompts("mbpp", suite("mbpp", 14), folder)[0]
    assert grade(task, text).verdict == verdict


def test_a_dialogue_goes_on_as_plain_text():
    target = FakeTarget(chat=False)
    task = dialogue.conversation("d", "mt_bench", ["first?", "second?"], example=False)
    first = prompt_of(task, first_messages(task), target)
    assert target.tokenizer.decode(list(first.ids)) == f"{dialogue.HEADER}User: first?\nAssistant:"
    messages = next_turn(task, [*first_messages(task), {"role": "assistant", "content": " My answer.\n\n"}])
    second = prompt_of(task, messages, target)
    text = f"{dialogue.HEADER}User: first?\nAssistant: My answer.\nUser: second?\nAssistant:"
    assert (second.turn, target.tokenizer.decode(list(second.ids))) == (1, text)
    assert second.ids[: len(first.ids)] == first.ids


def test_a_transcript_has_one_example_or_none(folder):
    few_shot = {shots: suite_prompts("m", suite("mt_bench", 2, shots=shots), folder)[0].few_shot for shots in (None, 0)}
    assert few_shot[None] == dialogue.HEADER + dialogue.EXAMPLE and few_shot[0] == dialogue.HEADER
    with pytest.raises(DataError, match="one example only"):
        suite_prompts("m", suite("mt_bench", 2, shots=2), folder)


@pytest.mark.parametrize("plain", ["text", ("one", "two")])
def test_a_plain_form_has_a_text_for_each_turn(plain):
    with pytest.raises(TaskError, match="a text for each of 1 turns"):
        Task("t", "s", ("q",), plain=plain)


def test_files_that_no_hub_holds_say_where_they_come_from(folder):
    with pytest.raises(DataError, match="self_instruct_seed.jsonl .* is on no hub .* set data_dir"):
        training_tasks("instructions", 3, 0)
    (folder / "alpaca/question.jsonl").unlink()
    with pytest.raises(DataError, match="question.jsonl is missing; copy the 80 Stanford Alpaca .*CC-BY-NC"):
        suite_prompts("alpaca", suite("alpaca", 2), folder)


def test_a_hub_that_calls_a_field_otherwise_is_understood(monkeypatch):
    rows = [{"category": "stem", "prompt": ["a", "b"], "prompt_id": 7}]
    monkeypatch.setitem(files.SOURCES, "mt_bench/test", replace(files.SOURCES["mt_bench/test"], rows=1))
    monkeypatch.delenv(files.DATA_DIR_VARIABLE, raising=False)
    monkeypatch.setitem(__import__("sys").modules, "datasets", SimpleNamespace(load_dataset=lambda *a, **k: rows))
    with pytest.warns(UserWarning, match="may not be comparable"):
        assert files.load_rows("mt_bench/test") == [{"category": "stem", "turns": ["a", "b"]}]


# -- training prompts from several sources -----------------------------------------------------------------------------


def mixture(folder, **over):
    suites = {
        "gsm8k": {"prompts": 3, "sample_seed": 5},
        "humaneval": None,
        "synthesis": {"source": "mbpp", "prompts": 3, "max_new_tokens": 8, "shots": 1, "stop_strings": ["\nEND"]},
        "talk": {"source": "mt_bench", "prompts": 3, "max_new_tokens": 8, "scored": False},
    }
    sources = {"mbpp": 4, "gsm8k": 6, "instructions": 5}
    asked = {"source": None, "prompts": None, "sources": sources}
    return load_config("laptop", {"suites": suites, "trajectories": asked, "data_dir": str(folder)} | over, check=False)


def test_each_source_of_a_mixture_is_asked_like_its_suite(folder):
    config, target = mixture(folder), FakeTarget(chat=False)
    tasks = tasks_of(config, target)
    assert [(s, sum(t.suite == s for t in tasks)) for s in ("gsm8k", "instructions", "mbpp")] == [
        ("gsm8k", 6), ("instructions", 5), ("mbpp", 4)
    ]  # fmt: skip
    for source, name in (("gsm8k", "gsm8k"), ("mbpp", "synthesis"), ("instructions", "talk")):
        (evaluated,) = {t.few_shot for t in suite_prompts(name, config.suites[name], folder)}
        assert {t.few_shot for t in tasks if t.suite == source} == {evaluated}
    facts = SimpleNamespace(stop_ids=(), fingerprint="", template_hash="plain", thinking=None)
    target.__dict__ |= vars(facts)
    stops = facts_of(target, config, "model", tasks)["stop_strings"]
    assert stops["mbpp"] == ["\nEND"] and stops["instructions"] == list(dialogue.STOP_STRINGS)
    assert stops["gsm8k"] == ["\nQuestion:", "\n\n"]


def test_training_prompts_of_no_source_are_evaluated_ones(folder, monkeypatch):
    rows = files.load_rows("mt_bench/test", folder)
    monkeypatch.setattr(dialogue, "load_rows", lambda name, _: rows if name.startswith(("mt", "instr")) else [])
    with pytest.raises(DataError, match="training prompts are evaluation prompts .*instructions/train"):
        tasks_of(mixture(folder), FakeTarget(chat=False))


# -- the real files ----------------------------------------------------------------------------------------------------


def test_the_check_knows_every_suite_and_every_training_source():
    assert set(SUITES) == set(REAL)
    assert set(TRAINING) == {name for name in TRAINING_SOURCES if not name.startswith("pocket")}


@pytest.mark.slow
@pytest.mark.parametrize("source", REAL)
def test_the_real_files_have_their_pinned_counts(real, source):
    cfg = SimpleNamespace(source=source, prompts=None, sample_seed=0, shots=None)
    assert len(suite_prompts(source, cfg, real)) == SUITES[source]


@pytest.mark.slow
def test_mbpp_rows_left_out_of_training_are_those_whose_text_is_a_test_rows(real):
    rows = {row["task_id"]: row["text"].strip() for row in files.load_rows("mbpp/full", real)}
    tested = {rows[i] for i in mbpp.SPLITS["test"]}
    tested |= {
        r["prompt"].strip() for r in files.load_rows("mbpp/sanitized", real) if r["task_id"] in mbpp.SPLITS["test"]
    }
    assert {i for i in mbpp.SPLITS["train"] if rows[i] in tested} == mbpp.REPEATED
