"""The columns of `cells.csv`, and its text: written by cells.py, read by tables and figures.

Knows names and format. Does not know how a value comes about, nor where it is shown.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.report.inputs import ReportError

#: A row as read: text by column, empty where there is no value.
Cell = dict[str, str]
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


def cells_text(rows: Sequence[Mapping[str, Any]]) -> str:
    """The rows as CSV; empty where a value does not exist."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows([_text(row.get(name)) for name in COLUMNS] for row in rows)
    return out.getvalue()


def _text(value: Any) -> str:
    if isinstance(value, tuple):
        return " ".join(map(_text, value))
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return ""
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def read_cells(path: Path) -> list[Cell]:
    """Rows of cells.csv. Raises ReportError if it is missing, empty, or another table."""
    if not path.is_file():
        raise ReportError(f"{path} is missing; make it with python -m harness.report.cells")
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    if not rows:
        raise ReportError(f"{path} has no rows; decode something first")
    missing = [name for name in COLUMNS if rows[0].get(name) is None]
    if missing:
        raise ReportError(
            f"{path} has no column {', '.join(missing[:3])}: it is another table or an older one; make it again with "
            "python -m harness.report.cells"
        )
    return rows
