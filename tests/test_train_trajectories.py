"""Trajectories come from the target, survive interruptions, and refuse what cannot be trained on."""

import json

import pytest
from tiny import tiny_target
from training import config

from harness.data import DataError, Task, TaskError
from harness.data.prompt_file import prompt_file
from harness.decode import Decoder, DecodeSettings, Prompt
from harness.train.corpus import FACTS, read_trajectories
from harness.train.prompts import tasks_of
from harness.train.trajectories import generate, publish, sample_text


@pytest.fixture(scope="module")
def target():
    return tiny_target()


@pytest.fixture
def settings(tmp_path):
    return config(tmp_path).trajectories


TASKS = [Task(f"t{i}", "s", (f"say {i}",)) for i in range(6)]


def test_responses_are_what_the_target_says_half_greedy_half_sampled(target, settings, tmp_path):
    lines = generate(target, TASKS, settings, tmp_path / "part.jsonl")
    assert [line["prompt_id"] for line in lines] == [f"t{i}" for i in range(6)]
    assert [line["temperature"] for line in lines] == [0.0, 1.0] * 3
    for line in lines:
        decode = DecodeSettings(
            temperature=line["temperature"],
            seed=settings.seed,
            stop_ids=target.stop_ids,
            max_new_tokens=settings.max_new_tokens,
        )
        prompt = Prompt(line["prompt_id"], tuple(line["prompt_ids"]))
        assert next(iter(Decoder(target, None, decode).run([prompt]))).output_ids == line["response_ids"]
        assert tuple(target.render([{"role": "user", "content": f"say {line['prompt_id'][1:]}"}])) == prompt.ids


def test_an_interrupted_generation_makes_only_what_is_missing(target, settings, tmp_path, monkeypatch):
    part = tmp_path / "part.jsonl"
    whole = generate(target, TASKS, settings, part)
    kept = part.read_text().splitlines(keepends=True)[:4]
    part.write_text("".join(kept) + '{"prompt_id": "t5", "turn')  # a kill in the middle of a line
    asked = []
    genuine = Decoder.run
    monkeypatch.setattr(Decoder, "run", lambda self, prompts: asked.extend(prompts) or genuine(self, prompts))
    assert generate(target, TASKS, settings, part) == whole
    assert len(asked) == 2
    more = generate(target, [*TASKS, Task("t6", "s", ("new",))], settings, part)
    assert more[:6] == whole and len(asked) == 3


def test_second_turns_follow_the_answers_given(target, settings, tmp_path):
    tasks = [Task("talk", "s", ("hello", "and then?")), TASKS[0]]
    lines = generate(target, tasks, settings.model_copy(update={"temperatures": [0.0]}), tmp_path / "p.jsonl")
    assert [(line["prompt_id"], line["turn"]) for line in lines] == [("talk", 0), ("talk", 1), ("t0", 0)]
    said = target.decode(lines[0]["response_ids"])
    messages = [
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": said},
        {"role": "user", "content": "and then?"},
    ]
    assert lines[1]["prompt_ids"] == target.render(messages)


def several(count):
    """Tasks of two sources for a base model, each behind its own text and with its own stop strings."""
    return [
        Task(f"{s}{i}", s, (f"say {i}",), plain=(f"{i}:",), few_shot=f"{s} {s} {s}\n", stop_strings=(s,))
        for s in ("a", "b")
        for i in range(count)
    ]


def test_each_source_has_its_own_prefix_and_stop_strings(settings, tmp_path, monkeypatch):
    target, made = tiny_target(template=None), []
    genuine = Decoder.__init__

    def watched(self, *args, **kwargs):
        genuine(self, *args, **kwargs)
        made.append((self.settings.stop_strings, target.decode(kwargs["shared_prefix"])))

    monkeypatch.setattr(Decoder, "__init__", watched)
    tasks, stops = several(3), {"a": ["a"], "b": ["b", "\n"]}
    lines = generate(target, tasks, settings, tmp_path / "part.jsonl", stops)
    assert set(made) == {(("a",), "a a a\n"), (("b", "\n"), "b b b\n")} and len(made) == 4  # two temperatures
    assert [line["source"] for line in lines] == ["a"] * 3 + ["b"] * 3
    alone = [task for task in tasks if task.suite == "b"]
    single = generate(
        target, alone, settings.model_copy(update={"temperatures": [1.0]}), tmp_path / "b.jsonl", ["b", "\n"]
    )
    known = {line["prompt_id"]: line["response_ids"] for line in lines if line["temperature"] == 1.0}
    same = [line for line in single if line["prompt_id"] in known]
    assert same and all(line["response_ids"] == known[line["prompt_id"]] and "source" not in line for line in same)
    facts = dict.fromkeys(FACTS) | {"stop_strings": stops}
    manifest = publish(tmp_path / "out", lines, facts)
    assert manifest["by_source"] == {"a": 3, "b": 3}
    assert {(t.prompt_id[0], t.source) for t in read_trajectories(tmp_path / "out")[0]} == {("a", "a"), ("b", "b")}
    with pytest.raises(TaskError, match="no stop strings are known for source 'b'; there are some for a"):
        generate(target, tasks, settings, tmp_path / "c.jsonl", {"a": ["a"]})


def test_a_plain_second_turn_follows_the_answer_up_to_its_stop_string(settings, tmp_path, monkeypatch):
    target = tiny_target(template=None)
    monkeypatch.setattr(target, "decode", lambda ids: " words\nUser: more" if len(ids) > 1 else "x")
    task = Task("talk", "s", ("one", "two"), plain=("User: one\nA:", "\nUser: two\nA:"), stop_strings=("\nUser:",))
    lines = generate(target, [task], settings, tmp_path / "p.jsonl", ["\nUser:"])
    assert lines[1]["prompt_ids"] == target.encode("User: one\nA: words\nUser: two\nA:")


def test_published_shards_are_read_back_with_their_facts(target, settings, tmp_path, monkeypatch):
    monkeypatch.setattr("harness.train.trajectories.SHARD_LINES", 4)
    lines = generate(target, TASKS, settings, tmp_path / "part.jsonl")
    manifest = publish(tmp_path / "out", lines, dict.fromkeys(FACTS) | {"fingerprint": target.fingerprint})
    read, again = read_trajectories(tmp_path / "out")
    assert again == manifest and len(manifest["shards"]) == 2
    assert manifest["by_temperature"] == {"0": 3, "1": 3} and manifest["responses"] == 6
    assert [list(t.response_ids) for t in read] == [line["response_ids"] for line in lines]
    assert manifest["response_tokens"] == sum(len(t.response_ids) for t in read)
    assert "[[supervised:]]" in sample_text(target, lines[0])


@pytest.mark.parametrize(
    ("task", "words"),
    [
        (Task("long", "s", ("x" * 3000,)), "long"),
        (Task("answer", "s", ("x" * 2034,)), r"answer: 2037 prompt tokens and max_new_tokens 12 .* 2048"),
        (Task("talk", "s", ("x", "y" * 3000)), "talk"),
        (Task("budgets", "s", tuple("x" * 200)), r"budgets: .* 200 answers of up to 12"),
    ],
    ids=lambda value: getattr(value, "id", ""),
)
@pytest.mark.parametrize("place", [0, 1], ids=["first-temperature", "second-temperature"])
def test_a_prompt_that_cannot_fit_the_context_is_refused_before_any_work(
    target, settings, tmp_path, monkeypatch, task, words, place
):
    monkeypatch.setattr(Decoder, "run", lambda *args: pytest.fail("decoded something"))
    tasks = [*TASKS]
    tasks[place] = task
    with pytest.raises(TaskError, match=words):
        generate(target, tasks, settings, tmp_path / "part.jsonl")
    assert not (tmp_path / "part.jsonl").exists()


def test_no_prompts_are_refused(target, settings, tmp_path):
    with pytest.raises(DataError, match="no training prompts"):
        generate(target, [], settings, tmp_path / "part.jsonl")
    empty = tmp_path / "empty.jsonl"
    empty.write_text("\n\n")
    with pytest.raises(DataError, match="empty"):
        prompt_file(empty, 3)
    with pytest.raises(DataError, match="does not exist"):
        prompt_file(tmp_path / "nowhere.jsonl", 3)


def test_prompt_files_hold_prompts_or_turns(tmp_path):
    rows = [{"prompt": "one"}, {"id": "b", "turns": ["x", "y"]}, {"prompt": "three"}]
    path = tmp_path / "mine.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    tasks = prompt_file(path, 2)
    assert [(task.id, task.turns) for task in tasks] == [("mine/000001", ("one",)), ("b", ("x", "y"))]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('{"text": "no"}', "prompt is None"),
        ('{"prompt": 5}', "prompt is 5"),
        ('{"prompt": "  "}', "prompt is '  '"),
        ('{"turns": "abc"}', "turns is 'abc'"),
        ('{"turns": []}', r"turns is \[\]"),
        ('{"turns": ["a", "half \\ud83d"]}', r"turns is \['a', 'half \\ud83d'\]"),
        ('{"turns": ["a", 2]}', r"turns is \['a', 2\]"),
        ('"abc"', "'abc' is no JSON object"),
        ('{"prompt": "broken', "not a JSON object"),
        (b'{"prompt": "\xff"}', "not a JSON object"),
        ('{"id": ["a"], "prompt": "x"}', r"id is \['a'\]"),
        ('{"id": "first", "prompt": "x"}', "id 'first' is that of line 1 too"),
    ],
)
def test_a_line_that_is_no_prompt_is_refused_with_its_file_and_number(tmp_path, line, words):
    path = tmp_path / "mine.jsonl"
    line = line if isinstance(line, bytes) else line.encode()
    path.write_bytes(b'{"id": "first", "prompt": "good"}\n\n' + line + b"\n")
    with pytest.raises(DataError, match=f"mine.jsonl, line 3: {words}.*write "):
        prompt_file(path, 1)


def test_only_a_newline_ends_a_line_of_a_prompt_file(tmp_path):
    path = tmp_path / "mine.jsonl"
    path.write_text('{"prompt": "one\u2028two"}\r\n{"prompt": "three"}', encoding="utf-8")
    assert [task.turns for task in prompt_file(path, 9)] == [("one\u2028two",), ("three",)]


def test_a_prompt_file_is_looked_up_from_the_project_root(target, tmp_path, monkeypatch):
    (tmp_path / "mine.jsonl").write_text('{"prompt": "one"}\n')
    monkeypatch.setattr("harness.settings.ROOT", tmp_path)
    cfg = config(tmp_path)
    trajectories = cfg.trajectories.model_copy(update={"source": "mine.jsonl"})
    cfg = cfg.model_copy(update={"trajectories": trajectories, "suites": {}})
    assert [task.turns for task in tasks_of(cfg, target)] == [("one",)]
