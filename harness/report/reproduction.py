"""`results/reproduction.md`: what papers print beside what was measured here, cell by cell, with a verdict.

Knows which of our numbers may stand beside which of theirs.  Computes nothing but the verdict: every figure of ours
is read from `cells.csv` and `ablations.csv`, under the papers' convention (`tau_unclipped`), every figure of theirs
from `results/reported`.

    python -m harness.report.reproduction --cells results/cells.csv results/ablations.csv --out results/reproduction.md
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.config import project_path
from harness.report.columns import COLUMNS, Cell, read_table
from harness.report.inputs import AVERAGE, REPORTED, ReportError, read_rows, reported_paths, write_text
from harness.report.markdown import CONVENTION, number, one_seed, table

AGREES, DIFFERS, NOT_RUN, OTHER_SUITES = "agrees", "differs", "not run", "other suites"
VERDICTS = (AGREES, DIFFERS, OTHER_SUITES, NOT_RUN)

INTRODUCTION = f"""\
Acceptance lengths that papers print, each with our own: `reported / ours [interval], verdict`. {CONVENTION}, and so
do the columns here. A cell **{AGREES}** if the reported number lies in our interval, **{DIFFERS}** if it does not, with
our difference in percent; **{NOT_RUN}** says that no such cell is among the results at hand, and **{OTHER_SUITES}**
that an average was taken over suites that are not ours; where a paper prints an average alone, its suites are taken to
be those that it prints elsewhere. A target is the same if its name is, whatever the case.

A verdict compares two numbers, not two methods. Training data, prompts and the number of seeds behind a printed number
are the paper's, named as far as the paper does in `results/reported/README.md`; an interval of ours over one seed says
nothing about another training run."""


@dataclass(frozen=True)
class Line:
    """One printed acceptance length and what became of it here.  ours: our cell, None if there is none."""

    source: str
    target: str
    method: str
    temperature: float
    suite: str
    reported: float
    ours: Cell | None
    verdict: str

    @property
    def text(self) -> str:
        if self.ours is None or self.verdict not in (AGREES, DIFFERS):
            return f"{self.reported:.2f} / {self.verdict}"
        low, value, high = (number(self.ours[f"tau_unclipped{end}"], 2) for end in ("_low", "", "_high"))
        by = f" by {100 * (float(self.ours['tau_unclipped']) / self.reported - 1):+.0f} %"
        return f"{self.reported:.2f} / {value} [{low}, {high}], {self.verdict}{by if self.verdict == DIFFERS else ''}"


def compare(reported: Iterable[Mapping[str, str]], cells: Sequence[Cell]) -> list[Line]:
    """Every printed acceptance length that names a target, a temperature and a suite, in the order given.

    reported: rows as `results/reported/README.md` describes them.  cells: ours.
    """
    rows = [r for r in reported if r["metric"] == "acceptance_length" and r["temperature"] and r["suite"]]
    ours = {(c["target"].lower(), c["method"], float(c["temperature"]), c["suite"]): c for c in cells}
    suites = _suites(rows)
    lines = []
    for row in rows:
        key = (row["target"].lower(), row["method"], float(row["temperature"]))
        found = ours.get((*key, row["suite"]))
        if found is not None and not found["tau_unclipped"]:
            found = None
        same = {suite for *at, suite in ours if tuple(at) == key} == suites[_line(row)]
        verdict = _verdict(float(row["value"]), found, row["suite"] != AVERAGE or same)
        lines.append(
            Line(row["source"], row["target"], row["method"], key[2], row["suite"], float(row["value"]), found, verdict)
        )
    return lines


def _suites(rows: Iterable[Mapping[str, str]]) -> dict[tuple[str, ...], set[str]]:
    """By line: the suites that it prints, the average among them; where it prints an average alone (an ablation), all
    that its paper prints of the same target and temperature."""
    lines: dict[tuple[str, ...], set[str]] = {}
    papers: dict[tuple[str, ...], set[str]] = {}
    for row in rows:
        lines.setdefault(_line(row), set()).add(row["suite"])
        papers.setdefault(_paper(_line(row)), set()).add(row["suite"])
    return {line: papers[_paper(line)] if found == {AVERAGE} else found for line, found in lines.items()}


def _paper(line: tuple[str, ...]) -> tuple[str, ...]:
    source, target, _, temperature = line
    return source.split()[0], target, temperature


def _line(row: Mapping[str, str]) -> tuple[str, ...]:
    return row["source"], row["target"], row["method"], row["temperature"]


def _verdict(reported: float, ours: Cell | None, comparable: bool) -> str:
    if ours is None:
        return NOT_RUN
    if not comparable:
        return OTHER_SUITES
    return AGREES if float(ours["tau_unclipped_low"]) <= reported <= float(ours["tau_unclipped_high"]) else DIFFERS


def page(lines: Sequence[Line]) -> str:
    """The whole file: how many cells of each paper were compared, then every cell."""
    parts = ["# Reproduction", INTRODUCTION, one_seed(line.ours for line in lines if line.ours is not None)]
    sources = list(dict.fromkeys(line.source for line in lines))
    counted = []
    for source in sources:
        counts = Counter(line.verdict for line in lines if line.source == source)
        counted.append([source, str(counts.total()), *(str(counts[verdict]) for verdict in VERDICTS)])
    parts += ["## In short", table(["source", "cells", *VERDICTS], counted)]
    for source in sources:
        parts += [f"## {source}", _grid([line for line in lines if line.source == source])]
    return "\n\n".join(filter(None, parts)) + "\n"


def _grid(lines: Sequence[Line]) -> str:
    """One line per target, temperature and method; one column per suite."""
    suites = list(dict.fromkeys(line.suite for line in lines))
    rows: dict[tuple[str, str, str], dict[str, str]] = {}
    for line in lines:
        rows.setdefault((line.target, f"{line.temperature:g}", line.method), {})[line.suite] = line.text
    return table(
        ["target", "T", "method", *suites], [[*key, *(row.get(s, "") for s in suites)] for key, row in rows.items()]
    )


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m harness.report.reproduction", description=__doc__.split("\n")[0])
    parser.add_argument("--cells", type=Path, nargs="+", default=[Path("results/cells.csv")], help="one or more")
    parser.add_argument("--out", type=Path, default=Path("results/reproduction.md"))
    parser.add_argument("--reported", type=Path, default=project_path(REPORTED), help="folder of reported numbers")
    arguments = parser.parse_args(argv)
    try:
        cells = [cell for path in arguments.cells for cell in read_table(path, COLUMNS, "harness.report.cells")]
        if not cells:
            raise ReportError(f"{', '.join(map(str, arguments.cells))}: no rows; decode something first")
    except ReportError as error:
        parser.exit(2, f"{error}\n")
    rows = [row for path in reported_paths(arguments.reported) for row in read_rows(path)]
    if not rows:
        parser.exit(2, f"{arguments.reported} holds no reported numbers; name the folder with --reported\n")
    lines = compare(rows, cells)
    write_text(arguments.out, page(lines))
    print(f"{arguments.out}: {', '.join(f'{n} {v}' for v, n in Counter(line.verdict for line in lines).items())}")


if __name__ == "__main__":
    main()
