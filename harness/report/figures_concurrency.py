"""`figures/concurrency.*`: speed-up over plain decoding by concurrency, from `concurrency.csv`.

Knows what is drawn.  Computes no number.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.ticker import NullLocator

from harness.report.columns import Cell
from harness.report.figures_style import error_bars, marker, stroke
from harness.report.inputs import PLAIN, ReportError


def draw_concurrency(rows: Sequence[Cell]) -> Any:
    """Speed-up by concurrency, a panel per target and suite, a stroke and marker per method.

    Raises ReportError where no method has a speed-up.
    """
    drawn = [row for row in rows if row["method"] != PLAIN and row["speedup"]]
    if not drawn:
        raise ReportError(
            f"concurrency.csv holds no speed-up over {PLAIN!r}; add it and a method that drafts to methods:"
        )
    panels: dict[tuple[str, str], dict[str, list[Cell]]] = {}
    for row in drawn:
        panels.setdefault((row["target"], row["suite"]), {}).setdefault(row["method"], []).append(row)
    size = (1.2 + 3.6 * len(panels), 3.0)
    figure, axes = plt.subplots(1, len(panels), figsize=size, squeeze=False, sharey=True, layout="constrained")
    methods = list(dict.fromkeys(row["method"] for row in drawn))
    for axis, ((target, suite), lines) in zip(axes[0], panels.items(), strict=True):
        for method, line in lines.items():
            index = methods.index(method)
            levels, speedups = ([float(row[name]) for row in line] for name in ("concurrency", "speedup"))
            look = stroke(index) | marker(index)
            axis.errorbar(levels, speedups, yerr=error_bars(line, "speedup"), capsize=2, label=method, **look)
        axis.axhline(1, color="black", linewidth=0.6, linestyle=":")
        axis.set_xscale("log", base=2)
        axis.set_xticks(levels, [f"{level:g}" for level in levels])
        axis.xaxis.set_minor_locator(NullLocator())
        axis.set_xlabel("sequences at a time")
        axis.set_title(f"{target}, {suite}")
    axes[0, 0].set_ylim(bottom=0)  # of all panels, when all is drawn
    axes[0, 0].set_ylabel(f"tokens/s over {PLAIN}\n(bars: slowest and fastest repeat)")
    axes[0, -1].legend(loc="center left", bbox_to_anchor=(1, 0.5), frameon=False)
    return figure
