"""Benchmarks of parts: nothing wrong is timed, and what is timed is what is said."""

import csv
import io
import itertools

import pytest
import torch

from harness.bench import clock, relay
from harness.bench.__main__ import main
from harness.bench.clock import compare

CPU = torch.device("cpu")


def test_a_slower_call_is_slower_and_the_first_call_counts_nowhere(monkeypatch):
    """On a clock that the calls themselves move, so that a busy machine changes nothing."""
    now, order = [0.0], []
    monkeypatch.setattr(clock.time, "perf_counter", lambda: now[0])

    def call(name, *seconds):
        waits = itertools.chain(seconds, itertools.repeat(seconds[-1]))

        def run():
            order.append(name)
            now[0] += next(waits)

        return run

    calls = {"quick": call("quick", 0.002), "slow": call("slow", 0.006), "late": call("late", 9.0, 0.002)}
    found = compare(calls, CPU, 3)
    assert found["quick"].median == pytest.approx(2000) and found["slow"].median == pytest.approx(6000)
    assert found["late"].median == found["late"].slowest == pytest.approx(2000)
    assert [name for name, _ in itertools.groupby(order)][-9:] == [
        "quick",
        "slow",
        "late",
    ] * 3  # block by block in turn


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_references_pass_their_own_gate_at_every_shape(dtype):
    for case in relay.cases(96, 3, dtype, CPU):
        for name, run in relay.implementations(case, CPU, compiled=False).items():
            relay.refuse_wrong(case, name, run)


@pytest.mark.parametrize("operation", [0, 1])
def test_an_implementation_that_errs_in_value_or_gradient_is_not_timed(operation):
    case = relay.cases(32, 2, torch.float32, CPU)[operation]
    (right,) = relay.implementations(case, CPU, compiled=False).values()
    with pytest.raises(
        ValueError, match=f"wrong {case.operation} at width 32, batch 2.*values differ.*nothing is timed"
    ):
        relay.refuse_wrong(case, "wrong", lambda *given: right(*given) + 0.01)
    with pytest.raises(ValueError, match="gradient 0 differ"):
        relay.refuse_wrong(case, "wrong", lambda *given: right(given[0].detach() + 0 * given[0], *given[1:]))


def test_a_round_leaves_live_and_dead_slots():
    gather, film = relay.cases(16, 8, torch.float32, CPU)
    live = gather.inputs[1] >= 0
    assert live.any() and not live.all() and torch.equal(live, film.inputs[1])
    assert gather.inputs[1].max() < len(gather.inputs[0])


def test_the_command_writes_a_row_for_each_measurement(capsys):
    main(["relay", "--device", "cpu", "--widths", "16", "--batches", "1", "--dtypes", "float32", "--no-compile"])
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [(r["operation"], r["pass"]) for r in rows] == [
        (operation, kind) for operation in ("gather", "film") for kind in ("forward", "forward+backward")
    ]
    assert all(float(r["us"]) > 0 and r["device"] and r["over_fused"] == "" for r in rows)


def test_a_device_that_is_not_there_is_one_line(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["relay", "--device", "nowhere"])
    assert ended.value.code == 2 and len(capsys.readouterr().err.strip().splitlines()) == 1
