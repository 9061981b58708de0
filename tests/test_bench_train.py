"""The benchmark of training: a step falls to its rounds and to nothing twice, and rates are counts over its time."""

import csv
import hashlib
import json
import re
from types import SimpleNamespace

import pytest
import torch

import tests.training as training
from harness.bench import clock
from harness.bench import train as bench
from harness.bench.__main__ import main
from harness.clocks import PhaseClock
from harness.target import Target
from harness.train import cost
from harness.train.anchors import draw
from harness.train.corpus import collate
from harness.train.optimiser import MasterAdamW
from harness.train.verify import RejectedStep
from methods.drafter import BlockDrafter
from tests.drafting import METHODS
from tests.tiny import tiny_target

FACTS = {"fingerprint": "f", "template_hash": "t", "thinking": None, "dtype": "float32"}


@pytest.fixture(scope="module")
def target():
    return tiny_target()


def run_of(target, method, folder, **train):
    cfg = training.config(folder, **({"anchors": 6, "feature_cache_gb": 1.0, "rounds": None} | train))
    return training.trainer(target, cfg, folder, method=method)


@pytest.fixture
def now(monkeypatch):
    """A clock that stands still unless it is moved, and the parts of a step that move it, by seconds."""
    hand = SimpleNamespace(at=50.0)
    monkeypatch.setattr(clock.time, "perf_counter", lambda: hand.at)

    def work(**more):
        def takes(owner, name, seconds, counts=lambda *given: True):
            genuine = getattr(owner, name)

            def call(*given, **named):
                hand.at += seconds * counts(*given)
                return genuine(*given, **named)

            monkeypatch.setattr(owner, name, call)

        takes(bench, "collate", 0.001 + more.get("features", 0))
        takes(BlockDrafter, "forward_blocks", 0.004 + more.get("forward", 0))
        takes(BlockDrafter, "draft", 0.002 + more.get("draft", 0))
        rejected = lambda _target, _ids, step, _taps: isinstance(step, RejectedStep)  # noqa: E731
        takes(Target, "features_after", 0.008 + more.get("rejected", 0), rejected)
        takes(MasterAdamW, "step", 0.016 + more.get("update", 0))

    hand.work = work
    return hand


PARTS = {
    "dflash": ["features", "round 0", "update"],
    "dflow": ["features", "round 0", "transition 1", "round 1", "transition 2", "round 2", "update"],
}


@pytest.mark.parametrize("late", ["features", "forward", "draft", "rejected", "update", None])
def test_five_milliseconds_more_in_one_part_grow_the_parts_it_is_in_alone(late, target, now, tmp_path):
    now.work(**({late: 0.005} if late else {}))
    made = {name: run_of(target, name, tmp_path / name) for name in PARTS}
    rows = bench.measure(made, steps=2, blocks=2)
    for method, names in PARTS.items():
        whole, *parts = [row for row in rows if row["method"] == method]
        assert [row["part"] for row in parts] == names
        expected = dict.fromkeys(names, 4.0 + 5 * (late == "forward"))
        expected |= {"features": 1.0 + 5 * (late == "features"), "update": 16.0 + 5 * (late == "update")}
        # A transition's draft of 6 blocks comes in pieces of the head's chunk: each takes its time anew.
        pieces = -(-3 * 6 // (16 // 5))
        transition = pieces * (2.0 + 5 * (late == "draft")) + 8.0 + 5 * (late == "rejected")
        expected |= {name: transition for name in names if name.startswith("transition")}
        assert {row["part"]: row["ms"] for row in parts} == pytest.approx(expected)
        assert whole["ms"] == whole["ms_fastest"] == whole["ms_slowest"] == pytest.approx(sum(expected.values()))
        assert whole["gap_percent"] == pytest.approx(0, abs=1e-6)


def test_rates_are_the_sequences_and_labels_of_all_rounds_over_the_steps_time(target, now, tmp_path):
    now.work()
    run = run_of(target, "dflash", tmp_path)
    (whole, *_) = bench.measure({"dflash": run}, steps=3, blocks=1)
    labels, slots = 0, run.drafter.layout.block_size - 1
    for index in range(3):
        batch = collate(run.corpus.train, run.order.at(index))
        anchors, keep = draw(0, run.step, batch.lengths, batch.prompts, 6)
        left = (batch.lengths[:, None] - 1 - anchors).clamp(max=slots)
        labels += int((left * keep).sum())
    assert whole["samples_s"] == pytest.approx(3 / 0.021) and whole["tokens_s"] == pytest.approx(labels / 3 / 0.021)


def test_labels_of_later_rounds_count_too(target, tmp_path):
    plain = bench.steps_ms(run_of(target, "dflow", tmp_path / "a", rounds=0), 2)
    more = bench.steps_ms(run_of(target, "dflow", tmp_path / "b", rounds=1), 2)
    assert plain[1] == more[1] == 6 and more[2] > plain[2]


def test_a_clock_that_costs_time_shows_in_the_gap_and_not_in_the_step(target, now, tmp_path, monkeypatch):
    now.work()
    genuine = PhaseClock._stamp

    def slow(self):
        now.at += 0.001
        return genuine(self)

    monkeypatch.setattr(PhaseClock, "_stamp", slow)
    (whole, *_) = bench.measure({"dflash": run_of(target, "dflash", tmp_path)}, steps=2, blocks=1)
    assert whole["ms"] == pytest.approx(21) and whole["gap_percent"] > 5


@pytest.mark.parametrize("method", METHODS)
def test_steps_are_the_trainers_own_and_leave_its_weights_and_rounds_as_they_were(
    method, target, tmp_path, monkeypatch
):
    run, batches, genuine = run_of(target, method, tmp_path), [], training.Trainer._backward

    def backward(self, batch, step):
        batches.append(batch.indices)
        return genuine(self, batch, step)

    monkeypatch.setattr(training.Trainer, "_backward", backward)
    before = {name: p.clone() for name, p in run.drafter.named_parameters()}
    rounds = run.rounds
    timed = bench.steps_ms(run, 2, PhaseClock())
    assert bench.steps_ms(run, 2)[1:] == timed[1:]
    assert batches == [run.order.at(0), run.order.at(1)] * 2 and run.rounds is rounds
    assert all(torch.equal(p, before[name]) for name, p in run.drafter.named_parameters())
    assert any(float(state["exp_avg"].abs().sum()) for state in run.optimiser.adamw.state.values())  # it did step


# -- the command -------------------------------------------------------------------------------------------------


def published(folder, count=20):
    """Trajectories as a stage leaves them, of ids that no target here keeps for itself."""
    shown = [
        {
            "prompt_id": t.prompt_id,
            "prompt_ids": [100 + i for i in t.prompt_ids],
            "response_ids": [100 + i for i in t.response_ids],
            "temperature": 0.0,
        }
        for t in training.trajectories(count)
    ]
    data = "".join(json.dumps(line) + "\n" for line in shown).encode()
    folder.mkdir(parents=True)
    (folder / "shard.jsonl").write_bytes(data)
    shards = [{"file": "shard.jsonl", "sha256": hashlib.sha256(data).hexdigest()}]
    manifest = {**FACTS, "max_new_tokens": 20, "stop_strings": [], "shards": shards}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return folder


def test_every_row_says_what_was_measured_and_where(target, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(bench, "load_config", lambda name: training.config(tmp_path))
    monkeypatch.setattr(Target, "load", classmethod(lambda cls, *args, **kwargs: target))
    monkeypatch.setattr(bench, "peak", lambda config, of, method, folder, threads: 2.0 + len(method))
    words = ["--target", "tiny", "--methods", "dflash", "dflow", "--steps", "1", "--blocks", "2"]
    main(["train", *words, "--trajectories", str(published(tmp_path / "made")), "--out", str(tmp_path / "train.csv")])
    with (tmp_path / "train.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["method"], row["part"]) for row in rows] == [(m, p) for m in PARTS for p in ["step", *PARTS[m]]]
    for row in rows:
        assert (row["target"], row["dtype"], row["steps"], row["blocks"]) == ("tiny", "float32", "1", "2")
        assert row["git_sha"] and row["device"] and row["threads"] and row["torch"] and float(row["ms"]) > 0
        assert row["peak_gb"] == ({"dflash": "8", "dflow": "7"}[row["method"]] if row["part"] == "step" else "")
        assert bool(row["samples_s"]) == bool(row["tokens_s"]) == (row["part"] == "step")
    assert rows[0]["device"] in capsys.readouterr().out.split("\nmethod")[0]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ([], "no trajectories in .*trajectories/pocket.*; name their folder with --trajectories, or make them"),
        (["--methods", "ar"], "--methods names 'ar', which has nothing to train; name some of dflash, dflow"),
        (["--methods", "dflow", "dflow"], "--methods names a value twice"),
        (["--methods", "dflush"], r"unknown method 'dflush' \(did you mean 'dflash'\?\)"),
        (["--target", "docket"], r"no target 'docket' \(did you mean 'pocket'\?\)"),
        (["--steps", "0"], "--steps is 0; it must be at least 1"),
    ],
)
def test_what_cannot_be_measured_is_one_line_that_says_why(options, said, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(Target, "load", classmethod(lambda cls, *args, **kwargs: pytest.fail("nothing may be loaded")))
    with pytest.raises(SystemExit) as ended:
        main(["train", "--target", "pocket", "--trajectories", str(tmp_path / "trajectories" / "pocket"), *options])
    error = capsys.readouterr().err.strip()
    assert ended.value.code == 2 and len(error.splitlines()) == 1 and re.search(said, error), error


def test_a_process_that_fails_is_named_with_its_last_words(tmp_path, monkeypatch):
    ended = SimpleNamespace(returncode=3, stderr="a line\nout of memory\n", stdout="")
    monkeypatch.setattr(cost.subprocess, "run", lambda *_, **__: ended)
    with pytest.raises(RuntimeError, match="measures dflow ended with 3: out of memory"):
        cost.peak("pocket", "pocket", "dflow", tmp_path)


@pytest.mark.slow
def test_peak_memory_is_that_of_a_process_of_its_own(tmp_path):
    found = cost.peak("smoke", "pocket", "dflash", published(tmp_path / "made", 40), threads=1)
    assert 0.1 < found < 8
