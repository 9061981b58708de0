"""Acceptance length, under one definition, and its other conventions under names of their own.

Knows the step lists of records. Does not know files, intervals or tables.

* **tau**, the headline: tokens committed per verify step, bonus token in, prefill token out, after stops and
  budget; total tokens over total steps.
* `tau_macro`: the same, but a mean of response means.
* `tau_unclipped`: raw accepted + 1 (the last step is not cut at a stop or the budget), mean of response
  means: the convention of the DFlash code, so the one to set beside the numbers papers print.
* `tau_with_prefill`: output tokens, the prefill's token included, over verify steps: the convention of serving engines.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

#: Fewer steps than this prove nothing about a drafter that was never right.
STEPS_TO_JUDGE = 50
#: Of answers that are code, where code may not be run.
NOT_RUN = "no accuracy: its code was not run (run_code: false)"
_LOOP_WINDOW, _LOOP_PERIOD = 48, 12


class RecordError(ValueError):
    """A record contradicts itself. The message names it."""


@dataclass(frozen=True)
class Acceptance:
    """Step statistics of a set of responses; a mean without steps is NaN.

    histogram[i]: verify steps that accepted i proposals, before stops and budget.
    """

    prompts: int
    responses: int
    steps: int
    tokens: int
    committed: int
    tau: float
    tau_macro: float
    tau_unclipped: float
    tau_with_prefill: float
    histogram: tuple[int, ...]


def check_record(record: Mapping[str, Any]) -> None:
    """Raise RecordError unless the steps of a record account for exactly its output."""
    name = f"record {record['prompt_id']} turn {record['turn']} ({record.get('method')}, {record.get('suite')})"
    accepted, committed = record["accepted"], record["committed"]
    if len(accepted) != len(committed):
        raise RecordError(f"{name}: {len(accepted)} accepted counts for {len(committed)} steps; decode it again")
    if sum(committed) + 1 != len(record["output_ids"]):
        raise RecordError(
            f"{name}: steps commit {sum(committed)} tokens and the prefill 1, the output has "
            f"{len(record['output_ids'])}; "
            "decode it again"
        )
    for step, (raw, kept) in enumerate(zip(accepted, committed, strict=True)):
        whole = step < len(committed) - 1
        if not 1 <= kept <= raw + 1 or (whole and kept != raw + 1):
            raise RecordError(f"{name}: step {step} accepted {raw} but committed {kept}; only a last step may be cut")


def acceptance(records: Iterable[Mapping[str, Any]]) -> Acceptance:
    """Step statistics of checked records (any number of prompts, turns and seeds)."""
    rows = list(records)
    for record in rows:
        check_record(record)
    stepped = [record for record in rows if record["committed"]]
    steps = sum(len(record["committed"]) for record in stepped)
    committed = sum(sum(record["committed"]) for record in stepped)
    tokens = sum(len(record["output_ids"]) for record in rows)
    counts = Counter(raw for record in stepped for raw in record["accepted"])
    return Acceptance(
        prompts=len({record["prompt_id"] for record in rows}),
        responses=len(rows),
        steps=steps,
        tokens=tokens,
        committed=committed,
        tau=_ratio(committed, steps),
        tau_macro=_ratio(sum(response_mean(r) for r in stepped), len(stepped)),
        tau_unclipped=_ratio(sum(response_mean_unclipped(r) for r in stepped), len(stepped)),
        tau_with_prefill=_ratio(tokens, steps),
        histogram=tuple(counts.get(i, 0) for i in range(max(counts, default=-1) + 1)),
    )


def response_mean(record: Mapping[str, Any]) -> float:
    """Committed tokens per step of one response with at least one step."""
    return sum(record["committed"]) / len(record["committed"])


def response_mean_unclipped(record: Mapping[str, Any]) -> float:
    """Raw accepted + 1 per step of one response with at least one step."""
    return sum(record["accepted"]) / len(record["accepted"]) + 1


def loops(output_ids: Sequence[int]) -> bool:
    """Whether a response ends in a loop: its last 48 tokens repeat with a period of at most 12.

    A drafter agrees easily with a target that repeats itself, so such acceptance says little.
    """
    tail = list(output_ids[-_LOOP_WINDOW:])
    if len(tail) < _LOOP_WINDOW:
        return False
    return any(tail[period:] == tail[:-period] for period in range(1, _LOOP_PERIOD + 1))


def flags(records: Sequence[Mapping[str, Any]], drafts: bool) -> list[str]:
    """What a reader must know before believing a cell. `drafts`: the method has a drafter at all."""
    found = []
    steps = sum(len(record["accepted"]) for record in records)
    if drafts and steps >= STEPS_TO_JUDGE and not any(any(record["accepted"]) for record in records):
        found.append(f"tau=1.00 in {steps} steps: no proposal was ever accepted")
    if any(record.get("verdict") == "not_run" for record in records):
        found.append(NOT_RUN)
    looping = sum(loops(record["output_ids"]) for record in records)
    if looping:
        found.append(f"repetition in {looping}/{len(records)} responses")
    return found


def _ratio(above: float, below: float) -> float:
    return above / below if below else float("nan")
