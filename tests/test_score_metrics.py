"""Acceptance metrics on hand-made step lists, and the bootstrap behind their intervals."""

from __future__ import annotations

import numpy as np
import pytest

from harness.score import bootstrap
from harness.score.metrics import RecordError, acceptance, check_record, flags, loops


def record(accepted, prompt="p0", seed=0, cut=0, turn=0, **more):
    """A record whose last step is cut by `cut` tokens."""
    committed = [a + 1 for a in accepted]
    if committed:
        committed[-1] -= cut
    output = list(range(1 + sum(committed)))
    return {"prompt_id": prompt, "turn": turn, "seed": seed, "accepted": accepted, "committed": committed,
            "output_ids": output} | more  # fmt: skip


def test_every_convention_on_a_hand_made_list():
    # one response of steps 4, 2 (cut from 3) and one of a single step of 1
    got = acceptance([record([3, 2], cut=1), record([0], "p1")])
    assert (got.steps, got.committed, got.tokens, got.prompts, got.responses) == (3, 7, 9, 2, 2)
    assert got.tau == pytest.approx(7 / 3)
    assert got.tau_macro == pytest.approx((3 + 1) / 2)
    assert got.tau_unclipped == pytest.approx((3.5 + 1) / 2)
    assert got.tau_with_prefill == pytest.approx(9 / 3)
    assert got.histogram == (1, 0, 1, 1)


def test_plain_decoding_is_exactly_one():
    got = acceptance([record([0] * 7)])
    assert got.tau == got.tau_macro == got.tau_unclipped == 1


def test_a_response_that_ends_at_its_first_token_has_no_steps():
    got = acceptance([record([]), record([1, 1], "p1")])
    assert (got.responses, got.steps, got.tau, got.tau_macro) == (2, 2, 2, 2)
    assert np.isnan(acceptance([record([])]).tau)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"output_ids": [1, 2]}, "commit 5 tokens"),
        ({"committed": [2, 3]}, "step 0 accepted 2 but committed 2"),
        ({"committed": [3, 2, 1]}, "2 accepted counts for 3 steps"),
        ({"committed": [2, 4], "output_ids": [0] * 7}, "step 0"),
    ],
)
def test_a_record_that_contradicts_itself_is_refused(change, message):
    with pytest.raises(RecordError, match=message):
        check_record(record([2, 1]) | change)


def test_flags_name_a_drafter_never_right_and_looping_text():
    assert flags([record([0] * 60)], drafts=True)[0].startswith("tau=1.00 in 60 steps")
    assert flags([record([0] * 60)], drafts=False) == []
    assert flags([record([0] * 49)], drafts=True) == []
    assert flags([record([0] * 60), record([1])], drafts=True) == []
    looping = record([1] * 30) | {"output_ids": [7, 8, 9] * 20 + [7]}
    assert flags([looping, record([1])], drafts=True) == ["repetition in 1/2 responses"]


def test_a_loop_is_periodic_and_long():
    assert loops([5] * 48) and loops(list(range(100)) + [1, 2, 3, 4] * 12)
    assert not loops([5] * 47) and not loops(list(range(60)))
    assert not loops(([1] * 23 + [2]) * 4)


def sums_of(records, suite="s"):
    return bootstrap.sums(suite, records, lambda r: sum(r["committed"]), lambda r: len(r["committed"]))


def many(prompts, seeds=(0,), gain=0, noise=3, key=0):
    rng = np.random.default_rng(key)
    base = rng.integers(0, noise + 1, size=(prompts, 20))
    return [record((base[p] + gain).tolist(), f"p{p}", s) for p in range(prompts) for s in seeds]


def test_sums_join_turns_and_keep_seeds_apart():
    part = sums_of([record([3], turn=0), record([0, 0], turn=1), record([1], seed=1)])
    assert part.seeds == (0, 1) and part.above.tolist() == [[6], [2]] and part.below.tolist() == [[3], [1]]
    assert part.value == 2


def test_intervals_are_reproducible_hold_the_estimate_and_shrink_with_prompts():
    few, lots = (bootstrap.ratio_interval(sums_of(many(n)), 500, 0.95) for n in (8, 200))
    again = bootstrap.ratio_interval(sums_of(many(8)), 500, 0.95)
    assert few == again and few.low < few.value < few.high
    assert lots.high - lots.low < (few.high - few.low) / 2


def test_the_interval_covers_the_truth_about_as_often_as_it_says():
    hits = 0
    for key in range(200):
        records = [record([int(x)], f"p{i}") for i, x in enumerate(np.random.default_rng(key).integers(0, 7, 60))]
        found = bootstrap.ratio_interval(sums_of(records), 300, 0.9)
        hits += found.low <= 4 <= found.high
    assert 0.82 <= hits / 200 <= 0.96


def test_seeds_that_differ_widen_the_interval():
    same = sums_of(many(30, seeds=(0, 1, 2)))
    apart = sums_of([r for s in range(3) for r in many(30, seeds=(s,), gain=s)])
    width = [i.high - i.low for i in (bootstrap.ratio_interval(p, 500, 0.95) for p in (same, apart))]
    assert width[1] > 2 * width[0]


@pytest.mark.parametrize("seeds", [2, 3, 5])
def test_intervals_cover_the_truth_although_drafters_differ_by_seed(seeds):
    """Truth: tau 4 on average over prompts and over drafters, which differ by 3.3 %; no gain of one over another."""
    rng, trials, held = np.random.default_rng(seeds), 150, np.zeros(2)

    def drafters(hardness):
        steps = np.full((seeds, len(hardness)), 30.0)
        drafter = 1 + 0.033 * rng.standard_normal((seeds, 1))
        above = 4 * steps * hardness * drafter * (1 + 0.05 * rng.standard_normal(steps.shape))
        return bootstrap.Sums("s", tuple(range(seeds)), tuple(map(str, range(len(hardness)))), above, steps)

    for _ in range(trials):
        hardness = 1 + 0.1 * rng.standard_normal(50)
        ours, base = drafters(hardness), drafters(hardness)
        tau = bootstrap.ratio_interval(ours, 400, 0.95)
        gain = bootstrap.gain_interval([ours], [base], 400, 0.95)
        held += [tau.low <= 4 <= tau.high, gain.low <= 0 <= gain.high]
    assert (held / trials >= 0.92).all() and (seeds < 5 or (held / trials < 0.995).all())


def test_one_seed_leaves_the_interval_to_the_prompts_and_every_seed_is_listed():
    records = [r for s in range(3) for r in many(30, seeds=(s,), gain=s)]
    alone = bootstrap.ratio_interval(sums_of([r for r in records if r["seed"] == 1]), 500, 0.95)
    found = bootstrap.ratio_interval(sums_of(records), 500, 0.95)
    assert alone.by_seed == (alone.value,) and found.by_seed[1] == alone.value
    assert np.diff(found.by_seed) == pytest.approx([1, 1])
    standard_error = 1 / np.sqrt(3)  # of three figures one apart; t with 2 degrees of freedom reaches 4.3
    assert (found.high - found.low) / 2 == pytest.approx(4.30 * standard_error, rel=0.08)
    assert found.within(1, 3).high == 3 and found.within(1, 3).low >= 1


def test_a_paired_gain_is_sharper_than_two_intervals_and_ignores_order():
    base, better = many(30, noise=9), many(30, noise=9, gain=1)
    gain = bootstrap.gain_interval([sums_of(better[::-1])], [sums_of(base)], 500, 0.95)
    alone = bootstrap.ratio_interval(sums_of(base), 500, 0.95)
    assert gain.value == pytest.approx(1 / sums_of(base).value)
    assert gain.low > 0 and gain.high - gain.low < (alone.high - alone.low) / alone.value


def test_no_gain_over_itself_and_none_without_common_prompts():
    part = sums_of(many(5))
    assert bootstrap.gain_interval([part], [part], 50, 0.95) == bootstrap.Interval(0, 0, 0, (0,))
    with pytest.raises(ValueError, match="no prompt in common"):
        bootstrap.gain_interval([part], [sums_of([record([1], "other")])], 50, 0.95)
    with pytest.raises(ValueError, match="no seed in common"):
        bootstrap.gain_interval([part], [sums_of(many(5, seeds=(1,)))], 50, 0.95)


def test_a_mean_over_suites_weighs_them_alike():
    small, large = sums_of(many(3, gain=2), "a"), sums_of(many(40), "b")
    found = bootstrap.mean_interval([small, large], 200, 0.95)
    assert found.value == pytest.approx((small.value + large.value) / 2) and found.low < found.value < found.high
