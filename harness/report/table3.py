"""`results/table3.csv` and `.md`: the paper's Table 3, ablations and controls, from our records;
`results/ablations.csv`, the same entrants as `cells.csv` has the methods; and `results/comparisons.csv`, the gains that
they are there for.

Knows the entrants of the configuration, layout and wording.  Acceptance lengths are made as for Table 1
(`harness.report.cells`), gains by `harness.report.comparisons`.  Records of all entrants are read, not only of the
methods; what is not decoded leaves a hole with a name.

    python -m harness.report.table3 --config pocket --out results/table3.csv
"""

from __future__ import annotations

import argparse
import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from harness.config import Config, load_config, project_path
from harness.report.cells import Settings, build_cells
from harness.report.columns import COMPARED, Cell, cells_text, table_text
from harness.report.comparisons import LEAST_SUITES, Pair, compare, follows, train_minutes, train_steps
from harness.report.inputs import (
    AVERAGE,
    BASELINE,
    PLAIN,
    REPORTED,
    Inputs,
    ReportError,
    read_inputs,
    read_rows,
    write_text,
)
from harness.report.markdown import (
    CONVENTION,
    DEFINITION,
    ELSEWHERE,
    GAIN,
    by_seed,
    grid,
    lines_of,
    number,
    one_seed,
    seeds_of,
    table,
    warnings,
    with_interval,
)
from methods.recipes import recipe

PAPERS_TABLE = "dflow_table3.csv"
ABOUT = """\
Every drafter is one of a seed; an entrant with the weights of another decodes with that one's, and has its steps
and minutes of training; one that was imported has neither. Relay: `none` where the recipe has none, `off` where it is
kept from decoding. Minutes are those of a mean drafter on the machine that trained it."""
RESCUE = """\
**Rescue 1-4**, of the second: share of relayed masks 1 to 4 where the rejected row's argmax is the token finally
committed and the second's own next draft is not; of a second that relays itself, what its relay left unused. A relay
that works by what it carries gains more where this is larger; a gain that does not follow it comes from something
else."""
CORRELATION = f"""\
Each line: the mean over all suites, then the correlation of gain and rescue rate across suites (none for fewer than
{LEAST_SUITES}). Suites are few and were not drawn at random: over five, unrelated numbers pass a Pearson correlation
of 0.88, up or down, once in twenty times, and every line is another chance of it. So this is weak evidence, for or
against."""


def describe(config: Config, name: str) -> dict[str, str]:
    """What Table 3 says about an entrant: label, recipe, weights, relay."""
    entrant = config.entrant(name)
    carried = recipe(entrant.recipe).relay not in (None, "none")
    relay = ("on" if entrant.relay else "off") if carried else "none"
    return {"label": entrant.label, "recipe": entrant.recipe, "weights": entrant.weights, "relay": relay}


def table_csv(inputs: Inputs, cells: Sequence[Cell], about: Mapping[str, Mapping[str, str]]) -> str:
    """A row per temperature, target and entrant of `about`; one without records says so under `flags`."""
    found = dict(lines_of(cells))
    said = ("label", "recipe", "weights", "relay")
    averaged = (AVERAGE, "avg_low", "avg_high", "avg_by_seed")
    columns = ["temperature", "target", "entrant", *said, "seeds", "steps", "train_minutes"]
    rows = []
    for temperature in inputs.temperatures:
        for target in inputs.targets:
            for name, facts in about.items():
                key = (f"{temperature:g}", target, name)
                cells_by_suite = found.get(key, {})
                row: dict[str, Any] = dict(zip(columns[:3], key, strict=True)) | facts
                row |= {suite: number(cell["tau"], 3) for suite, cell in cells_by_suite.items()}
                average = cells_by_suite.get(AVERAGE, {})
                row["seeds"], row["flags"] = average.get("seeds"), _flags(cells_by_suite)
                row["steps"] = train_steps(inputs, target, name)
                row["train_minutes"] = train_minutes(inputs, target, name)
                for end in ("low", "high"):
                    row[f"avg_{end}"] = number(average.get(f"tau_{end}", ""), 3)
                by = average.get("tau_by_seed", "").split() if average.get("tau") else []
                row["avg_by_seed"] = " ".join(number(value, 3) for value in by)
                rows.append(row)
    return table_text([*columns, *inputs.suites, *averaged, "flags"], rows)


def _flags(cells_by_suite: Mapping[str, Cell]) -> str:
    """All flags of a line: those of its average, and behind the name of a suite those that the suite has alone."""
    if not cells_by_suite:
        return "no records"
    shared = [flag for flag in cells_by_suite[AVERAGE]["flags"].split("; ") if flag]
    own = [
        f"{suite}: {flag}"
        for suite, cell in cells_by_suite.items()
        for flag in cell["flags"].split("; ")
        if flag and flag not in shared
    ]
    return "; ".join([*shared, *own])


def table_md(
    inputs: Inputs,
    cells: Sequence[Cell],
    about: Mapping[str, Mapping[str, str]],
    compared: Sequence[Mapping[str, Any]],
    notes: Sequence[str],
    reported: Sequence[Mapping[str, str]],
) -> str:
    """The same with intervals, the comparisons, what is left out, and the paper's table.

    compared, notes: from `compare`. reported: rows of the paper's numbers, see results/reported/README.md.
    """

    def said(name: str):
        return lambda row: about[row[AVERAGE]["method"]][name]

    def marked(find, digits: int):
        return lambda row: _figure(find(inputs, row[AVERAGE]["target"], row[AVERAGE]["method"]), digits)

    drafting = [cell for cell in cells if cell["method"] != PLAIN]
    lead = {name: said(name) for name in ("label", "weights", "relay")}
    extra = {"seeds": seeds_of, "avg by seed": lambda row: by_seed(row[AVERAGE]["tau_by_seed"], 2)}
    extra |= {"steps": marked(train_steps, 0), "minutes": marked(train_minutes, 1)}
    lines = grid(cells, with_interval("tau", 2), extra, lead)
    parts = ["# Table 3: ablations and controls", DEFINITION, ABOUT, one_seed(drafting)]
    parts += [lines or "No entrant of `ablations` has records.", warnings(cells), _holes(inputs, cells, about)]
    parts += [*_comparisons(compared, notes), *_reported(reported, cells), _origins(cells)]
    return "\n\n".join(part for part in parts if part) + "\n"


def _holes(inputs: Inputs, cells: Sequence[Cell], about: Mapping[str, Any]) -> str:
    found = {key for key, _ in lines_of(cells)}
    lines = []
    for temperature in inputs.temperatures:
        for target in inputs.targets:
            missing = [f"`{name}`" for name in about if (f"{temperature:g}", target, name) not in found]
            if missing:
                lines.append(f"* {target}, T = {temperature:g}: no records of {', '.join(missing)}.")
    return "\n".join(lines)


def _comparisons(compared: Sequence[Mapping[str, Any]], notes: Sequence[str]) -> list[str]:
    """A line per pair over all suites with its correlations, then a line per pair and suite."""
    texts = [f"* {note}" for note in notes]
    if not compared:
        return ["## Comparisons", "No pair of `comparisons` is decoded.", "\n".join(texts)] if texts else []
    cells = list(csv.DictReader(io.StringIO(table_text(COMPARED, compared))))
    gain = with_interval("gain", 1, True)
    pairs: dict[tuple, list[int]] = {}
    for at, row in enumerate(compared):
        pairs.setdefault((f"{row['temperature']:g}", row["target"], row["first"], row["second"]), []).append(at)
    whole, parts = [], []
    for (temperature, target, first, second), places in pairs.items():
        where = [temperature, target, f"{first} over {second}"]
        pearson, spearman, suites = follows([compared[at] for at in places])
        average = next((cells[at] for at in places if cells[at]["suite"] == AVERAGE), {})
        minutes = [number(cells[places[0]][f"train_minutes_{side}"], 1) or "-" for side in ("first", "second")]
        taus = [number(average.get(f"tau_{side}", ""), 2) or "-" for side in ("first", "second")]
        line = [gain(average), by_seed(average["gain_by_seed"], 1, True), average["seeds"]] if average else [""] * 3
        line += [" / ".join(taus), " / ".join(minutes), number(average.get("rescue_1_4", ""), 1, True)]
        whole.append([*where, *line, _figure(pearson, 2), _figure(spearman, 2), str(suites)])
        for cell in (cells[at] for at in places if cells[at]["suite"] != AVERAGE):
            by = by_seed(cell["gain_by_seed"], 1, True)
            parts.append([*where, cell["suite"], gain(cell), by, cell["seeds"], number(cell["rescue_1_4"], 1, True)])
    head = ["T", "target", "comparison"]
    count = ["gain", "by seed", "seeds"]
    summary = [*head, *count, "tau of both", "minutes of both", "rescue 1-4", "Pearson", "Spearman", "suites"]
    return [
        "## Comparisons",
        GAIN,
        RESCUE,
        one_seed(cells),
        CORRELATION,
        table(summary, whole),
        _doubts(cells),
        "\n".join(texts),
        "By suite:",
        table([*head, "suite", *count, "rescue 1-4 of the second"], parts),
    ]


def _doubts(cells: Sequence[Cell]) -> str:
    """Flags of either side of a pair, once each."""
    flags = dict.fromkeys(flag for cell in cells for flag in cell["flags"].split("; ") if flag)
    return "\n".join(f"* **{flag}**" for flag in flags)


def _figure(value: float | None, digits: int) -> str:
    return "" if value is None or value != value else f"{value:.{digits}f}"


def _reported(reported: Sequence[Mapping[str, str]], cells: Sequence[Cell]) -> list[str]:
    """The paper's table beside ours under its convention; its gains are over its own baseline."""
    rows = [row for row in reported if row["metric"] == "acceptance_length" and row["suite"] == AVERAGE]
    if not rows:
        return []
    base = {
        (row["source"], row["target"], row["temperature"]): float(row["value"])
        for row in rows
        if row["method"] == BASELINE
    }
    lines = []
    for row in rows:
        under = base.get((row["source"], row["target"], row["temperature"]))
        gain = f"{100 * (float(row['value']) / under - 1):+.1f} %" if under and row["method"] != BASELINE else ""
        value = f"{float(row['value']):.2f}"
        lines.append([row["temperature"], row["target"], row["method"], value, gain, row["source"]])
    ours = [
        [*key, number(line[AVERAGE]["tau_unclipped"], 2)]
        for key, line in lines_of(cells)
        if line[AVERAGE]["tau_unclipped"] and key[2] != PLAIN
    ]
    text = f"For orientation. {CONVENTION}; ours below is under that convention. {ELSEWHERE}"
    head = ["T", "target", "method", "reported avg", f"over {BASELINE}", "source"]
    mine = [table(["T", "target", "method", "ours, avg"], ours)] if ours else []
    return ["## Reported elsewhere", text, *mine, table(head, lines)]


def _origins(cells: Sequence[Cell]) -> str:
    origins = sorted({part for cell in cells for part in cell["provenance"].split("; ") if part.startswith("decoded ")})
    return "\n".join(f"D{origin[1:]}." for origin in origins)


def decoded_pairs(config: Config) -> tuple[list[Pair], list[str]]:
    """The comparisons whose sides are both among the entrants, and a note for each other one."""
    pairs, notes = [], []
    for first, second in config.comparisons:
        unknown = [f"`{name}`" for name in (first, second) if name not in config.entrants]
        if unknown:
            verb = "are" if len(unknown) > 1 else "is"
            why = f"{' and '.join(unknown)} {verb} neither among `methods` nor `ablations`"
            notes.append(f"`{first}` over `{second}` is left out: {why}.")
        else:
            pairs.append((first, second))
    return pairs, notes


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m harness.report.table3", description="Make Table 3.")
    parser.add_argument("--config", default="pocket", help="profile or YAML file")
    parser.add_argument("--out", type=Path, help="default: <output_dir>/table3.csv; the .md is written beside it")
    parser.add_argument("--comparisons", type=Path, help="default: comparisons.csv beside --out")
    parser.add_argument("--cells", type=Path, help="default: ablations.csv beside --out")
    parser.add_argument("--reported", type=Path, default=project_path(REPORTED), help="folder of reported numbers")
    parser.add_argument("--allow-missing", action="store_true", help="leave out what has no records")
    arguments = parser.parse_args(argv)
    try:
        config = load_config(arguments.config, check=False)
        if not config.ablations and not config.comparisons:
            raise ReportError("neither ablations nor comparisons name anything, so Table 3 has no rows; name some")
        inputs = read_inputs(config, arguments.allow_missing, config.entrants, timing=False)
        settings = Settings(config.report.bootstrap, config.report.confidence)
        text = cells_text(build_cells(replace(inputs, methods=tuple(config.ablations)), settings))
        cells = list(csv.DictReader(io.StringIO(text)))
        pairs, left_out = decoded_pairs(config)
        compared, notes = compare(inputs, pairs, settings)
    except ValueError as error:
        parser.exit(2, f"{error}\n")
    about = {name: describe(config, name) for name in config.ablations}
    out = arguments.out or project_path(config.output_dir) / "table3.csv"
    pairs_out = arguments.comparisons or out.with_name("comparisons.csv")
    cells_out = arguments.cells or out.with_name("ablations.csv")
    reported = read_rows(arguments.reported / PAPERS_TABLE)
    write_text(out, table_csv(inputs, cells, about))
    write_text(out.with_suffix(".md"), table_md(inputs, cells, about, compared, [*left_out, *notes], reported))
    write_text(pairs_out, table_text(COMPARED, compared))
    write_text(cells_out, text)
    print(f"{out}, {out.with_suffix('.md')}, {pairs_out} and {cells_out}")


if __name__ == "__main__":
    main()
