"""`figures/acceptance.*` and `figures/training.*`, from `cells.csv` and learning curves.

Knows what is drawn and how it stays readable in grey (hatches and markers beside colours). Computes no
number.

    python -m harness.report.figures --config pocket --out-dir figures
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402
from matplotlib.lines import Line2D  # noqa: E402

from harness.config import Config, load_config, project_path  # noqa: E402
from harness.report.columns import Cell, read_cells  # noqa: E402
from harness.report.inputs import AVERAGE, PLAIN, ReportError, drafter_folder  # noqa: E402

FORMATS = ("png", "pdf", "svg")
GREYS = ("0.85", "0.65", "0.45", "0.25", "0.95", "0.75")
HATCHES = ("", "///", "...", "xxx", "\\\\\\", "+++")
#: Curves of methods differ in stroke and grey, those of seeds in marker; all stay apart in print.
STROKES = ("-", "--", ":", "-.", (0, (6, 1, 1, 1, 1, 1)), (0, (1, 3)))
SHADES = ("0", "0.5", "0.25", "0.6", "0", "0.5")
MARKERS = ("o", "^", "s", "x", "v", "D", "+", "*")
Curves = dict[tuple[str, str, int], list[dict[str, str]]]
#: What a column of learning_curve.csv is, with its unit.
TITLES = {
    "loss": "training loss (nats)",
    "heldout_ce": "held-out cross-entropy (nats)",
    "accuracy_1": "held-out accuracy, first proposal",
    "accept_random_anchor": "tokens per block, training anchors",
    "accept_walk": "tokens per verify step, held-out walk",
}
#: No dates and no random ids in the files: the same cells give the same figure.
STYLE = {"svg.hashsalt": "figure", "font.size": 9}
METADATA = {"png": {"Software": None}, "pdf": {"CreationDate": None}, "svg": {"Date": None}}


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
            taus = [float(cell["tau"]) for _, cell in shown]
            axis.bar(
                places,
                taus,
                width,
                label=_legend(method, row),
                yerr=_errors([cell for _, cell in shown]),
                capsize=2,
                color=GREYS[index % len(GREYS)],
                hatch=HATCHES[index % len(HATCHES)],
                edgecolor="black",
                linewidth=0.6,
            )
        axis.axhline(1, color="black", linewidth=0.6, linestyle=":")
        axis.set_xticks(range(len(suites)), [name.replace("_", "\n", 1) for name in suites])  # two lines: no overlap
        axis.set_ylabel("tokens per verify step")
        axis.set_title(
            f"{target}, T = {float(temperature):g} (bars: {100 * confidence:g} % interval; dotted: no drafter)"
        )
        axis.legend(loc="center left", bbox_to_anchor=(1, 0.5), frameon=False)
    return figure


def _legend(method: str, row: dict[str, Cell]) -> str:
    """A method with what limits belief in its bars: too few seeds, too little training."""
    seeds = max(int(cell["seeds"]) for cell in row.values())
    lines = [method, "1 seed: prompts only" if seeds == 1 else f"{seeds} seeds"]
    if any("under-trained" in cell["flags"] for cell in row.values()):
        lines.append("under-trained")
    return "\n".join(lines)


def _errors(cells: Sequence[Cell]) -> list[list[float]]:
    """Distances from tau to its limits, none where a limit is unknown."""
    below = [float(c["tau"]) - float(c["tau_low"] or c["tau"]) for c in cells]
    above = [float(c["tau_high"] or c["tau"]) - float(c["tau"]) for c in cells]
    return [[max(0.0, value) for value in side] for side in (below, above)]


def draw_training(curves: Curves) -> Any:
    """Loss, accuracy at the first proposal and acceptance over steps: a row of panels per target, a stroke and grey
    per method, a marker per seed.

    curves: rows of learning_curve.csv by (target, method, seed). Raises ReportError where nothing can be drawn.
    """
    wanted = ("loss", "heldout_ce", "accuracy_1", "accept_random_anchor", "accept_walk")
    columns = [name for name in wanted if any(_points(rows, name) for rows in curves.values())]
    if not columns:
        raise ReportError("no learning curve has a column to draw; train a drafter first")
    targets, methods, seeds = (list(dict.fromkeys(names)) for names in zip(*curves, strict=True))
    size = (3 * len(columns) + 1, 2.8 * len(targets))
    figure, axes = plt.subplots(len(targets), len(columns), figsize=size, squeeze=False, layout="constrained")
    for (target, method, seed), rows in curves.items():
        for axis, name in zip(axes[targets.index(target)], columns, strict=True):
            points = _points(rows, name)
            look = _stroke(methods.index(method)) | _marker(seeds.index(seed))
            every = (seeds.index(seed) / 12, 0.25)  # few markers, at other places for each seed
            axis.plot(*zip(*points, strict=True), **look, markevery=every) if points else None
            axis.set_xlabel("step")
            axis.set_title(TITLES[name] if len(targets) == 1 else f"{target}\n{TITLES[name]}", fontsize=9)
    legend = [Line2D([], [], label=method, **_stroke(index)) for index, method in enumerate(methods)]
    legend += [Line2D([], [], label=f"seed {seed}", ls="", **_marker(index)) for index, seed in enumerate(seeds)]
    figure.legend(handles=legend, loc="outside right center", frameon=False, handlelength=3.5)
    return figure


def _stroke(index: int) -> dict[str, Any]:
    return {"ls": STROKES[index % len(STROKES)], "color": SHADES[index % len(SHADES)], "lw": 1.2}


def _marker(index: int) -> dict[str, Any]:
    return {"marker": MARKERS[index % len(MARKERS)], "ms": 4.5, "mfc": "white", "mec": "black", "mew": 0.8}


def _points(rows: Sequence[dict[str, str]], name: str) -> list[tuple[float, float]]:
    return [(float(row["step"]), float(row[name])) for row in rows if row.get(name)]


def read_curves(config: Config) -> Curves:
    """Learning curves of every drafter of the configuration that has one."""
    base = project_path(config.output_dir)
    curves = {}
    for target in config.targets:
        for method in config.methods:
            for seed in config.seeds:
                path = drafter_folder(base, target, method, seed) / "learning_curve.csv"
                if path.is_file():
                    with path.open(encoding="utf-8", newline="") as file:
                        curves[target, method, seed] = list(csv.DictReader(file))
    return curves


def save(figure: Any, folder: Path, name: str, formats: Sequence[str] = FORMATS) -> None:
    """Write a figure in every format and close it."""
    folder.mkdir(parents=True, exist_ok=True)
    for kind in formats:
        figure.savefig(folder / f"{name}.{kind}", dpi=150, metadata=METADATA[kind])
    plt.close(figure)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m harness.report.figures", description="Draw the figures.")
    parser.add_argument("--config", default="pocket", help="profile or YAML file")
    parser.add_argument("--cells", type=Path, help="default: <output_dir>/cells.csv")
    parser.add_argument("--out-dir", type=Path, help="default: figures_dir of the configuration")
    parser.add_argument("--only", choices=("acceptance", "training"), help="draw one figure")
    arguments = parser.parse_args(argv)
    try:
        config = load_config(arguments.config, check=False)
        folder, formats = arguments.out_dir or project_path(config.figures_dir), config.report.figure_formats
        with plt.rc_context(STYLE):
            if arguments.only in (None, "acceptance"):
                cells = read_cells(arguments.cells or project_path(config.output_dir) / "cells.csv")
                save(draw_acceptance(cells, config.report.confidence), folder, "acceptance", formats)
            if arguments.only in (None, "training"):
                save(draw_training(read_curves(config)), folder, "training", formats)
    except ValueError as error:
        parser.exit(2, f"{error}\n")


if __name__ == "__main__":
    main()
