"""`figures/training.*`: learning curves of every drafter that was trained, from `learning_curve.csv`.

Knows where curves lie and what is drawn.  Computes no number.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Collection, Sequence
from itertools import product
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.lines import Line2D

from harness.config import Config, project_path
from harness.report.figures_style import marker, stroke
from harness.report.inputs import ReportError, drafter_folder, trained

Curves = dict[tuple[str, str, int], list[dict[str, str]]]
#: What a column of learning_curve.csv is, with its unit.
TITLES = {
    "loss": "training loss (nats)",
    "heldout_ce": "held-out cross-entropy (nats)",
    "accuracy_1": "held-out accuracy, first proposal",
    "accept_random_anchor": "tokens per block, training anchors",
    "accept_walk": "tokens per verify step, held-out walk",
}
#: Panels side by side: what a page can hold and still be read.
ACROSS = 3


def draw_training(curves: Curves, methods: Collection[str] | None = None) -> Any:
    """Loss, accuracy at the first proposal and acceptance over steps: a block of panels and a legend per target, a
    stroke and grey per entrant, a marker per seed.

    curves: rows of learning_curve.csv by (target, entrant, seed). methods: those of Table 1 (default: all); the
    others get a block of their own below, or the many would hide the few. Raises ReportError where nothing can be
    drawn.
    """
    columns = [name for name in TITLES if any(_points(rows, name) for rows in curves.values())]
    if not columns:
        raise ReportError("no learning curve has a column to draw; train a drafter first")
    targets, names, seeds = (list(dict.fromkeys(part)) for part in zip(*curves, strict=True))
    kinds = {name: "methods" if methods is None or name in methods else "ablations" for name in names}
    looks = {name: stroke(index) for index, name in enumerate(names)}
    marks = {seed: marker(index) for index, seed in enumerate(seeds)}
    drawn = {(target, kinds[name]) for target, name, _ in curves}
    blocks = [block for block in product(targets, ("methods", "ablations")) if block in drawn]
    several = (len(targets) > 1) * [0] + (len(set(kinds.values())) > 1) * [1]  # what tells blocks apart
    height = math.ceil((len(columns) + 1) / ACROSS)  # rows of a block; one place is the legend's
    size = (3.1 * ACROSS, 2.6 * height * len(blocks))
    figure, axes = plt.subplots(height * len(blocks), ACROSS, figsize=size, squeeze=False, layout="constrained")
    for block, panels in zip(blocks, axes.reshape(len(blocks), -1), strict=True):
        mine = {key: rows for key, rows in curves.items() if (key[0], kinds[key[1]]) == block}
        about = ", ".join(block[at] for at in several)
        for axis, column in zip(panels, columns, strict=False):
            axis.set_xlabel("step")
            axis.set_title("\n".join(filter(None, [about, TITLES[column]])), fontsize=9)
            for (_, name, seed), rows in mine.items():
                curve = _points(rows, column)
                every = (seeds.index(seed) / 12, 0.25)  # few markers, at other places for each seed
                axis.plot(*zip(*curve, strict=True), **looks[name], **marks[seed], markevery=every) if curve else None
        for axis in panels[len(columns) :]:
            axis.set_axis_off()
        legend = [Line2D([], [], label=name, **looks[name]) for name in dict.fromkeys(key[1] for key in mine)]
        legend += [Line2D([], [], label=f"seed {seed}", ls="", **marks[seed]) for seed in seeds]
        panels[len(columns)].legend(handles=legend, loc="center left", frameon=False, handlelength=3.5)
    return figure


def _points(rows: Sequence[dict[str, str]], name: str) -> list[tuple[float, float]]:
    return [(float(row["step"]), float(row[name])) for row in rows if row.get(name)]


def read_curves(config: Config) -> Curves:
    """Learning curves of every drafter of the configuration that has one; borrowed weights have their lender's."""
    base = project_path(config.output_dir)
    curves = {}
    for target in config.targets:
        for name in config.entrants:
            for seed in config.seeds if trained(config, name) else ():
                path = drafter_folder(base, target, name, seed) / "learning_curve.csv"
                if path.is_file():
                    with path.open(encoding="utf-8", newline="") as file:
                        curves[target, name, seed] = list(csv.DictReader(file))
    return curves
