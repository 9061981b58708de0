"""`figures/position.*`: acceptance mask by mask, and what the verifier knew there, from `positions.csv`.

Knows what is drawn.  Computes no number.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from harness.report.columns import EVERY_SUITE, Cell
from harness.report.figures_style import STROKES, marker, stroke
from harness.report.inputs import BASELINE, ReportError

#: What is drawn of the baseline, and in which grey.
KNEW = {"stale_right_share": ("rejected row right", "0"), "rescue_share": ("rescue", "0.5")}


def draw_position(positions: Sequence[Cell], methods: Sequence[str]) -> Any:
    """A row of panels per target: per temperature, the share of rounds that accepted proposals 1 to m, a stroke, grey
    and marker per method; behind them what the baseline's rejected rows knew, a stroke per temperature.

    positions: rows of positions.csv, of which those over all suites are drawn. methods: which, in this order.
    Raises ReportError where none of them is there.
    """
    rows = [row for row in positions if row["suite"] == EVERY_SUITE and row["entrant"] in methods]
    if not rows:
        raise ReportError(
            f"positions.csv has no row of {', '.join(methods) or 'any method'} over all suites; name a method with a "
            "drafter under methods:, or decode what is missing"
        )
    drawn = [name for name in methods if any(row["entrant"] == name for row in rows)]
    targets, temperatures = (list(dict.fromkeys(row[name] for row in rows)) for name in ("target", "temperature"))
    knew = BASELINE in drawn  # without the baseline there is nothing bare to hold the rejected rows against
    width = len(temperatures) + knew
    size = (3.1 * width + 1.8, 2.9 * len(targets))
    figure, axes = plt.subplots(len(targets), width, figsize=size, squeeze=False, layout="constrained")
    for target, line in zip(targets, axes, strict=True):
        mine = [row for row in rows if row["target"] == target]
        for axis, temperature in zip(line, temperatures, strict=False):
            here = [row for row in mine if row["temperature"] == temperature]
            for index, name in enumerate(drawn):
                look = stroke(index) | marker(index)
                every = (index % 3, 3)  # few markers, at other places for neighbours
                _plot(axis, [row for row in here if row["entrant"] == name], "accepted_prefix", look, every)
            _dress(axis, f"{target}, T = {float(temperature):g}", "share of rounds, 1 to m accepted")
        for at, temperature in enumerate(temperatures if knew else ()):
            of = [row for row in mine if (row["entrant"], row["temperature"]) == (BASELINE, temperature)]
            for name, (_, shade) in KNEW.items():
                _plot(line[-1], of, name, _line(at, shade), None)
        if knew:
            _dress(line[-1], f"{target}, {BASELINE}: what its verifier knew", "share of relayed masks")
    for axis in axes.flat:
        axis.set_ylim(0, 1)
    legend = [Line2D([], [], label=name, **stroke(index), **marker(index)) for index, name in enumerate(drawn)]
    if knew:
        legend += [
            Line2D([], [], label=f"{words}, T = {float(temperature):g}", **_line(at, shade))
            for words, shade in KNEW.values()
            for at, temperature in enumerate(temperatures)
        ]
    figure.legend(handles=legend, loc="outside right center", frameon=False, handlelength=3.5)
    return figure


def _plot(axis: Any, rows: Sequence[Cell], name: str, look: dict[str, Any], every: Any) -> None:
    points = [(int(row["position"]), float(row[name])) for row in rows if row[name]]
    if points:
        axis.plot(*zip(*points, strict=True), **look, markevery=every)


def _line(temperature: int, shade: str) -> dict[str, Any]:
    return {"ls": STROKES[temperature % len(STROKES)], "color": shade, "lw": 1.6}


def _dress(axis: Any, title: str, share: str) -> None:
    axis.set_title(title, fontsize=9)
    axis.set_xlabel("mask position m")
    axis.set_ylabel(share)
    axis.xaxis.set_major_locator(MaxNLocator(integer=True))
