"""Comparisons: gains against hand computation, what is paired, what is left out, and whether gains follow."""

from __future__ import annotations

import math

import numpy as np
import pytest

from harness.report.cells import Settings
from harness.report.comparisons import compare, follows
from harness.report.inputs import Inputs, Key
from harness.score.bootstrap import gain_interval, paired, sums

SETTINGS = Settings(resamples=100)
SUITES = ("a", "b", "c")


def response(suite, seed, prompt, steps, knew=0):
    """Eight tokens in `steps` rounds.  Two masks are relayed, in the second round; both its drafts are wrong, and the
    rejected rows knew the first `knew` of the two tokens."""
    output, kept = list(range(100, 109)), [0] * (steps - 1) + [8 - steps]
    stale = [output[2] if knew > 0 else 0, output[3] if knew > 1 else 0]
    argmax = [[1] * (a + 1) + (stale if at == 0 else []) for at, a in enumerate(kept)]
    return {"suite": suite, "seed": seed, "prompt_id": f"{suite}/{prompt}", "output_ids": output, "accepted": kept,
            "committed": [a + 1 for a in kept], "trace": {"proposals": [[0, 0]] * steps, "argmax": argmax}}  # fmt: skip


def inputs_of(records, done=None, suites=SUITES):
    return Inputs(
        targets=("tiny",),
        methods=("dflash",),
        temperatures=(0.0,),
        suites=suites,
        records={Key("tiny", entrant, 0.0, suite): rows for (entrant, suite), rows in records.items()},
        digests={},
        done=done or {},
    )


@pytest.fixture
def records():
    """dflash takes 4 steps a response everywhere, seed 1 of it 8 where the prompt is 1; dflow 4, 2 and 2."""
    base = {
        ("dflash", suite): [response(suite, s, p, 8 if (s, p) == (1, 1) else 4, knew) for s in (0, 1) for p in (0, 1)]
        for suite, knew in zip(SUITES, (0, 1, 2), strict=True)
    }
    better = {
        ("dflow", suite): [response(suite, s, p, steps) for s in (0, 1) for p in (0, 1)]
        for suite, steps in zip(SUITES, (4, 2, 2), strict=True)
    }
    return base | better


def rows_of(records, pairs=(("dflow", "dflash"),), **more):
    rows, notes = compare(inputs_of(records, **more), pairs, SETTINGS)
    return {row["suite"]: row for row in rows}, notes


def test_gains_lengths_and_rescue_equal_hand_computation(records):
    rows, notes = rows_of(records)
    assert list(rows) == ["a", "b", "c", "avg"] and notes == []
    # dflash: 32 tokens in 4 + 4 + 4 + 8 steps; dflow: 32 in 16, then in 8
    assert [rows[s]["tau_second"] for s in rows] == [pytest.approx(1.6)] * 4
    assert [rows[s]["tau_first"] for s in rows] == pytest.approx([2, 4, 4, 10 / 3])
    assert [rows[s]["gain"] for s in rows] == pytest.approx([0.25, 1.5, 1.5, 10 / 3 / 1.6 - 1])
    # by seed: 16 tokens in 8 steps or in 12; the average is over suites before it is divided
    assert rows["a"]["gain_by_seed"] == pytest.approx((0, 0.5))
    assert rows["avg"]["gain_by_seed"] == pytest.approx((10 / 3 / 2 - 1, 10 / 3 / (4 / 3) - 1))
    assert [rows[s]["rescue_1_4"] for s in rows] == pytest.approx([0, 0.5, 1, 0.5])
    assert {row["seeds"] for row in rows.values()} == {2}
    for row in rows.values():
        assert row["gain"] == pytest.approx(row["tau_first"] / row["tau_second"] - 1)
        assert row["gain_low"] <= row["gain"] <= row["gain_high"]


def test_rescue_is_that_of_the_second(records):
    rows, _ = rows_of(records, pairs=[("dflash", "dflow")])
    assert [rows[s]["rescue_1_4"] for s in rows] == [0, 0, 0, 0] and rows["b"]["gain"] == pytest.approx(-0.6)


def test_a_seed_of_one_side_alone_is_left_out_of_everything_and_named(records):
    for suite in SUITES:
        records["dflash", suite] += [response(suite, 7, p, 2, knew=2) for p in (0, 1)]
        records["dflow", suite] = [r for r in records["dflow", suite] if r["seed"] == 1]
    rows, notes = rows_of(records)
    assert rows["avg"]["seeds"] == 1 and len(rows["avg"]["gain_by_seed"]) == 1
    assert rows["a"]["tau_second"] == pytest.approx(16 / 12) and rows["a"]["gain"] == pytest.approx(0.5)
    assert rows["a"]["rescue_1_4"] == 0 and rows["c"]["rescue_1_4"] == 1
    assert notes == ["`dflow` over `dflash` on tiny, T = 0: left out, for only `dflash` has it: seed 0, 7."]


def test_a_prompt_of_one_side_alone_is_left_out(records):
    records["dflow", "a"] = [r for r in records["dflow", "a"] if r["prompt_id"] == "a/0"]
    rows, _ = rows_of(records)
    assert rows["a"]["tau_second"] == 2 and rows["a"]["gain"] == 0


def test_pairing_draws_the_same_prompts_for_both(records):
    """One prompt is eight times as long as the other under both: the gain does not vary with which is drawn."""
    for entrant, steps in (("dflash", (2, 8)), ("dflow", (1, 4))):
        records[entrant, "a"] = [response("a", 0, p, s) for p, s in enumerate(steps)]
    rows, _ = rows_of({key: rows for key, rows in records.items() if key[1] == "a"}, suites=("a",))
    assert [rows["a"][name] for name in ("gain", "gain_low", "gain_high")] == pytest.approx([1, 1, 1])


def test_paired_keeps_what_both_have_and_the_gain_is_its_ratio(records):
    def parts(entrant, rows):
        return [sums("a", rows, lambda r: sum(r["committed"]), lambda r: len(r["committed"]))]

    ours = [r for r in records["dflow", "a"] if r["prompt_id"] == "a/1"]
    theirs = [r for r in records["dflash", "a"] if r["seed"] == 1]
    sides = parts("dflow", ours), parts("dflash", theirs)
    (one,), (other,) = paired(*sides)
    assert one.seeds == other.seeds == (1,) and one.prompts == other.prompts == ("a/1",)
    assert gain_interval(*sides, 50, 0.95).value == pytest.approx(one.value / other.value - 1) == pytest.approx(1.0)


def test_without_a_suite_there_is_no_average_and_without_records_no_row(records):
    part = {key: rows for key, rows in records.items() if key != ("dflow", "b")}
    rows, notes = rows_of(part)
    assert list(rows) == ["a", "c"]
    assert notes == [
        "`dflow` over `dflash` on tiny, T = 0: no average, for both have no records of b with the same seed."
    ]
    rows, notes = rows_of(records, pairs=[("dflow", "domino")])
    assert rows == {} and notes == [
        "`dflow` over `domino` on tiny, T = 0 is left out: they have no records of the same suite and seed."
    ]
    apart = {key: [r | {"seed": 5} if key[0] == "dflow" else r for r in rows] for key, rows in records.items()}
    assert rows_of(apart)[0] == {}


def test_suites_that_share_no_seed_among_them_have_no_average(records):
    for at, suite in enumerate(SUITES):
        records["dflow", suite] = [r for r in records["dflow", suite] if r["seed"] == at % 2]
    rows, notes = rows_of(records)
    assert list(rows) == ["a", "b", "c"] and "no average, for no seed is in all suites of both." in notes[0]


def test_a_side_without_traces_has_a_gain_and_no_rescue_rate(records):
    bare = {key: [r | {"trace": None} for r in rows] for key, rows in records.items()}
    rows, _ = rows_of(bare)
    assert rows["a"]["gain"] == pytest.approx(0.25) and all(math.isnan(row["rescue_1_4"]) for row in rows.values())


def test_training_stands_beside_a_gain_for_each_side(records):
    done = {
        ("tiny", "dflash"): [{"seconds": 60, "plateau": True}, {"seconds": 180, "plateau": False}],
        ("tiny", "dflow"): [{"plateau": True}],
    }
    rows, _ = rows_of(records, done=done)
    assert rows["avg"]["train_minutes_second"] == 2 and rows["avg"]["train_minutes_first"] is None
    assert rows["a"]["flags"] == "dflash under-trained: 1 of 2 drafters had not reached their plateau"


def test_rows_go_by_temperature_target_and_pair_in_the_order_of_the_configuration(records):
    pairs = [("dflow", "dflash"), ("dflash", "dflow")]
    rows, _ = compare(inputs_of(records), pairs, SETTINGS)
    assert [(row["first"], row["suite"]) for row in rows] == [
        (first, suite) for first, _ in pairs for suite in (*SUITES, "avg")
    ]


def points(rescue, gain):
    return [{"suite": str(i), "rescue_1_4": x, "gain": y} for i, (x, y) in enumerate(zip(rescue, gain, strict=True))]


def test_correlations_equal_hand_computation_and_know_ties():
    rescue, gain = [0.1, 0.2, 0.3, 0.4], [1.0, 2.0, 2.0, 8.0]
    pearson, spearman, suites = follows([*points(rescue, gain), {"suite": "avg", "rescue_1_4": 9.0, "gain": 0.0}])
    assert pearson == pytest.approx(np.corrcoef(rescue, gain)[0, 1]) and suites == 4
    # ranks 0, 1.5, 1.5, 3 against 0, 1, 2, 3
    assert spearman == pytest.approx(4.5 / math.sqrt(5 * 4.5))
    assert follows(points([0.1, 0.2, 0.3], [3, 2, 1])) == pytest.approx((-1, -1, 3))


def test_correlations_of_too_little_are_none():
    for rows in (points([0.1, 0.2], [1, 2]), points([0.1, math.nan, 0.2], [1, 2, 3]), points([0.1] * 3, [1, 2, 3])):
        assert all(map(math.isnan, follows(rows)[:2]))
