"""Speeds from timing rows: medians over interleaved repeats, and what the parts of a round predict.

Knows timing rows (see `harness/timing.py`). Does not measure anything.

Speed is total tokens over total seconds of one repeat; a speed-up is the ratio of two speeds **of the same
repeat** on the same prompts. The figure is the median over repeats, with the smallest and the largest beside
it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Any

from harness.report.inputs import GENERATE, PLAIN

Row = Mapping[str, Any]
Prompt = tuple[str, str]  # suite, prompt id
#: Slices of a round and the phases that make them: drafting is denoising and taking in what was verified, the host's
#: work is accepting, stopping and committing.
SLICES = {
    "draft": ("draft", "observe"),
    "head": ("head",),
    "relay": ("relay",),
    "verify": ("verify",),
    "host": ("accept", "commit"),
}
#: What a drafter pays for.
DRAFTING = ("draft", "head", "relay")


def speed_columns(
    rows: Iterable[Mapping[str, Any]], target: str, method: str, temperature: float, suite: str | None
) -> dict[str, float | None]:
    """Speed columns of one cell; `suite` None takes all suites together. None without rows."""
    mine = [
        row
        for row in rows
        if row["target"] == target and row["temperature"] == temperature and suite in (None, row.get("suite"))
    ]
    speeds, plain = _speeds(mine, method), _speeds(mine, PLAIN)
    ratios = _ratios(speeds, plain)
    timed, same = _beside_generate(mine)
    over_generate = _ratios(_speeds(same, method), _speeds(same, GENERATE))
    parts, plain_parts = round_parts(mine, method), round_parts(mine, PLAIN)
    columns: dict[str, float | None] = {
        "tokens_per_s": median(speeds.values()) if speeds else None,
        "speedup": median(ratios) if ratios else None,
        "speedup_low": min(ratios, default=None),
        "speedup_high": max(ratios, default=None),
        "timed_repeats": len(speeds) or None,
        "t_verify_ms": parts.get("verify"),
        "t_draft_ms": parts.get("draft"),
        "host_ms": parts.get("host"),
        "t_ar_ms": plain_parts.get("verify"),
        "speedup_predicted": None,
        "speedup_over_generate": median(over_generate) if over_generate else None,
        "generate_timed": len(timed) or None,
        "generate_same": len(_prompts(same)) if timed else None,
        "first_response_s": _first_response(rows, target, method, temperature),
    }
    if method != PLAIN and parts and plain_parts:
        columns["speedup_predicted"] = parts["tau"] * plain_parts["verify"] / (parts["verify"] + parts["draft"])
    return columns


def round_parts(rows: Sequence[Mapping[str, Any]], method: str) -> dict[str, float]:
    """Milliseconds a round by part, from the instrumented pass; `tau` of the same rounds. Empty without rows.

    host: what neither the target nor the drafter spent. The slices sum to the time of the rounds.
    """
    parts = [row for row in rows if row["kind"] == "phases" and row["method"] == method]
    steps = sum(row["steps"] for row in parts)
    if not steps:
        return {}
    slices = slices_of(parts)
    rounds = 1000 * sum(row["rounds_seconds"] for row in parts) / steps
    draft = sum(slices[name] for name in DRAFTING)
    return {
        "verify": slices["verify"],
        "draft": draft,
        "host": max(0.0, rounds - slices["verify"] - draft),
        "tau": sum(row["committed"] for row in parts) / steps,
    }


def slices_of(parts: Sequence[Row]) -> dict[str, float]:
    """Milliseconds a round by slice, each of its own phases alone; `parts` are rows of the instrumented pass."""
    steps = sum(row["steps"] for row in parts)
    return {
        name: 1000 * sum(row["phases"].get(phase, 0.0) for row in parts for phase in phases) / steps
        for name, phases in SLICES.items()
    }


def _beside_generate(rows: Sequence[Row]) -> tuple[set[Prompt], list[Row]]:
    """Prompts that `generate` was timed on, and all runs of those it answered as the baseline did: another text would
    be another task at another speed."""
    runs = [row for row in rows if row["kind"] == "run"]
    timed = _prompts(row for row in runs if row["method"] == GENERATE)
    unlike = _prompts(row for row in runs if row["method"] == GENERATE and not row["same_as_ar"])
    return timed, [row for row in runs if _prompts([row]) <= timed - unlike]


def _prompts(rows: Iterable[Row]) -> set[Prompt]:
    return {(row["suite"], row["prompt_id"]) for row in rows}


def _speeds(rows: Iterable[Mapping[str, Any]], method: str) -> dict[int, float]:
    """Tokens a second by repeat."""
    totals: dict[int, list[float]] = {}
    for row in rows:
        if row["kind"] == "run" and row["method"] == method:
            total = totals.setdefault(row["repeat"], [0.0, 0.0])
            total[0] += row["tokens"]
            total[1] += row["seconds"]
    return {repeat: tokens / seconds for repeat, (tokens, seconds) in totals.items()}


def _ratios(speeds: Mapping[int, float], base: Mapping[int, float]) -> list[float]:
    """Speed-ups of the repeats that both have."""
    return [speeds[repeat] / base[repeat] for repeat in sorted(set(speeds) & set(base))]


def _first_response(rows: Iterable[Mapping[str, Any]], target: str, method: str, temperature: float) -> float | None:
    """Seconds of the very first response, warm-up and allocation included."""
    for row in rows:
        if (row["kind"], row["target"], row["method"], row["temperature"]) == (
            "first",
            target,
            method,
            temperature,
        ):
            return row["seconds"]
    return None
