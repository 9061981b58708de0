"""`results/table1.csv` and `.md`: the paper's Table 1 from our records.

Knows layout and wording. Every number is read from `cells.csv`; nothing is computed here, so a table can be
made again from the committed cells alone. The order of rows and suites is that of the cells.

    python -m harness.report.table1 --cells results/cells.csv --out results/table1.csv
"""

from __future__ import annotations

import argparse
import csv
import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from harness.config import project_path
from harness.report.columns import Cell, read_cells
from harness.report.inputs import AVERAGE, PLAIN, REPORTED, ReportError, read_reported, write_text

DEFINITION = """\
**Acceptance length** = tokens committed per verify step: the target's own token in, the token of the prefill
out, counted after stops and the token budget, total tokens over total steps. In brackets the interval (95 %
unless `report.confidence` says otherwise): prompts are resampled, and the spread between the drafters of
several seeds enters by Student's t. `avg` is the plain mean over the suites shown. `ar` drafts nothing and is
1 by definition."""
ONE_SEED = """\
**With one seed the interval is over prompts only.** It says nothing about what another training run would give,
however narrow it is and whatever it excludes."""
GAIN = """\
Relative gain in acceptance length, paired by prompt and by seed: the same prompts are drawn for both methods. An
interval that holds 0 does not tell a gain from none."""
ACCURACY = """\
Share of responses graded right; `avg` is the mean over those suites that are scored. Exact-match decoding must
not change it: responses that differ from those of `ar` are counted in the notes."""


def table_csv(cells: Sequence[Cell]) -> str:
    """`temperature,target,method,<suites>,avg`: acceptance lengths, empty where a cell is missing."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    suites = [*_suites(cells), AVERAGE]
    writer.writerow(["temperature", "target", "method", *suites])
    for (temperature, target, method), row in _rows(cells):
        values = [_number(row[s]["tau"], 3) if s in row else "" for s in suites]
        writer.writerow([temperature, target, method, *values])
    return out.getvalue()


def table_md(cells: Sequence[Cell], reported: dict) -> str:
    """The same with intervals, gains, accuracy, speed, what the verifier knew, and the reported numbers."""
    tau, gain, accuracy = _with_interval("tau", 2), _with_interval("gain", 1, True), _with_interval("accuracy", 1, True)
    drafting = [cell for cell in cells if cell["method"] != PLAIN]
    gained = [cell for cell in drafting if cell["gain"]]
    parts = ["# Table 1: acceptance length", DEFINITION, _one_seed(drafting)]
    parts += [_grid(cells, tau, {"seeds": _seeds}), _warnings(cells)]
    parts += [
        _section("Gain over dflash", [GAIN, _one_seed(gained)], cells, gain, {"seeds": _seeds, "avg by seed": _gains}),
        _section("Accuracy", [ACCURACY], cells, accuracy),
        _speed(cells),
        _known(cells),
        _reported(cells, reported),
        _notes(cells),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _one_seed(cells: Iterable[Cell]) -> str:
    return ONE_SEED if any(cell["seeds"] == "1" for cell in cells) else ""


def _seeds(row: Mapping[str, Cell]) -> str:
    """How many seeds are behind a line; `1 to 3` where suites differ."""
    counts = sorted({int(cell["seeds"]) for cell in row.values()})
    return f"{counts[0]} to {counts[-1]}" if len(counts) > 1 else str(counts[0])


def _gains(row: Mapping[str, Cell]) -> str:
    return ", ".join(_number(gain, 1, True) for gain in row.get(AVERAGE, {}).get("gain_by_seed", "").split())


def _suites(cells: Iterable[Cell]) -> list[str]:
    return list(dict.fromkeys(cell["suite"] for cell in cells if cell["suite"] != AVERAGE))


def _rows(cells: Iterable[Cell]) -> list[tuple[tuple[str, str, str], dict[str, Cell]]]:
    rows: dict[tuple[str, str, str], dict[str, Cell]] = {}
    for cell in cells:
        key = (f"{float(cell['temperature']):g}", cell["target"], cell["method"])
        rows.setdefault(key, {})[cell["suite"]] = cell
    return list(rows.items())


def _grid(
    cells: Sequence[Cell],
    show: Callable[[Cell], str],
    extra: Mapping[str, Callable[[Mapping[str, Cell]], str]] | None = None,
) -> str:
    """One line per temperature, target and method, one column per suite; lines with nothing to show are left out.

    extra: further columns, each a function of a line's cells by suite.
    """
    suites, extra = [*_suites(cells), AVERAGE], extra or {}
    lines = []
    for key, row in _rows(cells):
        values = [show(row[suite]) if suite in row else "" for suite in suites]
        if any(values):
            lines.append([*key, *values, *(find(row) for find in extra.values())])
    return _table(["T", "target", "method", *suites, *extra], lines) if lines else ""


def _section(title: str, texts: Sequence[str], cells: Sequence[Cell], show: Callable[[Cell], str], extra=None) -> str:
    grid = _grid(cells, show, extra)
    return "\n\n".join([f"## {title}", *filter(None, texts), grid]) if grid else ""


def _table(head: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    rows = [list(head), ["---"] * len(head), *map(list, lines)]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def _number(text: str, digits: int, percent: bool = False) -> str:
    if not text:
        return ""
    return f"{100 * float(text):.{digits}f} %" if percent else f"{float(text):.{digits}f}"


def _with_interval(name: str, digits: int, percent: bool = False) -> Callable[[Cell], str]:
    """A value and its limits, `3.97 [3.80, 4.14]`."""

    def show(cell: Cell) -> str:
        value = _number(cell[name], digits, percent)
        low, high = (_number(cell[name + end], digits) for end in ("_low", "_high"))
        if percent:
            low, high = (_number(cell[name + end], digits, True).removesuffix(" %") for end in ("_low", "_high"))
        return f"{value} [{low}, {high}]" if value and low and high else value

    return show


def _speed(cells: Sequence[Cell]) -> str:
    """Speed over all timed suites together, with the parts of a round that explain it."""
    lines = []
    for key, row in _rows(cells):
        cell = row.get(AVERAGE)
        if cell and cell["tokens_per_s"]:
            spread = (
                f"{_number(cell['speedup'], 2)} [{_number(cell['speedup_low'], 2)}, {_number(cell['speedup_high'], 2)}]"
            )
            parts = [_number(cell[name], 2) for name in ("t_ar_ms", "t_verify_ms", "t_draft_ms", "host_ms")]
            predicted = _number(cell["speedup_predicted"], 2)
            lines.append([*key, _number(cell["tokens_per_s"], 1), spread if cell["speedup"] else "", predicted, *parts])
    untimed = sorted({key[0] for key, _ in _rows(cells)} - {line[0] for line in lines}, key=float)
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
    parts = ["## Speed", text, _table(head, lines), _over_generate(cells).rstrip(), where, missing]
    return "\n\n".join(filter(None, parts))


def _over_generate(cells: Sequence[Cell]) -> str:
    """How our baseline compares with `generate` of transformers, where that was timed and wrote the same."""
    lines = []
    for cell in cells:
        if cell["suite"] == AVERAGE and cell["method"] == PLAIN and cell["generate_timed"]:
            where = f"`{PLAIN}` on {cell['target']}, T = {float(cell['temperature']):g}"
            same, timed = cell["generate_same"], cell["generate_timed"]
            if cell["speedup_over_generate"]:
                ratio = _number(cell["speedup_over_generate"], 2)
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
    for key, row in _rows(cells):
        for suite, cell in row.items():
            if cell["relay_rounds"]:
                values = [_number(cell[n], 1, n != "mean_live_masks") for n in names]
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
    return f"## What the verifier knew\n\n{text}\n\n{_table(head, lines)}"


def _reported(cells: Sequence[Cell], reported: dict) -> str:
    """Reported numbers beside ours where target and suite are the same; else the paper's averages, for orientation."""
    text = (
        "The papers count raw accepted tokens + 1, the last step uncut, as a mean of response means "
        "(`tau_unclipped` in cells.csv); ours below is under that convention."
    )
    grid = _grid(
        [cell for cell in cells if cell["reported"]],
        lambda cell: f"{_number(cell['tau_unclipped'], 2)} / {_number(cell['reported'], 2)}",
    )
    if grid:
        sources = ", ".join(sorted({cell["reported_source"] for cell in cells if cell["reported_source"]}))
        mean = "An `avg` that is reported here is our mean over these suites, not a printed one."
        return f"## Reported beside ours\n\n{text} Each cell: ours / reported ({sources}). {mean}\n\n{grid}"
    methods = {cell["method"] for cell in cells}
    lines = [
        [f"{temperature:g}", target, method, f"{value:.2f}", source]
        for (target, method, temperature, suite), (value, source) in sorted(reported.items())
        if suite == AVERAGE and method in methods
    ]
    if not lines:
        return ""
    ours = [
        [*key, _number(row[AVERAGE]["tau_unclipped"], 2)]
        for key, row in _rows(cells)
        if AVERAGE in row and key[2] != PLAIN
    ]
    return "\n\n".join(
        [
            "## Reported elsewhere",
            f"No reported number is about a target of this table. {text} The papers' averages are over "
            "other targets "
            "and suites and cannot be compared with ours.",
            _table(["T", "target", "method", "ours, avg"], ours),
            _table(["T", "target", "method", "reported avg", "source"], lines),
        ]
    )


def _warnings(cells: Sequence[Cell]) -> str:
    """Flags that concern a whole drafter or make a cell meaningless, once each, right under the table."""
    found: dict[str, list[str]] = {}
    for cell in cells:
        for flag in cell["flags"].split("; "):
            if flag.startswith(("under-trained", "tau=1.00", "no average")):
                place = f"{cell['target']} {cell['method']}"
                if not flag.startswith("under-trained"):
                    place += f", {cell['suite']}, T = {float(cell['temperature']):g}"
                found.setdefault(flag, []).append(place)
    return "\n".join(f"* {'; '.join(dict.fromkeys(places))}: **{flag}**" for flag, places in found.items())


def _notes(cells: Sequence[Cell]) -> str:
    """Prompts, steps, seeds, disagreement with plain decoding, and every flag."""
    lines = []
    for key, row in _rows(cells):
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
    return f"## Notes\n\n{_table([*head, 'outputs unlike ar', 'no answer', 'flags'], lines)}\n\n{where}".rstrip()


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
