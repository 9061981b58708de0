"""`figures/acceptance.*`: acceptance length by suite and method, the paper's Figure 1, from `cells.csv`.

Knows what is drawn.  Computes no number.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import matplotlib.pyplot as plt

from harness.report.columns import Cell
from harness.report.figures_style import bar, credit, error_bars
from harness.report.inputs import AVERAGE, PLAIN, ReportError


def draw_acceptance(cells: Sequence[Cell], confidence: float = 0.95) -> Any:
    """Bars of tau by suite, one panel per (target, temperature), a grey and a hatch per method.

    confidence: that of the intervals in the cells. Raises ReportError where no method drafts.
    """
    panels: dict[tuple[str, str], dict[str, dict[str, Cell]]] = {}
    for cell in cells:
        if cell["method"] != PLAIN:
            panel = panels.setdefault((cell["target"], cell["temperature"]), {})
            panel.setdefault(cell["method"], {})[cell["suite"]] = cell
    if not panels:
        raise ReportError(
            f"cells.csv holds only {PLAIN!r}, which drafts nothing, so there is no acceptance length to draw; add a "
            "method with a drafter to methods: or leave this figure out"
        )
    size = (8.5, 2.8 * len(panels))
    figure, axes = plt.subplots(len(panels), 1, figsize=size, squeeze=False, layout="constrained")
    for axis, ((target, temperature), methods) in zip(axes[:, 0], panels.items(), strict=True):
        suites = list(dict.fromkeys(suite for row in methods.values() for suite in row if suite != AVERAGE))
        suites.append(AVERAGE)
        width = 0.8 / len(methods)
        for index, (method, row) in enumerate(methods.items()):
            shown = [(at, row[suite]) for at, suite in enumerate(suites) if suite in row and row[suite]["tau"]]
            places = [at + (index - (len(methods) - 1) / 2) * width for at, _ in shown]
            known = [cell for _, cell in shown]
            taus = [float(cell["tau"]) for cell in known]
            label = credit(method, (c["seeds"] for c in row.values()), (c["flags"] for c in row.values()))
            errors = error_bars(known, "tau")
            axis.bar(places, taus, width, label=label, yerr=errors, capsize=2, **bar(index))
        axis.axhline(1, color="black", linewidth=0.6, linestyle=":")
        axis.set_xticks(range(len(suites)), [name.replace("_", "\n", 1) for name in suites])  # two lines: no overlap
        axis.set_ylabel("tokens per verify step")
        axis.set_title(
            f"{target}, T = {float(temperature):g} (bars: {100 * confidence:g} % interval; dotted: no drafter)"
        )
        axis.legend(loc="center left", bbox_to_anchor=(1, 0.5), frameon=False)
    return figure
