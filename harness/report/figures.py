"""The figures: which of them a configuration has, and from which files each is drawn.

Knows names and paths.  What a figure shows is in `figures_<name>.py`, how all look in `figures_style.py`; no file
of them computes a number.

    python -m harness.report.figures --config pocket --out-dir figures
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt

from harness.config import Config, load_config, project_path
from harness.report.columns import COMPARED, CONCURRENCY, LATENCY, POSITIONS, Cell, read_cells, read_table
from harness.report.figures_acceptance import draw_acceptance
from harness.report.figures_concurrency import draw_concurrency
from harness.report.figures_dose import draw_dose
from harness.report.figures_latency import draw_latency, read_scripted
from harness.report.figures_position import draw_position
from harness.report.figures_style import STYLE, save
from harness.report.figures_training import draw_training, read_curves
from harness.report.inputs import REPORTED, figure_names, read_rows

NAMES = ("acceptance", "training", "position", "dose", "concurrency", "latency_breakdown")
TABLES = ("cells", "positions", "comparisons", "concurrency", "latency")
#: Latencies that the paper prints.
PRINTED = "dflow_figure3.csv"
#: Folders of GPU runs that are committed.
GPU_RUNS = "results/published/gpu"


def draw(name: str, config: Config, tables: Mapping[str, Path]) -> Any:
    """One figure.  tables: the file of each of `TABLES`.  Raises ReportError where one is missing or holds nothing to
    draw."""
    confidence = config.report.confidence

    def read(table: str, columns: Sequence[str], stage: str) -> list[Cell]:
        return read_table(tables[table], columns, f"harness.report.{stage}")

    figures: dict[str, Callable[[], Any]] = {
        "acceptance": lambda: draw_acceptance(read_cells(tables["cells"]), confidence),
        "training": lambda: draw_training(read_curves(config), config.methods),
        "position": lambda: draw_position(read("positions", POSITIONS, "positions"), config.methods),
        "dose": lambda: draw_dose(read("comparisons", COMPARED, "table3"), confidence),
        "concurrency": lambda: draw_concurrency(read("concurrency", CONCURRENCY, "table2")),
        "latency_breakdown": lambda: draw_latency(
            read("latency", LATENCY, "latency"),
            read_rows(project_path(REPORTED) / PRINTED),
            read_scripted(project_path(GPU_RUNS)),
        ),
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
        files = {name: getattr(arguments, name) or base / f"{name}.csv" for name in TABLES}
        with plt.rc_context(STYLE):
            for name in [arguments.only] if arguments.only else figure_names(config):
                save(draw(name, config, files), folder, name, formats)
    except ValueError as error:
        parser.exit(2, f"{error}\n")


if __name__ == "__main__":
    main()
