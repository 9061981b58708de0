"""The figures: which of them a configuration has, and from which files each is drawn.

Knows names and paths.  What a figure shows is in `figures_<name>.py`, how all look in `figures_style.py`; no file
of them computes a number.

    python -m harness.report.figures --config pocket --out-dir figures
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt

from harness.config import Config, load_config, project_path
from harness.report.columns import COMPARED, CONCURRENCY, POSITIONS, read_cells, read_table
from harness.report.figures_acceptance import draw_acceptance
from harness.report.figures_concurrency import draw_concurrency
from harness.report.figures_dose import draw_dose
from harness.report.figures_position import draw_position
from harness.report.figures_style import STYLE, save
from harness.report.figures_training import draw_training, read_curves
from harness.report.inputs import figure_names

NAMES = ("acceptance", "training", "position", "dose", "concurrency")
TABLES = ("cells", "positions", "comparisons", "concurrency")


def draw(name: str, config: Config, cells: Path, positions: Path, comparisons: Path, concurrency: Path) -> Any:
    """One figure.  Raises ReportError where a file is missing or holds nothing to draw."""
    confidence = config.report.confidence
    figures: dict[str, Callable[[], Any]] = {
        "acceptance": lambda: draw_acceptance(read_cells(cells), confidence),
        "training": lambda: draw_training(read_curves(config), config.methods),
        "position": lambda: draw_position(read_table(positions, POSITIONS, "harness.report.positions"), config.methods),
        "concurrency": lambda: draw_concurrency(read_table(concurrency, CONCURRENCY, "harness.report.table2")),
        "dose": lambda: draw_dose(read_table(comparisons, COMPARED, "harness.report.table3"), confidence),
    }
    return figures[name]()


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m harness.report.figures", description="Draw the figures.")
    parser.add_argument("--config", default="pocket", help="profile or YAML file")
    for name in TABLES:
        parser.add_argument(f"--{name}", type=Path, help=f"default: <output_dir>/{name}.csv")
    parser.add_argument("--out-dir", type=Path, help="default: figures_dir of the configuration")
    parser.add_argument("--only", choices=NAMES, help="draw one figure; default: all that the configuration has")
    arguments = parser.parse_args(argv)
    try:
        config = load_config(arguments.config, check=False)
        folder, formats = arguments.out_dir or project_path(config.figures_dir), config.report.figure_formats
        base = project_path(config.output_dir)
        files = [getattr(arguments, name) or base / f"{name}.csv" for name in TABLES]
        with plt.rc_context(STYLE):
            for name in [arguments.only] if arguments.only else figure_names(config):
                save(draw(name, config, *files), folder, name, formats)
    except ValueError as error:
        parser.exit(2, f"{error}\n")


if __name__ == "__main__":
    main()
