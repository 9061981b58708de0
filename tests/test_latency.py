"""Where a round's time goes: every slice by itself, what looking costs, and the figure beside the paper's numbers."""

from __future__ import annotations

import json
from contextlib import contextmanager

import pytest
import torch
from matplotlib import pyplot as plt
from tiny import tiny_target

from harness import clocks
from harness.bench.rounds import COLUMNS as ROUND_COLUMNS
from harness.bench.table import csv_text
from harness.clocks import PhaseClock, RoundsClock
from harness.config import load_config
from harness.decode import DecodeSettings, Prompt
from harness.report.columns import LATENCY, read_table, table_text
from harness.report.figures_latency import PRINTED, draw_latency, read_scripted
from harness.report.inputs import ReportError
from harness.report.latency import ROUND, build_latency, latency_of
from harness.report.speed import SLICES, round_parts, slices_of
from harness.timing import Workload, listened_to, measure
from methods.contract import Proposal
from tests.test_timing import Untapped

NAP = 0.005
PLACES = ("draft", "head", "relay", "observe")


@pytest.fixture
def ticks(monkeypatch):
    def set_to(*times):
        left = iter(times)
        monkeypatch.setattr(clocks.time, "perf_counter", lambda: next(left))

    return set_to


def test_gaps_between_phases_are_rounds_and_no_phase(ticks):
    clock = PhaseClock()
    ticks(1.0, 2.0, 5.0, 6.0, 9.0, 9.5)
    for name in ("draft", "verify", "draft"):
        with clock.phase(name):
            pass
    assert clock.seconds == {"draft": 1.5, "verify": 1.0} and clock.rounds_seconds == 8.5
    clock.restart()
    assert clock.seconds == {} and clock.rounds_seconds == 0


def test_an_outer_phase_stands_still_while_an_inner_one_runs(ticks):
    clock = PhaseClock()
    ticks(0.0, 1.0, 3.0, 7.0, 8.0, 16.0)
    with clock.phase("draft"):
        with clock.phase("relay"):
            pass
        with clock.phase("head"):
            pass
    assert clock.seconds == {"draft": 1 + 4 + 8, "relay": 2, "head": 1} and clock.rounds_seconds == 16


def test_a_phase_that_fails_is_left(ticks):
    clock = PhaseClock()
    ticks(0.0, 1.0, 2.0, 4.0)
    with pytest.raises(ZeroDivisionError), clock.phase("draft"):
        1 / 0  # noqa: B018
    with clock.phase("verify"):
        pass
    assert clock.seconds == {"draft": 1, "verify": 2}


def test_a_clock_of_rounds_looks_at_both_ends_alone(ticks):
    clock = RoundsClock()
    ticks(1.0, 2.0, 7.0)
    for name in ("draft", "verify"):
        with clock.phase(name):
            pass
    assert clock.seconds == {} and clock.rounds_seconds == 6
    clock.restart()
    assert clock.rounds_seconds == 0


def test_on_a_gpu_ends_are_events_that_are_waited_for_once(monkeypatch):
    waited, made = [], []

    class Event:
        def __init__(self, enable_timing):
            assert enable_timing
            made.append(self)

        def record(self):
            self.at = 1000.0 * len(made)

        def elapsed_time(self, other):
            return other.at - self.at

        def synchronize(self):
            waited.append(self)

    monkeypatch.setattr(clocks.torch.cuda, "Event", Event)
    clock = PhaseClock("cuda:0")
    with clock.phase("draft"), clock.phase("head"):
        pass
    assert waited == [], "nothing waits for the sake of being timed"
    assert clock.seconds == {"draft": 2.0, "head": 1.0} and set(waited) == {made[-1]}


class Sleepy(Untapped):
    """A drafter with phases of its own that sleeps in one of them."""

    def __init__(self, place, rows, capacity):
        self.place, self.phases = place, None

    @contextmanager
    def inside(self, name):
        if self.phases is None:
            yield
        else:
            with self.phases.phase(name):
                yield

    def nap(self, place):
        if self.place == place:
            self.watch.sleep(NAP)

    def propose(self, rows, sampling=None):
        self.nap("draft")
        for name in ("relay", "head"):
            with self.inside(name):
                self.nap(name)
        return Proposal(torch.full((len(rows), 3), 65))

    def observe(self, rows, verdict):
        self.nap("observe")


class Watch:
    """Time that passes only where somebody sleeps, and a microsecond at every look: no busy machine moves it."""

    now = 0.0

    def perf_counter(self):
        self.now += 1e-6
        return self.now

    def sleep(self, seconds):
        self.now += seconds


@pytest.fixture(scope="module")
def rows():
    watch, genuine = Watch(), clocks.time
    clocks.time = Sleepy.watch = watch
    try:
        return timed_rows()
    finally:
        clocks.time = genuine


def timed_rows():
    prompts = tuple(Prompt(f"p{i}", tuple(range(40, 46 + i))) for i in range(2))
    load = Workload("s", prompts, DecodeSettings(0.0, 0, 12), ())
    arms = {str(place): lambda r, c, place=place: Sleepy(place, r, c) for place in (None, *PLACES)}
    measured = list(measure(tiny_target(), arms, [load], repeats=1, warmup=1))
    return [row for row in measured if row["kind"] == "phases"]


def of(rows, method):
    return [row for row in rows if row["method"] == method]


@pytest.mark.parametrize("place", PLACES)
def test_time_slept_in_one_slice_grows_that_slice_and_no_other(rows, place):
    plain, slept = slices_of(of(rows, "None")), slices_of(of(rows, place))
    grown = {name: slept[name] - plain[name] for name in SLICES}
    mine = "draft" if place == "observe" else place
    # nobody is shown the verdict that ends a response
    share = 1 - 2 / sum(row["steps"] for row in of(rows, place)) if place == "observe" else 1
    assert grown.pop(mine) == pytest.approx(1000 * NAP * share)
    assert all(abs(change) < 1e-6 for change in grown.values()), grown


def test_slices_sum_to_what_a_round_takes_when_nobody_looks(rows):
    for place in PLACES:
        mine = of(rows, place)
        total, steps = sum(slices_of(mine).values()), sum(row["steps"] for row in mine)
        whole = 1000 * sum(row["whole_seconds"] for row in mine) / steps
        assert total == pytest.approx(whole, rel=0.05)
        assert round_parts(mine, place)["draft"] == pytest.approx(total, rel=0.05), "nothing else takes time here"


def test_drafters_tell_the_clock_that_is_given_and_plain_decoding_has_none():
    clock = PhaseClock()
    assert listened_to(None, clock) is None
    assert listened_to(lambda rows, capacity: Sleepy(None, rows, capacity), clock)(1, 9).phases is clock


def row(method, suite="a", steps=10, whole=1.1, **phases):
    shares = {"verify": 0.6, "draft": 0.1, "observe": 0.1, "head": 0.05, "relay": 0.05, "accept": 0.06, "commit": 0.04}
    return {
        "kind": "phases",
        "target": "pocket",
        "method": method,
        "temperature": 0.0,
        "suite": suite,
        "steps": steps,
        "committed": 3 * steps,
        "whole_seconds": whole,
        "rounds_seconds": 1.2,
        "phases": shares | phases,
        "machine": {"device": "a machine"},
    }


@pytest.fixture
def made():
    config = load_config("pocket", {"methods": ["ar", "dflow"]})
    timed = [row("dflow"), row("dflow", "b", 30, 2.0, verify=3.0), row("ar", draft=0.0)]
    return build_latency([*timed, row("dflow") | {"kind": "run"}, row("other")], config)


def test_slices_are_of_all_suites_together_with_the_smallest_and_the_largest_beside_them(made):
    found = {(one["method"], one["slice"]): one for one in made}
    assert [one["slice"] for one in made] == 2 * [*SLICES, ROUND] and made[0]["method"] == "ar"
    verify = found["dflow", "verify"]
    assert (verify["ms"], verify["low"], verify["high"]) == (pytest.approx(90), pytest.approx(60), pytest.approx(100))
    assert found["dflow", "draft"]["ms"] == pytest.approx(10) and found["dflow", "host"]["ms"] == pytest.approx(5)
    whole = found["dflow", ROUND]
    assert whole["ms"] == pytest.approx(110) and whole["whole_ms"] == pytest.approx(77.5)
    assert whole["gap"] == pytest.approx(110 / 77.5 - 1) and verify["share"] == pytest.approx(90 / 110)
    assert (whole["rounds"], whole["responses"]) == (40, 2)


def written(tmp_path, rows):
    path = tmp_path / "timing" / "pocket.jsonl"
    path.parent.mkdir()
    path.write_text("".join(json.dumps(one) + "\n" for one in rows))
    return load_config("pocket", {"output_dir": str(tmp_path), "methods": ["ar", "dflow"]})


def test_rows_without_whole_rounds_and_no_rows_at_all_are_refused(tmp_path):
    with pytest.raises(ReportError, match="no round was timed"):
        latency_of(load_config("pocket", {"output_dir": str(tmp_path / "none")}))
    old = {key: value for key, value in row("dflow").items() if key != "whole_seconds"}
    with pytest.raises(ReportError, match="timed no whole rounds .* time again"):
        latency_of(written(tmp_path, [old]))


def gpu_runs(tmp_path):
    """A committed run: what `python -m harness.bench round` writes."""
    facts = {"shapes": "qwen3-8b", "device": "a GPU", "draft": 3, "verify": 20, "accept": 0.5, "commit": 0.25}
    rows = [
        facts | {"method": method, "batch": batch, "relay": relay, "observe": 1.0}
        for method, relay in (("dflash", None), ("dflow", 0.125))
        for batch in (1, 8)
    ]
    path = tmp_path / "gpu" / "a-gpu-2026-01-01" / "round-qwen3-8b.csv"
    path.parent.mkdir(parents=True)
    path.write_text(csv_text(rows, ROUND_COLUMNS, {"device": "a GPU"}))
    return tmp_path / "gpu"


def test_committed_rounds_of_a_gpu_are_read_slice_by_slice(tmp_path):
    rows = read_scripted(gpu_runs(tmp_path))
    found = {(row["method"], row["slice"]): float(row["ms"]) for row in rows}
    assert found["dflow", "draft"] == 4 and found["dflow", "host"] == 0.75 and found["dflow", "relay"] == 0.125
    assert found["dflash", "relay"] == 0 and found["dflash", "verify"] == 20 and len(rows) == 2 * len(SLICES)
    assert read_scripted(tmp_path / "nowhere") == []


def test_the_figure_stacks_our_slices_beside_the_papers(made, tmp_path):
    path = tmp_path / "latency.csv"
    path.write_text(table_text(LATENCY, made))
    printed = [
        {"metric": f"latency_{name}", "method": "dflow", "value": value}
        for name, value in (("verify", "37.55"), ("draft", "6.09"), ("relay", "0.51"))
    ]
    gpu = read_scripted(gpu_runs(tmp_path))
    figure = draw_latency(read_table(path, LATENCY, "x"), printed, gpu)
    titles = [axis.get_title() for axis in figure.axes]
    assert titles == ["pocket, T = 0", "qwen3-8b, a GPU\nscripted acceptance", PRINTED]
    ours, theirs = figure.axes[0], figure.axes[-1]
    assert max(patch.get_y() + patch.get_height() for patch in ours.patches) == pytest.approx(110)
    assert [patch.get_height() for patch in theirs.patches] == pytest.approx([37.55, 6.09, 0.51])
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["host", "relay", "head", "draft", "verify"]
    plt.close("all")
    with pytest.raises(ReportError, match="no slices"):
        draw_latency([], printed)
