"""Whether files of a run are whole before anything is computed from them.

Knows what rows must hold and what must agree between files. Reads nothing, computes nothing. A number over half
of the prompts, or over some of them twice, looks like any other; so what is not whole is an error.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

Rows = Sequence[Mapping[str, Any]]
IDENTITY = ("target", "method", "suite", "temperature", "seed")
RECORD_FIELDS = (*IDENTITY, "prompt_id", "turn", "output_ids", "accepted", "committed", "score", "verdict")
TIMING_FIELDS = {
    "first": ("seconds",),
    "run": ("suite", "repeat", "tokens", "seconds"),
    "phases": ("steps", "committed", "rounds_seconds", "phases"),
}
LOAD_FIELDS = ("kind", "target", "suite", "method", "concurrency", "max_proposals", "prompts", "seconds", "machine")
DECODE_AGAIN = "delete the file and decode again (python -m harness.run_suite)"
LOAD_AGAIN = "delete the file and measure again (python -m harness.throughput)"
TIME_AGAIN = "delete the file and time again (python -m harness.timing)"


class ReportError(ValueError):
    """A file of the run is missing or unusable. The message names it and the mend."""


def check_records(path: Path, rows: Rows, identity: Mapping[str, Any], prompts: int) -> None:
    """Raise ReportError unless the rows are those of one cell and seed, each prompt and turn once.

    identity: the values of `IDENTITY` that the path stands for. prompts: how many the configuration asks for.
    """
    for number, row in enumerate(rows, 1):
        _check_fields(path, number, row, RECORD_FIELDS, DECODE_AGAIN)
        for name in IDENTITY:
            if row[name] != identity[name]:
                said = f"{name} is {row[name]!r}, the path says {identity[name]!r}"
                raise ReportError(f"{path}, record {number}: {said}; {DECODE_AGAIN}")
    (twice, count), *_ = Counter(map(asked, rows)).most_common(1) or [(None, 0)]
    if count > 1:
        raise ReportError(f"{path}: prompt {twice[0]}, turn {twice[1]} stands there {count} times; {DECODE_AGAIN}")
    found = len({row["prompt_id"] for row in rows})
    if found != prompts:
        raise ReportError(f"{path} holds {found} of the {prompts} prompts that the suite asks for; {DECODE_AGAIN}")


def check_same_prompts(files: Mapping[Path, Rows]) -> None:
    """Raise ReportError unless all files of one target and suite answer the same prompts and turns."""
    sets = {path: set(map(asked, rows)) for path, rows in files.items()}
    for path, found in sets.items():
        first, whole = next(iter(sets.items()))
        if found != whole:
            prompt, turn = min(found ^ whole)
            raise ReportError(
                f"{path} and {first} answer different prompts (only one has {prompt}, turn {turn}); a comparison would "
                f"mean nothing: {DECODE_AGAIN}"
            )


def check_timing(path: Path, rows: Rows) -> None:
    """Raise ReportError for a timing row without what speeds are made from."""
    for number, row in enumerate(rows, 1):
        _check_fields(path, number, row, ("kind", "target", "method", "temperature", "machine"), TIME_AGAIN)
        if row["kind"] not in TIMING_FIELDS:
            raise ReportError(f"{path}, row {number}: kind {row['kind']!r} is unknown; {TIME_AGAIN}")
        _check_fields(path, number, row, TIMING_FIELDS[row["kind"]], TIME_AGAIN)


def check_loads(path: Path, rows: Rows, methods: Sequence[str]) -> None:
    """Raise ReportError for a row without what throughput is made from, or a repeat of a level that some of `methods`
    lack: speed-ups are of one repeat."""
    there: dict[tuple[Any, ...], set[str]] = {}
    for number, row in enumerate(rows, 1):
        _check_fields(path, number, row, LOAD_FIELDS, LOAD_AGAIN)
        if row["kind"] == "load":
            _check_fields(path, number, row, ("repeat", "tokens", "steps", "rounds", "unlike_ar"), LOAD_AGAIN)
            there.setdefault((row["suite"], row["concurrency"], row["repeat"]), set()).add(row["method"])
    for (suite, level, repeat), found in there.items():
        if missing := set(methods) - found:
            place = f"{suite}, concurrency {level}, repeat {repeat}"
            raise ReportError(f"{path} has no row of {', '.join(sorted(missing))} for {place}; {LOAD_AGAIN}")


def asked(record: Mapping[str, Any]) -> tuple[str, int]:
    """What a record answers."""
    return record["prompt_id"], record["turn"]


def _check_fields(path: Path, number: int, row: Any, names: Sequence[str], mend: str) -> None:
    missing = [name for name in names if not isinstance(row, Mapping) or name not in row]
    if missing:
        raise ReportError(f"{path}, row {number} has no field {', '.join(missing)}; {mend}")
