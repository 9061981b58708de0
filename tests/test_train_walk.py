"""The walk is the decoder, step for step; where it is not, somebody hears of it."""

from dataclasses import replace

import pytest
from tiny import tiny_target
from training import config, trainer

from harness.decode import Decoder, DecodeSettings, Prompt
from harness.train.corpus import Corpus, Trajectory
from harness.train.features import FeatureStore
from harness.train.walk import Walk, WalkMismatch, _draft_gap, accept_walk, check, walk
from tests.drafting import METHODS

BUDGET = 24


@pytest.fixture(scope="module", params=METHODS)
def scene(request, tmp_path_factory):
    """A target, its own greedy answers, and a drafter that knows some of them by heart: it accepts now and then."""
    target = tiny_target()
    prompts = [Prompt(f"p{i}", tuple((7 * i + k) % 200 for k in range(3 + i))) for i in range(6)]
    settings = DecodeSettings(temperature=0.0, seed=0, max_new_tokens=BUDGET, stop_ids=target.stop_ids)
    lines = [
        Trajectory(r.prompt_id, r.prompt_ids, tuple(r.output_ids), 0.0)
        for r in Decoder(target, None, settings, rows=3).run(prompts)
    ]
    folder = tmp_path_factory.mktemp("walk")
    cfg = config(folder, steps=60, eval_every=1000, checkpoint_every=1000, anchors=8)
    known = Corpus(tuple(lines[:4]), tuple(lines[4:]), (), {}, 0)
    run = trainer(target, cfg, folder, data=known, method=request.param)
    run.run()
    return target, run.drafter, lines


def walked(target, drafter, lines):
    return walk(drafter, FeatureStore(target, drafter.config.taps, lines, 1.0), lines)


def test_walk_equals_decoder_step_for_step(scene):
    target, drafter, lines = scene
    walks = walked(target, drafter, lines)
    report = check(target, drafter, lines, walks, max_new_tokens=BUDGET, rows=4)
    assert report.exact and not report.near_ties and report.prompts == 6
    assert report.accept == accept_walk(walks)
    for line, w in zip(lines, walks, strict=True):
        assert sum(w.committed) + 1 == len(line.response_ids)
    assert len({a for w in walks for a in w.accepted}) > 1, "a walk that never accepts proves little"


def test_each_source_is_checked_with_its_own_stop_strings(scene):
    target, drafter, lines = scene
    texts = [target.decode(line.response_ids) for line in lines]
    stop = next(c for text in texts for c in text[3:-3] if c.isascii() and c.isprintable())
    stops = {"long": (), "short": (stop,)}
    settings = DecodeSettings(0.0, 0, BUDGET, target.stop_ids, stop_strings=(stop,))
    prompts = [Prompt(line.prompt_id, line.prompt_ids) for line in lines]
    cut = [tuple(r.output_ids) for r in Decoder(target, None, settings, rows=3).run(prompts)]
    mixed = [
        replace(line, response_ids=ids if text.count(stop) else line.response_ids, source=source)
        for line, ids, text in zip(lines, cut, texts, strict=True)
        for source in ["short" if text.count(stop) else "long"]
    ]
    assert any(one.source == "short" and len(one) < len(line) for one, line in zip(mixed, lines, strict=True))
    walks = walked(target, drafter, mixed)
    report = check(target, drafter, mixed, walks, max_new_tokens=BUDGET, stop_strings=stops)
    assert report.accept == accept_walk(walks) and report.prompts == 6
    with pytest.raises(WalkMismatch, match="output token"):
        check(target, drafter, mixed, walks, max_new_tokens=BUDGET, stop_strings=dict.fromkeys(stops, ()))


def test_walk_does_not_depend_on_its_neighbours(scene, monkeypatch):
    target, drafter, lines = scene
    together = walked(target, drafter, lines)
    monkeypatch.setattr("harness.train.walk.SIDE_BY_SIDE", 1)
    assert walked(target, drafter, lines) == together


def test_features_shifted_by_one_are_caught(scene, monkeypatch):
    target, drafter, lines = scene
    genuine = FeatureStore.batch
    monkeypatch.setattr(FeatureStore, "batch", lambda self, batch: genuine(self, batch).roll(1, dims=1))
    walks = walked(target, drafter, lines)
    monkeypatch.undo()
    assert walks != walked(target, drafter, lines)
    with pytest.raises(WalkMismatch, match="step .* the walk has"):
        check(target, drafter, lines, walks, max_new_tokens=BUDGET)


def test_a_trajectory_the_target_would_not_write_is_caught(scene):
    target, drafter, lines = scene
    wrong = list(lines[0].response_ids)
    wrong[5] = (wrong[5] + 1) % 200
    changed = [Trajectory("p0", lines[0].prompt_ids, tuple(wrong), 0.0)]
    walks = walked(target, drafter, changed)
    with pytest.raises(WalkMismatch, match="token 5 of the response"):
        check(target, drafter, changed, walks, max_new_tokens=BUDGET)


def test_a_near_tie_is_listed_with_its_gap_and_not_raised(scene, monkeypatch):
    target, drafter, lines = scene
    walks = walked(target, drafter, lines)
    step = next(i for i, c in enumerate(walks[0].committed) if c > 1)
    committed = [*walks[0].committed]
    committed[step] -= 1
    bent = [replace(walks[0], committed=tuple(committed)), *walks[1:]]
    with pytest.raises(WalkMismatch, match=f"step {step}"):
        check(target, drafter, lines, bent, max_new_tokens=BUDGET)
    monkeypatch.setattr("harness.train.walk._draft_gap", lambda *args: 1e-6)
    report = check(target, drafter, lines, bent, max_new_tokens=BUDGET)
    assert [(tie["prompt_id"], tie["gap"]) for tie in report.near_ties] == [("p0", 1e-6)]


def test_the_gap_of_a_step_is_that_of_the_walk_in_question_not_of_another(scene):
    """A walk that took other proposals than the drafter makes now is replayed, not walked anew."""
    target, drafter, lines = scene
    genuine = walked(target, drafter, lines)[0]
    last = len(genuine.committed) - 1
    gap = _draft_gap(target, drafter, lines[0], genuine, last, 0)
    assert gap > 0
    nothing = tuple((0, *row[1:]) for row in genuine.proposals)  # never right: one token a step
    length = len(lines[0].response_ids) - 1
    slow = Walk((0,) * length, (1,) * length, (nothing * length)[:length])
    assert _draft_gap(target, drafter, lines[0], slow, length - 1, 0) > 0  # far behind the genuine walk's last step


def test_a_response_of_one_token_has_no_steps(scene):
    target, drafter, _ = scene
    lines = [Trajectory("one", (1, 2, 3), (4,), 0.0)]
    assert walked(target, drafter, lines) == [Walk((), ())]
