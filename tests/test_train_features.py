"""Features from a store are the target's own, whatever was kept, shared or recomputed."""

import pytest
import torch
from tiny import tiny_target

from harness.target import Target
from harness.train.corpus import Trajectory, collate
from harness.train.features import FeatureStore, common_prefix

TAPS = (0, 3)


def lines(shared=0):
    opening = tuple((3 * i) % 200 for i in range(shared))
    return [Trajectory(f"p{i}", (*opening, 200 + i, i), tuple(range(10 + i)), 0.0) for i in range(5)]


@pytest.fixture(scope="module", params=["qwen3", "gemma3"])  # gemma3: sliding windows shorter than the prefix
def target(request):
    return tiny_target(request.param, dtype=torch.float64)


@pytest.mark.parametrize("shared", [0, 70])
@pytest.mark.parametrize("budget", [1.0, 0.0], ids=["kept", "recomputed"])
def test_features_are_those_of_each_sequence_alone(target, shared, budget):
    data = lines(shared)
    store = FeatureStore(target, TAPS, data, budget)
    assert store.cached == (budget > 0) and store.shared == shared
    batch = collate(data, [3, 0, 4])
    got = store.batch(batch)
    assert bool(torch.isfinite(got).all())
    for row, index in enumerate(batch.indices):
        alone = target.features(torch.tensor([data[index].ids]), TAPS)[0]
        torch.testing.assert_close(got[row, : len(data[index])], alone, rtol=1e-9, atol=1e-9)


def test_a_shared_beginning_is_run_and_held_once(target, monkeypatch):
    data, run = lines(70), []
    genuine = Target._run
    monkeypatch.setattr(
        Target, "_run", lambda self, ids, *args, **kwargs: run.append(ids.shape) or genuine(self, ids, *args, **kwargs)
    )
    store = FeatureStore(target, TAPS, data, 1.0)
    assert max(shape[1] for shape in run[1:]) <= max(len(t) for t in data) - 70
    assert store.gigabytes * 2**30 == (70 + sum(len(t) - 70 for t in data) + 1) * 2 * 32 * 8


def test_a_short_or_whole_beginning_is_not_shared():
    assert common_prefix(lines(20)) == 0 and common_prefix(lines(70)[:1]) == 0 and common_prefix([]) == 0
    twins = [lines(70)[0]] * 2
    assert common_prefix(twins) == len(twins[0]) - 1
