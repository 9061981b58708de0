"""How figures look, and how they are written: readable in grey, the same bytes from the same numbers.

Knows greys, hatches, strokes, markers and file formats.  Does not know what is drawn.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import matplotlib.pyplot as plt

matplotlib.use("Agg")

FORMATS = ("png", "pdf", "svg")
GREYS = ("0.85", "0.65", "0.45", "0.25", "0.95", "0.75")
HATCHES = ("", "///", "...", "xxx", "\\\\\\", "+++")
#: Curves of methods differ in stroke and grey, those of seeds in marker; all stay apart in print.
STROKES = ("-", "--", ":", "-.", (0, (6, 1, 1, 1, 1, 1)), (0, (1, 3)))
SHADES = ("0", "0.5", "0.25", "0.6", "0.1", "0.4")
MARKERS = ("o", "^", "s", "x", "v", "D", "+", "*")
#: No dates and no random ids in the files: the same cells give the same figure.
STYLE = {"svg.hashsalt": "figure", "font.size": 9}
METADATA = {"png": {"Software": None}, "pdf": {"CreationDate": None}, "svg": {"Date": None}}


def bar(index: int) -> dict[str, Any]:
    """Grey and hatch of the bars of one method; the pair returns after 36 methods."""
    grey, hatch = _pair(index, GREYS, HATCHES)
    return {"color": grey, "hatch": hatch, "edgecolor": "black", "linewidth": 0.6}


def stroke(index: int) -> dict[str, Any]:
    """Stroke and grey of the curves of one method; the pair returns after 36 methods."""
    shade, line = _pair(index, SHADES, STROKES)
    return {"ls": line, "color": shade, "lw": 1.2}


def marker(index: int) -> dict[str, Any]:
    return {"marker": MARKERS[index % len(MARKERS)], "ms": 4.5, "mfc": "white", "mec": "black", "mew": 0.8}


def _pair(index: int, first: Sequence[Any], second: Sequence[Any]) -> tuple[Any, Any]:
    """Both go round together, and the first moves on by one each time around, so that no pair returns early."""
    return first[(index + index // len(second)) % len(first)], second[index % len(second)]


def credit(name: str, seeds: Iterable[str], flags: Iterable[str]) -> str:
    """A name for a legend, with what limits belief in its intervals: too few seeds, too little training."""
    count = max(map(int, seeds))
    lines = [name, "1 seed: prompts only" if count == 1 else f"{count} seeds"]
    if any("under-trained" in flag for flag in flags):
        lines.append("under-trained")
    return "\n".join(lines)


def error_bars(rows: Sequence[dict[str, str]], name: str) -> list[list[float]]:  # -> [2, rows]
    """Distances from a value to its limits, none where a limit is unknown."""
    below = [float(row[name]) - float(row[f"{name}_low"] or row[name]) for row in rows]
    above = [float(row[f"{name}_high"] or row[name]) - float(row[name]) for row in rows]
    return [[max(0.0, value) for value in side] for side in (below, above)]


def save(figure: Any, folder: Path, name: str, formats: Sequence[str] = FORMATS) -> None:
    """Write a figure in every format and close it."""
    folder.mkdir(parents=True, exist_ok=True)
    for kind in formats:
        figure.savefig(folder / f"{name}.{kind}", dpi=150, metadata=METADATA[kind])
    plt.close(figure)
