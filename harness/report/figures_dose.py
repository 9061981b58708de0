"""`figures/dose.*`: whether a gain follows what the verifier knew, suite by suite, from `comparisons.csv`.

Knows what is drawn and how labels keep apart.  Computes no gain and no rate.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import matplotlib.pyplot as plt

from harness.report.columns import Cell
from harness.report.figures_style import credit, error_bars, marker, stroke
from harness.report.inputs import AVERAGE, BASELINE, ReportError

#: Shares of the width of a panel: how far the entrants of a suite stand apart sideways, and how far names at least.
APART, LABELS_APART = 0.012, 0.055
#: All entrants of a suite stay within this share of the distance to the next suite.
OF_THE_GAP = 0.6


def draw_dose(compared: Sequence[Cell], confidence: float = 0.95) -> Any:
    """Gain over the baseline against the baseline's rescue rate on masks 1 to 4: one panel per (target, temperature),
    a point per suite, named above the panel, and a stroke, grey and marker per entrant.

    compared: rows of comparisons.csv. confidence: that of their intervals. Raises ReportError where no comparison
    with the baseline has a rescue rate.
    """
    panels: dict[tuple[str, str], dict[str, list[Cell]]] = {}
    for row in compared:
        if row["second"] == BASELINE and row["suite"] != AVERAGE and row["gain"] and row["rescue_1_4"]:
            panels.setdefault((row["target"], row["temperature"]), {}).setdefault(row["first"], []).append(row)
    if not panels:
        raise ReportError(
            f"comparisons.csv holds no gain over {BASELINE!r} with a rescue rate beside it; name a pair "
            f"[..., {BASELINE}] under comparisons: and decode both with decode.trace: true"
        )
    names = list(dict.fromkeys(name for panel in panels.values() for name in panel))
    size = (8.5, 3.9 * len(panels))
    figure, axes = plt.subplots(len(panels), 1, figsize=size, squeeze=False, layout="constrained")
    for axis, ((target, temperature), pairs) in zip(axes[:, 0], panels.items(), strict=True):
        places = _places(row for rows in pairs.values() for row in rows)
        low, high = min(places.values()), max(places.values())
        margin = 0.08 * (high - low) or 1.0
        axis.set_xlim(low - margin, high + margin)
        apart = _apart(places, APART * (high - low + 2 * margin), len(names))
        for name, rows in pairs.items():
            index = names.index(name)
            rows = sorted(rows, key=lambda row: float(row["rescue_1_4"]))
            aside = (index - (len(names) - 1) / 2) * apart
            axis.errorbar(
                [100 * float(row["rescue_1_4"]) + aside for row in rows],
                [100 * float(row["gain"]) for row in rows],
                yerr=[[100 * value for value in side] for side in error_bars(rows, "gain")],
                capsize=2,
                elinewidth=0.7,
                label=credit(name, (row["seeds"] for row in rows), (_own(row, name) for row in rows)),
                **stroke(index),
                **marker(index),
            )
        axis.axhline(0, color="black", linewidth=0.6, linestyle=":")
        _name_suites(axis, places)
        axis.set_xlabel(f"rescue of {BASELINE}, masks 1 to 4 (%; entrants of one suite stand side by side)")
        axis.set_ylabel(f"gain in tokens per verify step\nover {BASELINE} (%)")
        axis.set_title(f"{target}, T = {float(temperature):g} (bars: {100 * confidence:g} % interval)", pad=58)
        axis.legend(loc="center left", bbox_to_anchor=(1, 0.5), frameon=False)
    return figure


def _own(row: Cell, name: str) -> str:
    """The flags of the row that are about the first of its pair."""
    return "; ".join(flag for flag in row["flags"].split("; ") if flag.startswith(f"{name} "))


def _places(rows: Any) -> dict[str, float]:
    """Where each suite stands, in per cent: its rescue rate, the mean where pairs share fewer seeds."""
    found: dict[str, list[float]] = {}
    for row in rows:
        found.setdefault(row["suite"], []).append(100 * float(row["rescue_1_4"]))
    return {suite: sum(values) / len(values) for suite, values in found.items()}


def _apart(places: dict[str, float], most: float, entrants: int) -> float:
    """How far neighbours among the entrants of a suite stand apart: not so far that suites mix."""
    order = sorted(places.values())
    gaps = [b - a for a, b in zip(order, order[1:], strict=False) if b > a]
    return min([most, *(OF_THE_GAP * gap / entrants for gap in gaps)])


def _name_suites(axis: Any, places: dict[str, float]) -> None:
    """Names above the panel, each with a line down to its place; near ones are pushed apart."""
    low, high = axis.get_xlim()
    suites = sorted(places, key=places.get)
    true = [(places[suite] - low) / (high - low) for suite in suites]
    for suite, at, label in zip(suites, true, spread(true, LABELS_APART), strict=True):
        axis.axvline(places[suite], color="0.85", linewidth=0.6, zorder=0)
        axis.annotate(
            suite,
            xy=(at, 1),
            xytext=(label, 1.05),
            xycoords="axes fraction",
            textcoords="axes fraction",
            rotation=30,
            rotation_mode="anchor",
            ha="left",
            va="bottom",
            fontsize=8,
            arrowprops={"arrowstyle": "-", "lw": 0.5, "color": "0.5", "shrinkA": 0, "shrinkB": 0, "relpos": (0, 0)},
        )


def spread(places: Sequence[float], least: float) -> list[float]:
    """Sorted places moved as little as possible so that neighbours are at least so far apart.

    Groups that touch are centred on where their members belong, and merged until none touch.
    """
    groups: list[list[float]] = []
    for place in places:
        groups.append([place])
        while len(groups) > 1 and _start(groups[-1], least) < _start(groups[-2], least) + least * len(groups[-2]):
            groups[-2:] = [groups[-2] + groups[-1]]
    return [_start(group, least) + least * at for group in groups for at in range(len(group))]


def _start(group: Sequence[float], least: float) -> float:
    return sum(group) / len(group) - least * (len(group) - 1) / 2
