"""Resuming, saving, stopping and learning of the training loop, on a tiny real target."""

import csv
import logging
import math
from dataclasses import replace

import pytest
import torch
from tiny import tiny_target
from training import StopAt, config, trainer

from harness.train.curve import Curve
from harness.train.guard import Stopped


@pytest.fixture(scope="module")
def target():
    return tiny_target()


def weights(run):
    return {name: p.detach().clone() for name, p in run.drafter.named_parameters()}


def same(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def finish(target, cfg, folder, **kwargs):
    run = trainer(target, cfg, folder, **kwargs)
    return run, run.run()


@pytest.fixture(scope="module")
def reference(target, tmp_path_factory):
    folder = tmp_path_factory.mktemp("reference")
    run, outcome = finish(target, config(folder), folder)
    return weights(run), run.curve.rows, outcome


# 12 steps, an epoch of 3 batches, evaluation at 6, checkpoints at 4 and 8; `between` also runs while estimating,
# evaluating and walking, so the numbers fall before, in and after all of these.
@pytest.mark.parametrize("count", range(0, 22, 2))
def test_resumed_run_equals_uninterrupted_bit_for_bit(target, tmp_path, reference, count):
    cfg = config(tmp_path)
    run = trainer(target, cfg, tmp_path, between=StopAt(count))
    with pytest.raises(Stopped):
        run.run()
    resumed, outcome = finish(target, cfg, tmp_path)
    expected, rows, whole = reference
    assert same(weights(resumed), expected)
    timeless = [{k: v for k, v in row.items() if k != "seconds"} for row in resumed.curve.rows]
    assert timeless == [{k: v for k, v in row.items() if k != "seconds"} for row in rows]
    assert (outcome.steps, outcome.blocks, outcome.walks) == (12, whole.blocks, whole.walks)


def test_a_killed_run_goes_on_from_its_last_checkpoint(target, tmp_path, reference):
    cfg = config(tmp_path)
    run = trainer(target, cfg, tmp_path, between=StopAt(17))
    run._save = lambda save=run._save: save() if run.step in (4, 8) else None  # no save on the way out, as with SIGKILL
    with pytest.raises(Stopped):
        run.run()
    assert run.step not in (4, 8)
    resumed, _ = finish(target, cfg, tmp_path)
    assert same(weights(resumed), reference[0])


def test_a_finished_run_is_not_trained_again(target, tmp_path, reference):
    cfg = config(tmp_path)
    first, _ = finish(target, cfg, tmp_path)
    again = trainer(target, cfg, tmp_path)
    again._timed_step = lambda: pytest.fail("trained past the end")
    outcome = again.run()
    assert outcome.steps == 12 and outcome.reason == "steps" and same(weights(again), weights(first))
    assert [row["step"] for row in again.curve.rows] == [6, 12]


def test_a_state_of_other_settings_is_put_aside_and_said(target, tmp_path, caplog):
    finish(target, config(tmp_path), tmp_path)
    with caplog.at_level(logging.WARNING):
        run, _ = finish(target, config(tmp_path, learning_rate=1e-3), tmp_path)
    assert "other train" in caplog.text and len(list(tmp_path.glob("state*.pt"))) == 2
    other = tmp_path / "other"
    assert same(weights(run), weights(finish(target, config(other, learning_rate=1e-3), other)[0]))


def test_recomputed_features_train_the_same_drafter(target, tmp_path, reference):
    run, _ = finish(target, config(tmp_path, feature_cache_gb=0.0), tmp_path)
    assert not run.stores.train.cached
    for name, value in weights(run).items():
        torch.testing.assert_close(value, reference[0][name], rtol=1e-3, atol=1e-4)


def test_training_learns_what_can_be_learnt(target, tmp_path):
    cfg = config(tmp_path, steps=150, eval_every=75, checkpoint_every=1000, anchors=8)
    run, outcome = finish(target, cfg, tmp_path)
    first, last = run.curve.rows[0], run.curve.rows[-1]
    assert last["loss"] < first["loss"] and last["accept_random_anchor"] > 1.5
    with (tmp_path / "learning_curve.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [int(row["step"]) for row in rows] == [75, 150] and "accuracy_5" in rows[0]
    assert int(rows[-1]["blocks"]) == outcome.blocks == int(rows[-1]["blocks"])


def test_wall_time_ends_a_run_and_a_longer_limit_continues_it(target, tmp_path, reference):
    run, outcome = finish(target, config(tmp_path, wall_time_minutes=1e-9), tmp_path)
    assert (outcome.reason, outcome.steps) == ("wall_time", 1) and run.curve.step == 1
    run, outcome = finish(target, config(tmp_path), tmp_path)
    assert (outcome.reason, outcome.steps) == ("steps", 12) and same(weights(run), reference[0])


def test_a_flat_curve_ends_a_run_only_where_asked(target, tmp_path):
    cfg = config(tmp_path, steps=40, eval_every=4, plateau_percent=1e9)
    assert finish(target, cfg, tmp_path)[1].reason == "steps"
    other = tmp_path / "stop"
    cfg = config(other, steps=40, eval_every=4, plateau_percent=1e9, stop_at_plateau=True)
    run, outcome = finish(target, cfg, other)
    assert outcome.reason == "plateau" and outcome.plateau and outcome.steps == 12
    assert finish(target, cfg, other)[1].steps == 12


def test_a_loss_that_is_not_finite_stops_without_touching_the_saved_state(target, tmp_path):
    cfg = config(tmp_path)
    run = trainer(target, cfg, tmp_path, between=StopAt(16))
    with pytest.raises(Stopped):
        run.run()
    before = (tmp_path / "state.pt").read_bytes()
    run = trainer(target, config(tmp_path, checkpoint_every=1), tmp_path)
    run._resume()
    with torch.no_grad():
        next(run.drafter.parameters()).fill_(float("nan"))
    run._resume = lambda: None
    with pytest.raises(FloatingPointError, match="learning_rate"):
        run.run()
    assert (tmp_path / "state.pt").read_bytes() == before


def test_an_infinite_loss_is_not_saved_though_its_gradient_is_finite(target, tmp_path):
    run = trainer(target, config(tmp_path), tmp_path)
    run.tallies = [replace(run.tallies[0], weighted=torch.tensor(math.inf))]
    with pytest.raises(FloatingPointError, match="the loss became inf.*learning_rate"):
        run._save()
    assert not (tmp_path / "state.pt").exists()


@pytest.mark.parametrize("value", [math.inf, math.nan])
def test_a_gradient_that_is_not_finite_moves_no_weight_and_leaves_the_saved_state(target, tmp_path, reference, value):
    cfg = config(tmp_path, checkpoint_every=1)
    run = trainer(target, cfg, tmp_path)
    last = list(run.drafter.parameters())[-1]
    last.register_hook(lambda gradient: torch.full_like(gradient, value) if run.step == 7 else None)
    with pytest.raises(
        FloatingPointError, match=rf"step 7: the norm of the gradient is {value};.*step 7.*learning_rate"
    ):
        run.run()
    assert all(bool(value.isfinite().all()) for value in weights(run).values())
    resumed, _ = finish(target, cfg, tmp_path)
    assert same(weights(resumed), reference[0])


def test_the_estimate_changes_no_weight_and_names_time_and_memory(target, tmp_path):
    run = trainer(target, config(tmp_path), tmp_path)
    before = weights(run)
    text = run.estimate().text(12)
    assert same(weights(run), before) and all(p.grad is None for p in run.drafter.parameters())
    assert "GB" in text and "12 steps" in text


@pytest.mark.parametrize(
    ("ce", "walk", "flat"),
    [([2.0, 1.0, 0.995], [3.0, 3.0, 3.0], True), ([2.0, 1.0, 0.9], [3.0, 3.0, 3.0], False)]
    + [([2.0, 1.0, 0.995], [3.0, 3.0, 3.3], False), ([2.0, 1.0, 0.995], [math.nan] * 3, True)],
)
def test_a_plateau_needs_a_still_loss_and_a_still_walk(ce, walk, flat):
    rows = [
        {"step": 60 + 20 * i, "heldout_ce": c, "accept_walk": w} for i, (c, w) in enumerate(zip(ce, walk, strict=True))
    ]
    rows[1]["step"] = 66  # at or before two thirds of the last step, so that it is where both gains are counted from
    assert Curve(rows).flat(2.0) is flat
