"""The columns of `cells.csv`, `comparisons.csv` and `positions.csv`, and their text: written by one stage, read
by tables and figures.

Knows names and format. Does not know how a value comes about, nor where it is shown.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.gauge import POSITION_COUNTS, POSITION_RATES
from harness.report.inputs import ReportError

#: A row as read: text by column, empty where there is no value.
Cell = dict[str, str]
#: The suite of rows of positions.csv that stand for all suites together.
EVERY_SUITE = "all"
#: What the verifier knew; see `harness/gauge.py`.
KNOWN = (
    "full_acceptance",
    "relay_rounds",
    "mean_live_masks",
    "stale_right",
    "rescue",
    "rescue_1_4",
    "oracle_tau",
    "oracle_gain",
)
COLUMNS = (
    *("target", "method", "temperature", "suite", "seeds", "prompts", "responses", "steps", "tokens"),
    *("tau", "tau_low", "tau_high", "tau_by_seed", "gain", "gain_low", "gain_high", "gain_by_seed"),
    *("tau_macro", "tau_with_prefill", "tau_unclipped", "tau_unclipped_low", "tau_unclipped_high"),
    *("reported", "reported_source"),
    *("accuracy", "accuracy_low", "accuracy_high", "no_answer", "verdicts_unlike_ar", "outputs_unlike_ar"),
    *("tokens_per_s", "speedup", "speedup_low", "speedup_high", "timed_repeats", "speedup_predicted"),
    "speedup_over_generate",
    "generate_timed",
    "generate_same",
    *("t_ar_ms", "t_verify_ms", "t_draft_ms", "host_ms", "first_response_s"),
    *KNOWN,
    *("histogram", "flags", "provenance"),
)

#: A row per target, temperature, comparison and suite, and one for the average over suites.
COMPARED = (
    *("target", "temperature", "first", "second", "suite", "seeds"),
    *("gain", "gain_low", "gain_high", "gain_by_seed", "rescue_1_4", "tau_first", "tau_second"),
    *("train_minutes_first", "train_minutes_second", "flags"),
)
#: A row per target, suite, method and level of concurrency.
CONCURRENCY = (
    *("target", "suite", "method", "concurrency", "max_proposals", "prompts", "repeats"),
    *("tokens_per_s", "tokens_per_s_low", "tokens_per_s_high", "speedup", "speedup_low", "speedup_high"),
    *("tau", "busy_rows", "first_s", "unlike_ar", "reported", "reported_speedup", "reported_source", "machine"),
)
#: A row per target, temperature, method and slice of a round, and one of all slices; see `harness/report/latency.py`.
LATENCY = (
    *("target", "temperature", "method", "slice", "ms", "low", "high", "share", "whole_ms", "gap"),
    *("rounds", "responses", "machine"),
)
#: A row per target, entrant, temperature, suite and mask position; see `harness/gauge.py`.
POSITIONS = (
    *("target", "entrant", "temperature", "suite", "seeds", "position"),
    *POSITION_COUNTS,
    *(name for name, _, _ in POSITION_RATES),
)


def cells_text(rows: Sequence[Mapping[str, Any]]) -> str:
    """The rows of cells.csv as CSV; empty where a value does not exist."""
    return table_text(COLUMNS, rows)


def table_text(columns: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows as CSV; empty where a value does not exist."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([_text(row.get(name)) for name in columns] for row in rows)
    return out.getvalue()


def _text(value: Any) -> str:
    if isinstance(value, tuple):
        return " ".join(map(_text, value))
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return ""
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def read_cells(path: Path) -> list[Cell]:
    """Rows of cells.csv. Raises ReportError if it is missing, empty, or another table."""
    rows = read_table(path, COLUMNS, "harness.report.cells")
    if not rows:
        raise ReportError(f"{path} has no rows; decode something first")
    return rows


def read_table(path: Path, columns: Sequence[str], stage: str) -> list[Cell]:
    """Rows of a table that `stage` makes. Raises ReportError if it is missing or another table."""
    if not path.is_file():
        raise ReportError(f"{path} is missing; make it with python -m {stage}")
    with path.open(encoding="utf-8", newline="") as file:
        reader = csv.DictReader(file)
        rows = list(reader)
    first = rows[0] if rows else dict.fromkeys(reader.fieldnames or (), "")
    missing = [name for name in columns if first.get(name) is None]
    if missing:
        raise ReportError(
            f"{path} has no column {', '.join(missing[:3])}: it is another table or an older one; make it again with "
            f"python -m {stage}"
        )
    return rows
