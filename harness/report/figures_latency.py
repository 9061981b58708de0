"""`figures/latency_breakdown.*`: a round's time by slice and method, beside what the paper prints (its Figure 3).

Knows what is drawn.  Computes no number.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.patches import Patch

from harness.report.columns import Cell
from harness.report.figures_style import bar
from harness.report.inputs import ReportError, read_rows
from harness.report.speed import SLICES

#: From the bottom of a bar to its top.
ORDER = ("verify", "draft", "head", "relay", "host")
PRINTED = "reported by the paper"
#: Tables of rounds below the folder of GPU runs.
ROUNDS = "*/round-*.csv"
#: A slice below this share of its bar has no room for its number.
ROOM = 0.06
Panel = dict[str, dict[str, float]]  # method -> slice -> ms


def draw_latency(rows: Sequence[Cell], printed: Sequence[Cell], scripted: Sequence[Cell] = ()) -> Any:
    """Stacked slices in ms a round, a panel per target and temperature, and one for the paper.

    printed: rows of numbers that the paper prints (metric `latency_<slice>`); scripted: what `read_scripted` found, in
    panels of their own.  Raises ReportError where nothing was timed.
    """
    panels: dict[str, Panel] = {}
    for row in rows:
        if row["slice"] in ORDER:
            title = f"{row['target']}, T = {float(row['temperature']):g}"
            panels.setdefault(title, {}).setdefault(row["method"], {})[row["slice"]] = float(row["ms"])
    if not panels:
        raise ReportError("latency.csv has no slices, so there is no breakdown to draw; time a method first")
    for row in scripted:
        if row["slice"] in ORDER:
            title = f"{row['shapes']}, {row['device']}\nscripted acceptance"
            panels.setdefault(title, {}).setdefault(row["method"], {})[row["slice"]] = float(row["ms"])
    for row in printed:
        if row["metric"].startswith("latency_"):
            of_method = panels.setdefault(PRINTED, {}).setdefault(row["method"], {})
            of_method[row["metric"].removeprefix("latency_")] = float(row["value"])
    widths = [max(2, len(methods)) for methods in panels.values()]
    figure, axes = plt.subplots(
        1,
        len(panels),
        figsize=(1.6 + 0.85 * sum(widths), 3.6),
        squeeze=False,
        width_ratios=widths,
        layout="constrained",
    )
    for axis, (title, methods) in zip(axes[0], panels.items(), strict=True):
        _stack(axis, methods)
        axis.set_title(title, fontsize=8)
    axes[0, 0].set_ylabel("ms a round, batch 1")
    figure.legend(handles=[_key(name) for name in reversed(ORDER)], loc="outside right upper", frameon=False)
    return figure


def read_scripted(folder: Path) -> list[Cell]:
    """Slices at batch 1 of the rounds of scripted acceptance that are committed in `folder`, one folder a GPU and date
    (`python -m harness.bench gpu`); none where there are none."""
    found = []
    for path in sorted(folder.glob(ROUNDS)):
        for row in read_rows(path):
            if int(row["batch"]) == 1:
                about = {name: row[name] for name in ("shapes", "device", "method")}
                for name, phases in SLICES.items():
                    value = sum(float(row[phase] or 0) for phase in phases)
                    found.append(about | {"slice": name, "ms": str(value)})
    return found


def _key(name: str) -> Patch:
    look = bar(ORDER.index(name))
    return Patch(label=name, facecolor=look.pop("color"), **look)


def _stack(axis: Any, methods: Panel) -> None:
    for place, slices in enumerate(methods.values()):
        bottom, total = 0.0, sum(slices.values())
        for index, name in enumerate(ORDER):
            value = slices.get(name, 0.0)
            if value:
                axis.bar(place, value, 0.7, bottom=bottom, **bar(index))
            if value > ROOM * total:
                box = {"boxstyle": "square,pad=0.1", "fc": "white", "ec": "none"}
                axis.text(place, bottom + value / 2, f"{value:.2f}", ha="center", va="center", fontsize=7, bbox=box)
            bottom += value
        axis.text(place, bottom, f"{total:.2f}", ha="center", va="bottom", fontsize=7, weight="bold")
    axis.set_xticks(range(len(methods)), [name.replace("_", "\n") for name in methods], fontsize=8)
    axis.margins(y=0.08)
