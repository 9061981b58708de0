"""Prompts: pinned files, seeded samples, chat and few-shot forms, and no training prompt among the evaluated ones."""

from __future__ import annotations

import sys
import warnings
from dataclasses import replace
from types import SimpleNamespace

import pytest
from tiny import byte_tokenizer

from harness.config import load_config
from harness.data import (
    DataError,
    Task,
    TaskError,
    build_prompts,
    files,
    first_messages,
    gsm8k,
    next_turn,
    prompt_of,
    refuse_overlap,
    shared_prefix,
    stop_strings,
    suite_prompts,
    training_tasks,
)
from harness.pocket.world import SUITES
from harness.train.prompts import tasks_of
from tests.data_folder import gsm_rows, pinned_folder


class FakeTarget:
    """The four things a prompt needs of a target."""

    name, max_positions = "fake", 4096

    def __init__(self, chat: bool, tokenizer=None) -> None:
        self.has_template = chat
        self.tokenizer = tokenizer or byte_tokenizer()

    def render(self, messages):
        text = self.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        return self.tokenizer(text, add_special_tokens=False).input_ids

    def encode(self, text):
        return self.tokenizer(text).input_ids


def suite(source="gsm8k", prompts=5, sample_seed=0, shots=None):
    return SimpleNamespace(source=source, prompts=prompts, sample_seed=sample_seed, shots=shots)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    return pinned_folder(tmp_path, monkeypatch)


def test_samples_follow_the_seed_and_are_not_the_first_rows(folder):
    first = [task.id for task in suite_prompts("gsm8k", suite(), folder)]
    again = [task.id for task in suite_prompts("gsm8k", suite(), folder)]
    other = [task.id for task in suite_prompts("gsm8k", suite(sample_seed=1), folder)]
    assert first == again and first != other and len(set(first)) == 5
    assert first != [f"gsm8k/test/{i:04d}" for i in range(5)]


def test_more_prompts_than_there_are_is_an_error(folder):
    with pytest.raises(DataError, match="31 prompts asked for, there are 30"):
        suite_prompts("gsm8k", suite(prompts=31), folder)


def test_the_environment_names_the_folder(folder, monkeypatch):
    monkeypatch.setenv(files.DATA_DIR_VARIABLE, str(folder))
    assert len(suite_prompts("humaneval", suite("humaneval", 3))) == 3


def test_missing_folder_and_file_name_place_and_mend(folder):
    with pytest.raises(DataError, match="nowhere.*does not exist; point it at"):
        suite_prompts("gsm8k", suite(), folder / "nowhere")
    (folder / "gsm8k/train.jsonl").unlink()
    with pytest.raises(DataError, match=r"gsm8k/train.jsonl is missing; copy openai/gsm8k"):
        suite_prompts("gsm8k", suite(), folder)


def test_a_changed_file_is_refused(folder):
    path = folder / "gsm8k/test.jsonl"
    path.write_text(path.read_text().replace("what is 3 ", "what is 4 "))
    with pytest.raises(DataError, match="sha256 .* pinned is"):
        suite_prompts("gsm8k", suite(), folder)


def test_a_wrong_row_count_is_refused(folder, monkeypatch):
    monkeypatch.setitem(files.SOURCES, "gsm8k/test", replace(files.SOURCES["gsm8k/test"], rows=29))
    with pytest.raises(DataError, match="has 30 rows, 29 are pinned"):
        suite_prompts("gsm8k", suite(), folder)


def test_shots_are_drawn_by_seed_and_never_trained_on(folder):
    task = suite_prompts("gsm8k", suite(shots=3), folder)[0]
    assert task.few_shot.count("Question:") == 3 and task.few_shot.endswith("\n\n")
    shots = set(gsm8k.shot_indices(3, 0, gsm_rows(40, "train")))
    trained = training_tasks("gsm8k", 37, seed=0, data_dir=folder, shots=3)
    assert not shots & {int(t.id.rsplit("/", 1)[1]) for t in trained} and len(trained) == 37
    assert trained[0].few_shot == task.few_shot
    with pytest.raises(DataError, match="38 prompts asked for, there are 37"):
        training_tasks("gsm8k", 38, seed=0, data_dir=folder, shots=3)


@pytest.mark.parametrize(("chat", "shots"), [(True, 2), (False, 2), (False, None)])
def test_training_prompts_stand_behind_the_shots_that_are_evaluated(folder, chat, shots):
    changes = {
        "suites": {"gsm8k": {"prompts": 5, "shots": shots, "sample_seed": 5}, "humaneval": None},
        "trajectories": {"prompts": 6, "seed": 1},
        "data_dir": str(folder),
    }
    config = load_config("laptop", changes, check=False)
    evaluated = suite_prompts("gsm8k", config.suites["gsm8k"], folder)[0].few_shot
    trained = tasks_of(config, FakeTarget(chat))
    assert evaluated and {task.few_shot for task in trained} == {evaluated}


def test_shots_come_from_the_shorter_half():
    rows = [{"question": "q" * (40 - i), "answer": "#### 1"} for i in range(20)]
    assert set(gsm8k.shot_indices(10, 0, rows)) == set(range(10, 20))
    assert gsm8k.shot_indices(3, 0, rows) != gsm8k.shot_indices(3, 1, rows)


def test_open_shots_stay_out_of_chat_and_explicit_ones_do_not(folder):
    plain = suite_prompts("gsm8k", suite(), folder)[0]
    assert plain.few_shot.count("Question:") == gsm8k.USUAL_SHOTS and "Question:" not in plain.turns[0]
    assert suite_prompts("gsm8k", suite(shots=2), folder)[0].turns[0].count("Question:") == 2
    with pytest.raises(DataError, match="take none"):
        suite_prompts("humaneval", suite("humaneval", 3, shots=2), folder)


def test_few_shot_prompts_are_prefix_ids_then_question_ids(folder):
    target = FakeTarget(chat=False)
    tasks = suite_prompts("gsm8k", suite(shots=2), folder)
    prompts = build_prompts(tasks, target)
    prefix = shared_prefix(tasks, prompts, target)
    assert prefix == tuple(target.encode(tasks[0].few_shot))
    for task, prompt in zip(tasks, prompts, strict=True):
        assert prompt.ids == prefix + tuple(target.encode(task.plain[0]))


class JoiningTarget(FakeTarget):
    """Its tokenizer makes one id of a line break and the letter behind it."""

    def encode(self, text):
        return [ord(c) for c in text.replace("\nQ", "\u00b6")]


def test_a_tokenizer_that_joins_the_boundary_shortens_the_prefix():
    target = JoiningTarget(chat=False)
    tasks = [
        Task(str(i), "s", ("q",), plain=(f"Question: {i}",), few_shot="Question: a\nAnswer: b\n\n") for i in range(3)
    ]
    prompts = build_prompts(tasks, target)
    prefix = shared_prefix(tasks, prompts, target)
    assert len(prefix) == len(target.encode(tasks[0].few_shot)) - 1
    assert all(prompt.ids[: len(prefix)] == prefix for prompt in prompts)


def test_a_prefix_that_no_prompt_starts_with_is_an_error():
    target = FakeTarget(chat=False)
    tasks = [Task("a", "s", ("q",), plain=("x",), few_shot="shots of some length")]
    wrong = [replace(build_prompts(tasks, target)[0], ids=(1, 2, 3))]
    with pytest.raises(TaskError, match="few-shot text is"):
        shared_prefix(tasks, wrong, target)


def test_chat_prompts_have_no_prefix_and_no_stop_strings(folder):
    target = FakeTarget(chat=True)
    tasks = suite_prompts("gsm8k", suite(shots=None), folder)
    prompts = build_prompts(tasks, target)
    assert shared_prefix(tasks, prompts, target) == () and stop_strings(tasks, target) == ()
    assert stop_strings(tasks, target, ["END"]) == ("END",)
    assert "\nQuestion:" in stop_strings(tasks, FakeTarget(chat=False))
    assert prompts[0].ids == tuple(target.render(first_messages(tasks[0])))


def test_the_second_turn_is_rebuilt_with_the_models_own_answer():
    target = FakeTarget(chat=True)
    task = suite_prompts("pocket_chat", suite("pocket", 1))[0]
    messages = first_messages(task)
    with pytest.raises(TaskError, match="must end with the model's answer"):
        next_turn(task, messages)
    messages = next_turn(task, [*messages, {"role": "assistant", "content": "my own words"}])
    prompt = prompt_of(task, messages, target)
    assert prompt.turn == 1 and prompt.ids == tuple(target.render(messages))
    assert "my own words" in target.tokenizer.decode(list(prompt.ids))
    assert next_turn(task, [*messages, {"role": "assistant", "content": "more"}]) is None


def test_a_dialogue_needs_a_chat_template():
    task = suite_prompts("pocket_chat", suite("pocket", 1))[0]
    with pytest.raises(TaskError, match="no chat template"):
        build_prompts([task], FakeTarget(chat=False))


def test_prompts_that_do_not_fit_or_repeat_are_refused():
    target = FakeTarget(chat=True)
    tasks = suite_prompts("pocket_word", suite("pocket", 2))
    with pytest.raises(TaskError, match="do not fit"):
        build_prompts(tasks, target, max_new_tokens=4096)
    with pytest.raises(TaskError, match="occurs twice"):
        build_prompts([tasks[0], tasks[0]], target)
    with pytest.raises(TaskError, match="no tasks"):
        build_prompts([], target)


def test_training_prompts_of_every_pocket_suite_differ_from_evaluated_ones():
    trained = training_tasks("pocket", 12, seed=0)
    assert {task.suite for task in trained} == set(SUITES) and len(trained) == 12
    for name in SUITES:
        refuse_overlap(trained, suite_prompts(name, suite("pocket", 4)))


def test_overlap_is_refused_whatever_its_case_and_punctuation():
    asked = Task("eval/1", "s", ("What is 2+2?",))
    with pytest.raises(DataError, match="train/9 = eval/1"):
        refuse_overlap([Task("train/9", "s", ("what is  2+2",))], [asked])
    refuse_overlap([Task("train/9", "s", ("what is 2-2",))], [asked])
    with pytest.raises(DataError, match="train/9 = eval/1"):
        refuse_overlap([Task("train/9", "s", ("hello", "What is 2+2?"))], [asked])


@pytest.mark.parametrize("source", ["gsm8k", "math500", "humaneval", "mbpp", "mbpp_bare", "mt_bench", "alpaca"])
def test_a_question_of_every_suite_is_known_without_the_words_around_it(folder, source):
    """As others ask it: the row's own text, which is no prompt of this project."""
    asked = suite_prompts(source, suite(source, 5), folder)
    name = "mbpp/sanitized" if source.startswith("mbpp") else f"{source}/test"
    rows = files.load_rows(name, folder)
    field = next(key for key in ("question", "problem", "prompt", "turns") if key in rows[0])
    texts = [row[field][0] if field == "turns" else row[field] for row in rows]
    copied = [Task(f"copy/{i}", "s", (text,)) for i, text in enumerate(texts)]
    with pytest.raises(DataError, match="5 training prompts are evaluation prompts"):
        refuse_overlap(copied, asked)


def test_unknown_sources_are_named_with_the_valid_ones():
    with pytest.raises(DataError, match="'nosuch'; valid sources: pocket, gsm8k"):
        suite_prompts("x", suite("nosuch"))
    with pytest.raises(DataError, match="no suite 'pocket_nosuch'"):
        suite_prompts("pocket_nosuch", suite("pocket"))
    with pytest.raises(DataError, match="no training prompts for source 'humaneval'"):
        training_tasks("humaneval", 1, 0)


def test_the_hub_is_read_by_pinned_revision_and_its_rows_are_compared(folder, monkeypatch):
    asked = {}

    def load_dataset(name, config, split, revision):
        asked.update(name=name, config=config, split=split, revision=revision)
        return gsm_rows(30, "test")

    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=load_dataset))
    pinned = replace(files.SOURCES["gsm8k/test"], rows_sha256="other")
    monkeypatch.setitem(files.SOURCES, "gsm8k/test", pinned)
    with pytest.warns(UserWarning, match="may not be comparable"):
        rows = files.load_rows("gsm8k/test")
    assert asked == {"name": "openai/gsm8k", "config": "main", "split": "test", "revision": pinned.hub_revision}
    same = replace(pinned, rows_sha256=files.rows_digest(rows, pinned.fields))
    monkeypatch.setitem(files.SOURCES, "gsm8k/test", same)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert files.load_rows("gsm8k/test") == files.load_rows("gsm8k/test", folder)
