"""`results/table1.csv` and `.md`: the paper's Table 1 from our records.

Knows layout and wording. Every number is read from `cells.csv`; nothing is computed here, so a table can be
made again from the committed cells alone. The order of rows and suites is that of the cells.

    python -m harness.report.table1 --cells results/cells.csv --out results/table1.csv
"""

from __future__ import annotations

import argparse
import csv
import io
from collections.abc import Sequence
from pathlib import Path

from harness.config import project_path
from harness.report.columns import Cell, read_cells
from harness.report.inputs import AVERAGE, BASELINE, PLAIN, REPORTED, ReportError, read_reported, write_text
from harness.report.markdown import (
    CONVENTION,
    DEFINITION,
    ELSEWHERE,
    GAIN,
    gains_of,
    grid,
    lines_of,
    number,
    one_seed,
    section,
    seeds_of,
    suites_of,
    table,
    warnings,
    with_interval,
)
from harness.score.metrics import NOT_RUN

#: Behind the definition, where the baseline stands in the table.
PLAIN_IS_ONE = " `ar` drafts nothing and is\n1 by definition."
ACCURACY = """\
Share of responses graded right; `avg` is the mean over those suites that are scored. Exact-match decoding must
not change it: responses that differ from those of `ar` are counted in the notes."""


def table_csv(cells: Sequence[Cell]) -> str:
    """`temperature,target,method,<suites>,avg`: acceptance lengths, empty where a cell is missing."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    suites = [*suites_of(cells), AVERAGE]
    writer.writerow(["temperature", "target", "method", *suites])
    for (temperature, target, method), row in lines_of(cells):
        values = [number(row[s]["tau"], 3) if s in row else "" for s in suites]
        writer.writerow([temperature, target, method, *values])
    return out.getvalue()


def table_md(cells: Sequence[Cell], reported: dict) -> str:
    """The same with intervals, gains, accuracy, speed, what the verifier knew, and the reported numbers."""
    tau, gain = with_interval("tau", 2), with_interval("gain", 1, True)
    drafting = [cell for cell in cells if cell["method"] != PLAIN]
    gained = [cell for cell in drafting if cell["gain"]]
    parts = ["# Table 1: acceptance length", DEFINITION + PLAIN_IS_ONE, one_seed(drafting)]
    parts += [grid(cells, tau, {"seeds": seeds_of}), warnings(cells)]
    behind = {"seeds": seeds_of, "avg by seed": gains_of}
    parts += [
        section(f"Gain over {BASELINE}", [GAIN, one_seed(gained)], cells, gain, behind),
        _accuracy(cells),
        _speed(cells),
        _known(cells),
        _reported(cells, reported),
        _notes(cells),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _accuracy(cells: Sequence[Cell]) -> str:
    """Shares graded right, and why some suites have none."""
    unrun = dict.fromkeys(cell["suite"] for cell in cells if NOT_RUN in cell["flags"].split("; "))
    note = f"{', '.join(unrun)}: {NOT_RUN}." if unrun else ""
    found = section("Accuracy", [ACCURACY, note], cells, with_interval("accuracy", 1, True))
    return found or (f"## Accuracy\n\n{note}" if note else "")


def _speed(cells: Sequence[Cell]) -> str:
    """Speed over all timed suites together, with the parts of a round that explain it."""
    lines = []
    for key, row in lines_of(cells):
        cell = row.get(AVERAGE)
        if cell and cell["tokens_per_s"]:
            spread = (
                f"{number(cell['speedup'], 2)} [{number(cell['speedup_low'], 2)}, {number(cell['speedup_high'], 2)}]"
            )
            parts = [number(cell[name], 2) for name in ("t_ar_ms", "t_verify_ms", "t_draft_ms", "host_ms")]
            predicted = number(cell["speedup_predicted"], 2)
            lines.append([*key, number(cell["tokens_per_s"], 1), spread if cell["speedup"] else "", predicted, *parts])
    untimed = sorted({key[0] for key, _ in lines_of(cells)} - {line[0] for line in lines}, key=float)
    missing = (
        f"Not timed: T = {', '.join(untimed)}. Only the temperatures of `timing.temperatures` are, by "
        "`python -m harness.timing`."
        if untimed
        else ""
    )
    if not lines:
        return f"## Speed\n\n{missing}"
    head = ["T", "target", "method", "tokens/s", "speed-up [slowest, fastest repeat]", "predicted"]
    head += ["t_ar", "t_verify", "t_draft", "host"]
    text = (
        "All methods in one process, interleaved prompt by prompt, batch 1, first turns, **drafters of the first seed "
        "alone**: total tokens over total seconds, median over repeats; brackets hold repeats here, no interval. "
        "Milliseconds a round from a separate instrumented pass: t_ar a one-token forward of the target, t_verify the "
        "forward over all proposals, t_draft drafting and taking in the verdict, host everything else. Predicted = "
        "tau x t_ar / (t_verify + t_draft)."
    )
    machines = sorted({cell["provenance"].partition("timed on ")[2] for cell in cells} - {""})
    where = "\n".join(f"Timed on {machine}." for machine in machines)
    parts = ["## Speed", text, table(head, lines), _over_generate(cells).rstrip(), where, missing]
    return "\n\n".join(filter(None, parts))


def _over_generate(cells: Sequence[Cell]) -> str:
    """How our baseline compares with `generate` of transformers, where that was timed and wrote the same."""
    lines = []
    for cell in cells:
        if cell["suite"] == AVERAGE and cell["method"] == PLAIN and cell["generate_timed"]:
            where = f"`{PLAIN}` on {cell['target']}, T = {float(cell['temperature']):g}"
            same, timed = cell["generate_same"], cell["generate_timed"]
            if cell["speedup_over_generate"]:
                ratio = number(cell["speedup_over_generate"], 2)
                text = f"{where}: {ratio} times the tokens/s of transformers' `generate`, over the {same} of {timed} "
                lines.append(f"{text}prompts timed with both on which they wrote the same.")
            else:
                lines.append(f"{where} is not compared with `generate`: all {timed} outputs differ.")
    return "\n\n".join(lines)


def _known(cells: Sequence[Cell]) -> str:
    """What a rejected suffix still said about the text to come, by suite."""
    names = {
        "full_acceptance": "all accepted",
        "relay_rounds": "rounds with a relay",
        "mean_live_masks": "live masks",
        "stale_right": "stale right",
        "rescue_1_4": "rescue 1-4",
        "rescue": "rescue",
        "oracle_gain": "oracle gain",
    }
    lines = []
    for key, row in lines_of(cells):
        for suite, cell in row.items():
            if cell["relay_rounds"]:
                values = [number(cell[n], 1, n != "mean_live_masks") for n in names]
                lines.append([*key, suite, *values])
    if not lines:
        return ""
    text = (
        "Of each round's verification: share of rounds with everything accepted; share that leave states behind a "
        "rejected token; how many; how often such a state names the token finally committed there; how often it does "
        "where the next draft is wrong (rescue; masks 1 to 4, all); and what an oracle choosing between the two "
        "would gain in acceptance length."
    )
    head = ["T", "target", "method", "suite", *names.values()]
    return f"## What the verifier knew\n\n{text}\n\n{table(head, lines)}"


def _reported(cells: Sequence[Cell], reported: dict) -> str:
    """Reported numbers beside ours where target and suite are the same; else the paper's averages, for orientation."""
    text = f"{CONVENTION}; ours below is under that convention."
    beside = grid(
        [cell for cell in cells if cell["reported"]],
        lambda cell: f"{number(cell['tau_unclipped'], 2)} / {number(cell['reported'], 2)}",
    )
    if beside:
        sources = ", ".join(sorted({cell["reported_source"] for cell in cells if cell["reported_source"]}))
        mean = "An `avg` that is reported here is our mean over these suites, not a printed one."
        return f"## Reported beside ours\n\n{text} Each cell: ours / reported ({sources}). {mean}\n\n{beside}"
    methods = {cell["method"] for cell in cells}
    lines = [
        [f"{temperature:g}", target, method, f"{value:.2f}", source]
        for (target, method, temperature, suite), (value, source) in sorted(reported.items())
        if suite == AVERAGE and method in methods
    ]
    if not lines:
        return ""
    ours = [
        [*key, number(row[AVERAGE]["tau_unclipped"], 2)]
        for key, row in lines_of(cells)
        if AVERAGE in row and key[2] != PLAIN
    ]
    return "\n\n".join(
        [
            "## Reported elsewhere",
            f"No reported number is about a target of this table. {text} {ELSEWHERE}",
            table(["T", "target", "method", "ours, avg"], ours),
            table(["T", "target", "method", "reported avg", "source"], lines),
        ]
    )


def _notes(cells: Sequence[Cell]) -> str:
    """Prompts, steps, seeds, disagreement with plain decoding, and every flag."""
    lines = []
    for key, row in lines_of(cells):
        for suite, cell in row.items():
            if suite == AVERAGE:
                continue
            unlike = f"{cell['outputs_unlike_ar']}/{cell['responses']}" if cell["outputs_unlike_ar"] else ""
            lines.append(
                [
                    *key,
                    suite,
                    *(cell[name] for name in ("prompts", "seeds", "steps", "tokens")),
                    unlike if key[2] != PLAIN else "",
                    cell["no_answer"],
                    cell["flags"],
                ]
            )
    head = ["T", "target", "method", "suite", "prompts", "seeds", "steps", "tokens"]
    origins = sorted({part for cell in cells for part in cell["provenance"].split("; ") if part.startswith("decoded ")})
    where = "\n".join(f"D{origin[1:]}." for origin in origins)
    return f"## Notes\n\n{table([*head, 'outputs unlike ar', 'no answer', 'flags'], lines)}\n\n{where}".rstrip()


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m harness.report.table1", description="Make Table 1.")
    parser.add_argument("--cells", type=Path, default=Path("results/cells.csv"))
    parser.add_argument("--out", type=Path, default=Path("results/table1.csv"), help="the .md is written beside it")
    parser.add_argument("--reported", type=Path, default=project_path(REPORTED), help="folder of reported numbers")
    arguments = parser.parse_args(argv)
    try:
        cells = read_cells(arguments.cells)
    except ReportError as error:
        parser.exit(2, f"{error}\n")
    write_text(arguments.out, table_csv(cells))
    write_text(arguments.out.with_suffix(".md"), table_md(cells, read_reported(arguments.reported)))
    print(f"{arguments.out} and {arguments.out.with_suffix('.md')}")


if __name__ == "__main__":
    main()
