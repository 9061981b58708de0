"""Rows of a benchmark as CSV and as text, and the facts of the machine that stand in each of them.

It knows columns and devices.  It does not know what was measured.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from harness.provenance import processor, provenance_short

Row = Mapping[str, Any]


def machine(device: torch.device, **more: Any) -> dict[str, Any]:
    """The columns of `provenance_short`, of the device that was used, which need not be the best there is."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else processor()
    return provenance_short(device=name, **more)


def csv_text(rows: Sequence[Row], columns: Sequence[str], facts: Row) -> str:
    """Rows as CSV, each with the facts; numbers to four digits, empty where a row has no value."""
    out = io.StringIO()
    writer = csv.DictWriter(out, [*columns, *facts], lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({key: f"{v:.4g}" if isinstance(v, float) else v for key, v in {**row, **facts}.items()})
    return out.getvalue()


def plain_text(rows: Sequence[Row], columns: Sequence[str], digits: int = 3) -> str:
    """Rows as a table for a terminal, a column as wide as its widest cell; words to the left, numbers to the right."""
    cells = [[_cell(row.get(name), digits) for name in columns] for row in rows]
    widths = [max(len(name), *(len(line[i]) for line in cells)) for i, name in enumerate(columns)]
    words = [any(isinstance(row.get(name), str) for row in rows) for name in columns]
    aligned = [
        "  ".join(c.ljust(w) if word else c.rjust(w) for c, w, word in zip(line, widths, words, strict=True)).rstrip()
        for line in ([*columns], *cells)
    ]
    return "\n".join(aligned)


def _cell(value: Any, digits: int) -> str:
    if value is None:
        return ""
    return f"{value:.{digits}f}" if isinstance(value, float) else str(value)
