"""Trajectories come from the target, survive interruptions, and refuse what cannot be trained on."""

import json

import pytest
from tiny import tiny_target
from training import config

from harness.data import DataError, Task
from harness.decode import Decoder, DecodeSettings, Prompt
from harness.train.corpus import read_trajectories
from harness.train.trajectories import generate, prompt_file, publish, sample_text


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


def test_published_shards_are_read_back_with_their_facts(target, settings, tmp_path, monkeypatch):
    monkeypatch.setattr("harness.train.trajectories.SHARD_LINES", 4)
    lines = generate(target, TASKS, settings, tmp_path / "part.jsonl")
    manifest = publish(tmp_path / "out", lines, {"fingerprint": target.fingerprint})
    read, again = read_trajectories(tmp_path / "out")
    assert again == manifest and len(manifest["shards"]) == 2
    assert manifest["by_temperature"] == {"0": 3, "1": 3} and manifest["responses"] == 6
    assert [list(t.response_ids) for t in read] == [line["response_ids"] for line in lines]
    assert manifest["response_tokens"] == sum(len(t.response_ids) for t in read)
    assert "[[supervised:]]" in sample_text(target, lines[0])


def test_prompts_longer_than_the_context_are_refused_before_any_work(target, settings, tmp_path):
    tasks = [*TASKS, Task("long", "s", ("x" * target.max_positions,))]
    with pytest.raises(ValueError, match="long"):
        generate(target, tasks, settings.model_copy(update={"temperatures": [0.0]}), tmp_path / "part.jsonl")
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
    path.write_text('{"text": "no"}\n')
    with pytest.raises(DataError, match="line 1"):
        prompt_file(path, 2)
