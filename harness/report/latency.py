"""`results/latency.csv`: where a round's time goes, method by method, the paper's Figure 3.

Knows timing rows (`harness/timing.py`). Measures nothing.

* A row is a target, method, temperature and slice, all timed suites together: milliseconds a round, batch 1, each slice
  timed by itself (`harness/clocks.py`). Slices: `draft` (denoising, and taking in the features of what was verified),
  `head` (from denoised slots to proposals), `relay` (what a verification leaves, and the masks that are made of it),
  `verify` (the target's forward), `host` (accepting, stopping, committing).
* `share` is over the sum of the slices. `low` and `high` are the smallest and the largest suite's.
* The row of slice `round` has the sum of the slices, and `whole_ms`, what a round took when nobody looked inside; `gap`
  is sum over whole, less one. Time between the phases is in the whole alone; looking costs time, which is in the sum.

    python -m harness.report.latency --config pocket --out results/latency.csv
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.config import Config, load_config, project_path
from harness.report.columns import LATENCY, table_text
from harness.report.inputs import ReportError, timing_rows, write_text
from harness.report.speed import SLICES, slices_of

#: The row of all slices together.
ROUND = "round"


def build_latency(rows: Sequence[Mapping[str, Any]], config: Config) -> list[dict[str, Any]]:
    """Rows by target, temperature and method in the order of the configuration; slices, then the round."""
    made = []
    for target in config.targets:
        for temperature in config.timing.temperatures:
            for method in config.methods:
                mine = [
                    row
                    for row in rows
                    if (row["kind"], row["target"], row["method"], row["temperature"])
                    == ("phases", target, method, temperature)
                ]
                about = {"target": target, "temperature": temperature, "method": method}
                made += [about | row for row in _of_method(mine)]
    return made


def _of_method(mine: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    steps = sum(row["steps"] for row in mine)
    if not steps:
        return []
    slices, suites = slices_of(mine), [part for part in _by_suite(mine) if sum(row["steps"] for row in part)]
    apart = [slices_of(part) for part in suites]
    total = sum(slices.values())
    machine = ", ".join(f"{name} {value}" for name, value in mine[0]["machine"].items())
    shared = {"rounds": steps, "responses": len(mine), "machine": machine}
    made = [
        shared
        | {"slice": name, "ms": slices[name], "share": slices[name] / total}
        | {"low": min(one[name] for one in apart), "high": max(one[name] for one in apart)}
        for name in SLICES
    ]
    sums = [sum(one.values()) for one in apart]
    whole = 1000 * sum(row["whole_seconds"] for row in mine) / steps
    last = {"slice": ROUND, "ms": total, "share": 1.0, "low": min(sums), "high": max(sums)}
    return [*made, shared | last | {"whole_ms": whole, "gap": total / whole - 1}]


def _by_suite(rows: Sequence[Mapping[str, Any]]) -> list[list[Mapping[str, Any]]]:
    found: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        found.setdefault(row["suite"], []).append(row)
    return list(found.values())


def latency_of(config: Config) -> list[dict[str, Any]]:
    """The rows of a configuration.  Raises ReportError where nothing was timed."""
    rows = timing_rows(config)
    lacking = next((row for row in rows if row["kind"] == "phases" and "whole_seconds" not in row), None)
    if lacking:
        raise ReportError(
            f"timing rows of {lacking['target']} are of older code, which timed no whole rounds beside their phases; "
            "time again (python -m harness.timing)"
        )
    made = build_latency(rows, config)
    if not made:
        raise ReportError("no round was timed; time one with python -m harness.timing, or run the pipeline")
    return made


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m harness.report.latency", description="Make latency.csv.")
    parser.add_argument("--config", default="pocket", help="profile or YAML file")
    parser.add_argument("--out", type=Path, help="default: <output_dir>/latency.csv")
    arguments = parser.parse_args(argv)
    try:
        config = load_config(arguments.config, check=False)
        rows = latency_of(config)
    except ValueError as error:
        parser.exit(2, f"{error}\n")
    out = arguments.out or project_path(config.output_dir) / "latency.csv"
    write_text(out, table_text(LATENCY, rows))
    for row in rows:
        if row["slice"] == ROUND:
            said = f"{row['ms']:.2f} ms in slices, {row['whole_ms']:.2f} ms whole, gap {100 * row['gap']:+.1f} %"
            print(f"{row['target']}, T = {row['temperature']:g}, {row['method']}: {said}")
    print(f"{out}: {len(rows)} rows")


if __name__ == "__main__":
    main()
