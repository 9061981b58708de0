"""How tables look as Markdown: what `table1.md` and `table3.md` have in common.

Knows lines, columns, digits and the wording of what both define. Reads cells as text, `columns.Cell`; computes
nothing, and does not know which section stands in which table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from harness.report.columns import Cell
from harness.report.inputs import AVERAGE

#: A further column of a grid: a line's cells by suite -> its text.
Column = Callable[[Mapping[str, Cell]], str]

DEFINITION = """\
**Acceptance length** = tokens committed per verify step: the target's own token in, the token of the prefill
out, counted after stops and the token budget, total tokens over total steps. In brackets the interval (95 %
unless `report.confidence` says otherwise): prompts are resampled, and the spread between the drafters of
several seeds enters by Student's t. `avg` is the plain mean over the suites shown."""
ONE_SEED = """\
**With one seed the interval is over prompts only.** It says nothing about what another training run would give,
however narrow it is and whatever it excludes."""
GAIN = """\
Relative gain in acceptance length, paired by prompt and by seed: the same prompts are drawn for both methods. An
interval that holds 0 does not tell a gain from none."""
CONVENTION = (
    "The papers count raw accepted tokens + 1, the last step uncut, as a mean of response means "
    "(`tau_unclipped` in cells.csv)"
)
ELSEWHERE = "The papers' averages are over other targets and suites and cannot be compared with ours."

#: Beginnings of flags that concern a drafter, whatever the suite.
OF_DRAFTERS = ("under-trained", "imported from", "made for another")


def one_seed(cells: Iterable[Cell]) -> str:
    """The warning, if any line rests on one seed alone."""
    return ONE_SEED if any(cell["seeds"] == "1" for cell in cells) else ""


def seeds_of(row: Mapping[str, Cell]) -> str:
    """How many seeds are behind a line; `1 to 3` where suites differ."""
    counts = sorted({int(cell["seeds"]) for cell in row.values()})
    return f"{counts[0]} to {counts[-1]}" if len(counts) > 1 else str(counts[0])


def by_seed(text: str, digits: int, percent: bool = False) -> str:
    """The figures under each seed alone, `3.21, 3.22`."""
    return ", ".join(number(value, digits, percent) for value in text.split())


def gains_of(row: Mapping[str, Cell]) -> str:
    return by_seed(row.get(AVERAGE, {}).get("gain_by_seed", ""), 1, True)


def suites_of(cells: Iterable[Cell]) -> list[str]:
    return list(dict.fromkeys(cell["suite"] for cell in cells if cell["suite"] != AVERAGE))


def lines_of(cells: Iterable[Cell]) -> list[tuple[tuple[str, str, str], dict[str, Cell]]]:
    """Cells by suite for each line (temperature, target, method) of a table, in the order of the cells."""
    rows: dict[tuple[str, str, str], dict[str, Cell]] = {}
    for cell in cells:
        key = (f"{float(cell['temperature']):g}", cell["target"], cell["method"])
        rows.setdefault(key, {})[cell["suite"]] = cell
    return list(rows.items())


def grid(
    cells: Sequence[Cell],
    show: Callable[[Cell], str],
    extra: Mapping[str, Column] | None = None,
    lead: Mapping[str, Column] | None = None,
) -> str:
    """One line per temperature, target and method, one column per suite; lines with nothing to show are left out.

    extra: further columns behind those of the suites; lead: further ones before them.
    """
    suites, extra, lead = [*suites_of(cells), AVERAGE], extra or {}, lead or {}
    lines = []
    for key, row in lines_of(cells):
        values = [show(row[suite]) if suite in row else "" for suite in suites]
        if any(values):
            before, behind = ([find(row) for find in more.values()] for more in (lead, extra))
            lines.append([*key, *before, *values, *behind])
    return table(["T", "target", "method", *lead, *suites, *extra], lines) if lines else ""


def section(
    title: str,
    texts: Sequence[str],
    cells: Sequence[Cell],
    show: Callable[[Cell], str],
    extra: Mapping[str, Column] | None = None,
) -> str:
    """A heading, texts and a grid; nothing at all where the grid is empty."""
    lines = grid(cells, show, extra)
    return "\n\n".join([f"## {title}", *filter(None, texts), lines]) if lines else ""


def table(head: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    rows = [list(head), ["---"] * len(head), *map(list, lines)]
    return "\n".join("| " + " | ".join(text.replace("|", "\\|") for text in row) + " |" for row in rows)


def number(text: str, digits: int, percent: bool = False) -> str:
    """A figure with so many digits behind the point, as `28.6 %` if a percentage; empty stays empty."""
    if not text:
        return ""
    return f"{100 * float(text):.{digits}f} %" if percent else f"{float(text):.{digits}f}"


def with_interval(name: str, digits: int, percent: bool = False) -> Callable[[Cell], str]:
    """A value and its limits, `3.97 [3.80, 4.14]`."""

    def show(cell: Cell) -> str:
        value = number(cell[name], digits, percent)
        low, high = (number(cell[name + end], digits) for end in ("_low", "_high"))
        if percent:
            low, high = (number(cell[name + end], digits, True).removesuffix(" %") for end in ("_low", "_high"))
        return f"{value} [{low}, {high}]" if value and low and high else value

    return show


def warnings(cells: Sequence[Cell]) -> str:
    """Flags that concern a whole drafter or make a cell meaningless, once each, right under the table."""
    found: dict[str, list[str]] = {}
    for cell in cells:
        for flag in cell["flags"].split("; "):
            if flag.startswith((*OF_DRAFTERS, "tau=1.00", "no average")):
                place = f"{cell['target']} {cell['method']}"
                if not flag.startswith(OF_DRAFTERS):
                    place += f", {cell['suite']}, T = {float(cell['temperature']):g}"
                found.setdefault(flag, []).append(place)
    return "\n".join(f"* {'; '.join(dict.fromkeys(places))}: **{flag}**" for flag, places in found.items())
