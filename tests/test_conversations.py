"""Collected conversations become training prompts: which words are asked, which rows are left out and counted, how a
dialogue ends, and what a data set that is another one leads to."""

import hashlib
import json
import sys
from types import SimpleNamespace

import pytest
from tiny import tiny_target
from training import config

from harness.config import ConfigError, load_config
from harness.data import DataError, Task, TaskError, suite_prompts
from harness.data.conversations import gather, read, user_turns
from harness.plan import Plan
from harness.prompt_sections import DatasetConfig
from harness.readiness import SILENCE, data
from harness.train.corpus import as_trajectory, read_trajectories
from harness.train.prompts import refuse_unaskable, refuse_unchosen, tasks_of
from harness.train.trajectories import generate, run

SHARED = DatasetConfig(source="shared.json")


def says(*pairs):
    """A row as ShareGPT has it."""
    return {"id": "x", "conversations": [{"from": speaker, "value": text} for speaker, text in pairs]}


def stored(tmp_path, rows, name="shared.json"):
    path = tmp_path / name
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    path.write_text(json.dumps(rows) if name.endswith(".json") else lines, encoding="utf-8")
    return DatasetConfig(source=str(path))


def with_data(tmp_path, rows, count=9, **over):
    """A configuration whose trajectories come from a data set of `rows`."""
    given = stored(tmp_path, rows)
    asked = {"source": "shared", "prompts": count, "datasets": {"shared": given.model_dump()}, "temperatures": [0]}
    small = {"suites": {f"pocket_{name}": {"prompts": 2} for name in ("word", "algebra", "complete", "synth", "chat")}}
    return load_config("smoke", {**small, "work_dir": str(tmp_path / "w"), "trajectories": asked | over})


@pytest.mark.parametrize(
    ("row", "turns"),
    [
        (says(("human", "a"), ("gpt", "b"), ("human", "c")), ["a", "c"]),
        (says(("system", "be nice"), ("human", "a"), ("gpt", "b")), ["a"]),
        (says(("gpt", "as I said"), ("human", "a")), ["a"]),
        (
            says(("human", "a"), ("human", "more"), ("system", "s"), ("human", "still"), ("gpt", "b")),
            ["a\n\nmore\n\nstill"],
        ),
        (says(("human", "a"), ("gpt", "b"), ("human", "  "), ("gpt", "d"), ("human", "e")), ["a"]),
        (says(("human", " "), ("gpt", "b")), []),
        (says(("human", "a"), ("tool", "4")), []),
        (says(("human", None), ("gpt", "b")), []),
        (says(("gpt", "alone")), []),
        (says(), []),
        ({"conversations": None, "id": 3}, []),
        ({"conversations": ["a", {"from": "human", "value": "b"}]}, []),
        ({"messages": [{"role": "User", "content": "a"}, {"role": "assistant", "content": "b"}]}, ["a"]),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, []),
        ({"turns": ["a", "b"], "reference": ["c"]}, ["a", "b"]),
        ({"prompt": "a"}, ["a"]),
    ],
)
def test_the_words_of_a_user(row, turns):
    assert user_turns(row, SHARED, 0) == turns


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"text": "a", "id": 1}, "shared.json, row 7 has the columns text, id, none of them conversations.*set column"),
        ({"prompt": 5}, "row 7: prompt is '5', neither text nor a list; set column"),
        ("text", "row 7: 'text' is no JSON object"),
    ],
)
def test_a_row_of_another_form_is_refused_with_its_number(row, words):
    with pytest.raises(DataError, match=words):
        user_turns(row, SHARED, 7)


def test_a_column_can_be_named():
    named = DatasetConfig(source="a/b", column="instruction")
    assert user_turns({"instruction": "a", "prompt": "b"}, named, 0) == ["a"]
    with pytest.raises(DataError, match="none of them instruction; set column"):
        user_turns({"prompt": "b"}, named, 0)


def test_rows_that_cannot_be_asked_are_left_out_and_counted(tmp_path):
    rows = [says(("human", f"question {i}"), ("gpt", "b"), ("human", "and?")) for i in range(4)]
    rows += [says(("human", "Question 2!"), ("gpt", "other")), says(("gpt", "alone")), says(("human", "long " * 9))]
    rows += [says(("human", "hello"), ("gpt", "hi"), ("human", "What is 2+2?")), says(("human", "what is 2+2"))]
    rows += [says(("human", "half \ud83d"), ("gpt", "b"))]
    evaluation = [Task("e", "s", ("Words around: What is 2+2?",), {"question": "What is 2+2?"})]
    found = gather(
        "shared", stored(tmp_path, rows), 99, 0, evaluation=evaluation, fits=lambda task: len(task.turns[0]) < 20
    )
    assert found.counts == {
        "rows": 10,
        "asked": 4,
        "an evaluation prompt": 2,
        "begins like another": 1,
        "no Unicode text": 1,
        "no words of a user alone with a model": 1,
        "too long": 1,
    }
    assert sorted(task.turns[0].lower().strip("!") for task in found.tasks) == [f"question {i}" for i in range(4)]
    for task in found.tasks:
        row = int(task.id.removeprefix("shared/"))
        assert task.suite == "shared" and rows[row]["conversations"][0]["value"] == task.turns[0]


def test_the_order_is_drawn_and_more_prompts_keep_those_there_are(tmp_path):
    given = stored(tmp_path, [{"prompt": f"p{i}"} for i in range(50)])
    few, more = (gather("shared", given, count, 0).tasks for count in (5, 20))
    assert more[:5] == few and len(more) == 20
    assert [task.turns for task in few] != [(f"p{i}",) for i in range(5)], "the first rows need not be typical"
    assert gather("shared", given, 5, 1).tasks != few


def test_turns_are_limited_by_name(tmp_path):
    given = stored(tmp_path, [says(("human", "a"), ("gpt", "b"), ("human", "c"), ("gpt", "d"), ("human", "e"))])
    turns = [gather("s", given.model_copy(update={"max_turns": n}), 1, 0).tasks[0].turns for n in (None, 2, 1)]
    assert turns == [("a", "c", "e"), ("a", "c"), ("a",)]


@pytest.mark.parametrize("name", ["rows.json", "rows.jsonl"])
def test_a_list_and_a_row_a_line_are_read_alike(tmp_path, name):
    rows = [{"prompt": "one\u2028two"}, {"prompt": "three"}]
    given = stored(tmp_path, rows, name)
    assert list(read(given)) == rows
    path = tmp_path / name
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert list(read(given)) == rows, "with a byte order mark"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"[{", "neither a JSON list nor a JSON object a line"),
        (b'{"prompt": "a"}\n{"prompt"\n', "line 2"),
        (b'["\xff"]', "neither"),
        (b"[" * 100_000, "neither"),
        (b"[]", "is empty"),
        (b"\n", "is empty"),
    ],
)
def test_a_damaged_file_is_refused(tmp_path, content, words):
    path = tmp_path / "rows.jsonl"
    path.write_bytes(content)
    with pytest.raises(DataError, match=f"rows.jsonl.*{words}"):
        read(DatasetConfig(source=str(path)))
    with pytest.raises(DataError, match=r"nowhere.json does not exist; correct"):
        read(DatasetConfig(source=str(tmp_path / "nowhere.json")))


def test_a_file_is_known_by_its_hash(tmp_path):
    given = stored(tmp_path, [{"prompt": "a"}])
    good = hashlib.sha256((tmp_path / "shared.json").read_bytes()).hexdigest()
    assert read(given.model_copy(update={"sha256": good}))
    with pytest.raises(DataError, match=f"has sha256 {good}, the configuration says {'0' * 64}.*fetch it again"):
        read(given.model_copy(update={"sha256": "0" * 64}))


def test_a_hubs_file_and_a_hubs_split(tmp_path, monkeypatch):
    stored(tmp_path, [{"prompt": "of the file"}])
    asked = []

    def fetch(source, file, **more):
        asked.append((source, file, more))
        return str(tmp_path / file)

    def load(source, config, **more):
        asked.append((source, config, more))
        return [{"prompt": "of the split"}]

    monkeypatch.setitem(sys.modules, "huggingface_hub", SimpleNamespace(hf_hub_download=fetch))
    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=load))
    hub = DatasetConfig(source="some/data", revision="abc", file="shared.json")
    assert gather("s", hub, 1, 0).tasks[0].turns == ("of the file",)
    assert gather("s", hub.model_copy(update={"file": None}), 1, 0).tasks[0].turns == ("of the split",)
    assert asked == [
        ("some/data", "shared.json", {"repo_type": "dataset", "revision": "abc"}),
        ("some/data", None, {"split": "train", "revision": "abc"}),
    ]


@pytest.mark.parametrize("file", ["shared.json", None])
def test_a_hub_that_does_not_answer_becomes_a_mend(monkeypatch, file):
    def silent(*_, **__):
        raise ConnectionError("no route\nto it")

    monkeypatch.setitem(sys.modules, "huggingface_hub", SimpleNamespace(hf_hub_download=silent))
    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=silent))
    with pytest.raises(
        DataError, match=r"some/data \((shared.json|train), revision None\).*\(no route\).*copy its file"
    ):
        read(DatasetConfig(source="some/data", file=file))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"source": "some/data", "file": "a.parquet"}, "name a .json or .jsonl file"),
        ({"source": "some/data", "sha256": "0" * 64}, "sha256 is that of a file"),
        ({"source": "mine.json", "revision": "abc"}, "revision would change nothing"),
        ({"source": "some/data", "colum": "a"}, "unknown key 'colum'.*'column'"),
    ],
)
def test_settings_that_say_nothing_are_refused(given, words):
    with pytest.raises(ConfigError, match=words):
        load_config("smoke", {"trajectories": {"source": "shared", "datasets": {"shared": given}}})


def test_names_of_data_sets_stand_apart_and_are_known():
    with pytest.raises(ConfigError, match="'gsm8k' is a source of its own"):
        load_config("smoke", {"trajectories": {"datasets": {"gsm8k": {"source": "a/b"}}}})
    with pytest.raises(ConfigError, match="source 'sharde' is unknown .did you mean 'shared'"):
        load_config("smoke", {"trajectories": {"source": "sharde", "datasets": {"shared": {"source": "a/b"}}}})
    with pytest.raises(ConfigError, match=r"trajectories.datasets.shared.source is 'no.json': no such file"):
        load_config("smoke", {"trajectories": {"source": "shared", "datasets": {"shared": {"source": "no.json"}}}})


def test_evaluation_prompts_are_left_out_and_the_others_answered(tmp_path):
    from harness.target import Target

    plain = with_data(tmp_path, [{"prompt": "a"}])
    evaluated = suite_prompts("pocket_word", plain.suites["pocket_word"])[0].turns[0]
    rows = [says(("human", f"What is {i}?"), ("gpt", "no"), ("human", "Sure?")) for i in range(40)]
    settings = with_data(tmp_path, [*rows, says(("human", evaluated))], 41)
    out = tmp_path / "out"
    manifest = run(settings, "pocket", out)
    assert manifest["datasets"] == {"shared": {"rows": 41, "asked": 40, "an evaluation prompt": 1}}
    lines, _ = read_trajectories(out)
    assert {line.turn for line in lines} == {0, 1} and len(lines) == 80
    target = Target.load(settings.target("pocket"), "pocket", check=False)
    refuse_unchosen(settings, tasks_of(settings, target), lines)
    asked = as_trajectory({"prompt_id": "shared/000040", "prompt_ids": [1], "response_ids": [2], "temperature": 0})
    with pytest.raises(ValueError, match="1 trajectories .shared/000040. .*write the trajectories again"):
        refuse_unchosen(settings, tasks_of(settings, target), [*lines, asked])


def test_a_dialogue_ends_where_its_next_prompt_is_too_long(tmp_path):
    target = tiny_target()
    settings = config(tmp_path).trajectories.model_copy(update={"temperatures": [0.0], "max_prompt_tokens": 60})
    tasks = [Task("short", "s", ("a", "b")), Task("grows", "s", ("a", "b" * 60, "c")), Task("one", "s", ("a",))]
    lines = generate(target, tasks, settings, tmp_path / "p.jsonl")
    assert [(line["prompt_id"], line["turn"]) for line in lines] == [
        ("short", 0),
        ("short", 1),
        ("grows", 0),
        ("one", 0),
    ]
    with pytest.raises(TaskError, match="long: its prompt has more than 60 tokens.*max_prompt_tokens 60"):
        generate(target, [Task("long", "s", ("a" * 70,))], settings, tmp_path / "q.jsonl")


def test_rows_of_a_data_set_may_end_early_and_other_dialogues_must_fit(tmp_path):
    target = tiny_target()
    settings = config(tmp_path).trajectories.model_copy(update={"datasets": {"shared": SHARED}})
    turns = ("x", "y" * 3000)
    refuse_unaskable(Task("t", "shared", turns), target, settings)
    with pytest.raises(TaskError, match="do not fit the 2048 positions"):
        refuse_unaskable(Task("t", "other", turns), target, settings)
    lines = generate(target, [Task("t", "shared", turns)], settings, tmp_path / "p.jsonl")
    assert [line["turn"] for line in lines] == [0], "its second prompt is longer than the context"


def test_trajectories_depend_on_the_data_set_and_on_what_is_evaluated(tmp_path):
    wildcards, said = SimpleNamespace(target="pocket"), []
    rows = [{"prompt": "a"}]
    said.append(Plan(with_data(tmp_path, rows)).trajectories(wildcards))
    turns = {"shared": {"source": str(tmp_path / "shared.json"), "max_turns": 2}}
    said.append(Plan(with_data(tmp_path, rows, datasets=turns)).trajectories(wildcards))
    said.append(Plan(with_data(tmp_path, rows, seed=3)).trajectories(wildcards))
    said.append(Plan(with_data(tmp_path, [*rows, {"prompt": "b"}])).trajectories(wildcards))
    other = with_data(tmp_path, rows)
    suites = other.suites | {"pocket_word": other.suites["pocket_word"].model_copy(update={"sample_seed": 1})}
    stored(tmp_path, rows)
    said.append(Plan(other.model_copy(update={"suites": suites})).trajectories(wildcards))
    assert len(set(said)) == 5


def test_the_preflight_asks_for_data_sets_without_fetching_them(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr("harness.readiness.ask_hub", lambda *given: asked.append(given) or "")
    monkeypatch.setattr("harness.data.conversations.read", lambda *_: pytest.fail("fetched"))
    hub = {"source": "some/data", "revision": "abc", "file": "rows.json"}
    settings = load_config("smoke", {"trajectories": {"source": "shared", "datasets": {"shared": hub}}})
    assert data(settings)[-1].fault == "" and asked == [("some/data", "abc", "dataset", "rows.json")]
    assert data(settings, offline=True)[-1].fault.startswith(SILENCE)


def test_the_preflight_counts_prompts_that_are_here(tmp_path):
    found = data(with_data(tmp_path, [{"prompt": f"p{i}"} for i in range(4)]))
    assert [(one.what, one.said, one.fault) for one in found][-1] == ("training prompts of shared", "4 prompts", "")
