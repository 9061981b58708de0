"""What a step is said to cost is what it does: its parts are its own, nothing is run twice, and all is counted."""

import csv
from types import SimpleNamespace

import pytest
import torch

import tests.training as training
from harness.target import Target
from harness.train import cost
from harness.train.corpus import collate
from harness.train.verify import CollectStep, RejectedStep
from tests.drafting import METHODS
from tests.tiny import tiny_target


def run_of(method, folder, **train):
    cfg = training.config(folder, **({"anchors": 6, "feature_cache_gb": 1.0, "rounds": None} | train))
    return training.trainer(tiny_target(), cfg, folder, method=method)


@pytest.mark.parametrize(("cache", "passes"), [(0.0, 1), (1.0, 0)])
def test_the_trajectories_are_run_once_a_step_or_never(cache, passes, tmp_path, monkeypatch):
    run = run_of("dflow", tmp_path, rounds=1, feature_cache_gb=cache, key_cache_gb=cache)
    seen, genuine = [], Target.features_after

    def call(self, ids, step, taps):
        seen.append(type(step))
        return genuine(self, ids, step, taps)

    monkeypatch.setattr(Target, "features_after", call)
    run._backward(collate(run.corpus.train, (0, 1, 2)), 0)
    assert seen.count(RejectedStep) == 1 and seen.count(CollectStep) == passes and len(seen) == 1 + passes


@pytest.mark.parametrize("method", METHODS)
def test_the_parts_of_a_step_are_its_rounds_and_the_passes_between_them(method, tmp_path):
    run = run_of(method, tmp_path)
    parts = cost.parts_of(run, collate(run.corpus.train, (0, 1, 2)))
    relays = "dflow" in method
    assert list(parts) == [
        "features and keys",
        "drafter, round 0",
        *(name for q in (0, 1) if relays for name in (f"rejected rows, round {q}", f"drafter, round {q + 1}")),
    ]
    before = {name: p.clone() for name, p in run.drafter.named_parameters()}
    for call in parts.values():
        call()
    assert all(torch.equal(p, before[name]) for name, p in run.drafter.named_parameters())
    assert run.drafter.backbone.layers[0].mlp.up_proj.weight.grad is not None  # forward and backward, not forward alone


def test_times_are_means_over_batches_and_every_method_takes_the_same_ones(tmp_path, monkeypatch):
    made = {name: run_of(name, tmp_path / name) for name in ("dflash", "dflow")}
    clock = SimpleNamespace(now=0.0)

    def timed(call, device):
        call()
        clock.now += 1.0
        return 2.0

    monkeypatch.setattr(cost, "seconds", timed)
    rows = cost.measure(made, steps=2, repeats=1)
    whole = {row["method"]: row for row in rows if row["part"] == "step"}
    assert {name: row["ms"] for name, row in whole.items()} == {"dflash": 2000.0, "dflow": 2000.0}
    assert whole["dflash"]["over_parts"] == pytest.approx(1 / 2) and whole["dflow"]["over_parts"] == pytest.approx(
        1 / 6
    )
    assert sum(row["part"].startswith("rejected rows") for row in rows) == 2
    cost.report(rows, {"dflash": 2.0, "dflow": 2.5}, "float32", tmp_path / "cost.csv")
    with (tmp_path / "cost.csv").open() as file:
        (first, second) = [row for row in csv.DictReader(file) if row["part"] == "step"]
    assert (first["over_dflash"], second["over_dflash"], second["peak_over"]) == ("1", "1", "1.25")
