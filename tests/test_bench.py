"""Benchmarks of parts: nothing wrong is timed, and what is timed is what is said."""

import csv
import io
import time

import pytest
import torch

from harness.bench import relay
from harness.bench.__main__ import main
from harness.bench.clock import compare

CPU = torch.device("cpu")


def test_a_slower_call_is_slower_and_the_first_call_counts_nowhere():
    first = iter([True])

    def warming():
        time.sleep(0.1 if next(first, False) else 0.002)

    found = compare({"quick": lambda: time.sleep(0.002), "slow": lambda: time.sleep(0.006), "warming": warming}, CPU, 3)
    assert 2.2 < found["slow"].median / found["quick"].median < 4
    assert found["warming"].median < 2 * found["quick"].median
    for timing in found.values():
        assert timing.fastest <= timing.median <= timing.slowest


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
