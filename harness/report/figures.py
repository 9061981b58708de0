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

from harness.config import Config, load_config, project_path  # noqa: E402
from harness.report.inputs import AVERAGE, PLAIN, ReportError, drafter_folder  # noqa: E402
from harness.report.table1 import Cell, read_cells  # noqa: E402

FORMATS = ("png", "pdf", "svg")
GREYS = ("0.85", "0.65", "0.45", "0.25", "0.95", "0.75")
HATCHES = ("", "///", "...", "xxx", "\\\\\\", "+++")
LINES = ("-", "--", ":", "-.")
#: What a column of learning_curve.csv is, with its unit.
TITLES = {
    "loss": "training loss (nats)",
    "heldout_ce": "held-out cross-entropy (nats)",
    "accuracy_1": "held-out accuracy, first proposal",
    "accept_random_anchor": "tokens per block, training anchors",
    "accept_walk": "tokens per verify step, held-out walk",
}
#: No dates and no random ids in the files: the same cells give the same figure.
STYLE = {"svg.hashsalt": "figure", "figure.constrained_layout.use": True, "font.size": 9}
METADATA = {"png": {"Software": None}, "pdf": {"CreationDate": None}, "svg": {"Date": None}}


def draw_acceptance(cells: Sequence[Cell]) -> Any:
    """Bars of tau by suite, one panel per (target, temperature), a grey and a hatch per method."""
    panels: dict[tuple[str, str], dict[str, dict[str, Cell]]] = {}
    for cell in cells:
        if cell["method"] != PLAIN:
            panel = panels.setdefault((cell["target"], cell["temperature"]), {})
            panel.setdefault(cell["method"], {})[cell["suite"]] = cell
    if not panels:
        raise ReportError("cells.csv holds no method with a drafter; there is no acceptance length to draw")
    figure, axes = plt.subplots(len(panels), 1, figsize=(8, 2.8 * len(panels)), squeeze=False)
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
                label=method,
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
        axis.set_title(f"{target}, T = {float(temperature):g} (bars: 95 % interval; dotted: no drafter)")
        axis.legend(loc="center left", bbox_to_anchor=(1, 0.5), frameon=False)
    return figure


def _errors(cells: Sequence[Cell]) -> list[list[float]]:
    """Distances from tau to its limits, none where a limit is unknown."""
    below = [float(c["tau"]) - float(c["tau_low"] or c["tau"]) for c in cells]
    above = [float(c["tau_high"] or c["tau"]) - float(c["tau"]) for c in cells]
    return [[max(0.0, value) for value in side] for side in (below, above)]


def draw_training(curves: dict[str, list[dict[str, str]]]) -> Any:
    """Loss, accuracy at the first proposal and acceptance over steps, one line style per drafter."""
    wanted = ("loss", "heldout_ce", "accuracy_1", "accept_random_anchor", "accept_walk")
    columns = [name for name in wanted if any(_points(rows, name) for rows in curves.values())]
    if not columns:
        raise ReportError("no learning curve has a column to draw; train a drafter first")
    figure, axes = plt.subplots(1, len(columns), figsize=(3.2 * len(columns), 3), squeeze=False)
    for axis, name in zip(axes[0], columns, strict=True):
        for index, (label, rows) in enumerate(curves.items()):
            points = _points(rows, name)
            if points:
                axis.plot(*zip(*points, strict=True), LINES[index % len(LINES)], color="black", label=label, lw=1)
        axis.set_xlabel("step")
        axis.set_title(TITLES[name], fontsize=9)
    axes[0][0].legend(frameon=False)
    return figure


def _points(rows: Sequence[dict[str, str]], name: str) -> list[tuple[float, float]]:
    return [(float(row["step"]), float(row[name])) for row in rows if row.get(name)]


def read_curves(config: Config) -> dict[str, list[dict[str, str]]]:
    """Learning curves of every drafter of the configuration that has one."""
    base = project_path(config.output_dir)
    curves = {}
    for target in config.targets:
        for method in config.methods:
            for seed in config.seeds:
                path = drafter_folder(base, target, method, seed) / "learning_curve.csv"
                if path.is_file():
                    with path.open(encoding="utf-8", newline="") as file:
                        curves[f"{target} {method} seed {seed}"] = list(csv.DictReader(file))
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
    config = load_config(arguments.config, check=False)
    folder = arguments.out_dir or project_path(config.figures_dir)
    formats = config.report.figure_formats
    try:
        with plt.rc_context(STYLE):
            if arguments.only in (None, "acceptance"):
                cells = read_cells(arguments.cells or project_path(config.output_dir) / "cells.csv")
                save(draw_acceptance(cells), folder, "acceptance", formats)
            if arguments.only in (None, "training"):
                save(draw_training(read_curves(config)), folder, "training", formats)
    except ReportError as error:
        parser.exit(2, f"{error}\n")


if __name__ == "__main__":
    main()
