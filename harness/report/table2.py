"""`results/table2.csv`, `table2.md` and `concurrency.csv`: throughput by concurrency, the paper's Table 2.

Knows throughput rows (`harness/throughput.py`), medians over repeats, and layout. Measures nothing.

Throughput is total tokens over total seconds of one repeat; a speed-up is the ratio of two throughputs **of the same
repeat** at the same concurrency on the same prompts. The figure is the median over repeats, with the smallest and the
largest beside it.

    python -m harness.report.table2 --config pocket --out results/table2.csv --tidy results/concurrency.csv
"""

from __future__ import annotations

import argparse
import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from harness.config import Config, load_config, project_path
from harness.report.checks import ReportError, check_loads
from harness.report.columns import CONCURRENCY, table_text
from harness.report.inputs import PLAIN, REPORTED, read_jsonl, read_rows, write_text
from harness.report.markdown import number, table

#: Throughput that the paper prints.
PRINTED = "dflow_table2.csv"
DEFINITION = """\
Tokens a second of all sequences together, T = 0: committed tokens over wall time, from the first prompt in to the last
response out, prefills included; the place of a sequence that ends is taken by the next prompt. Behind it the speed-up
over `ar` **at the same concurrency**, in brackets between the slowest and the fastest repeat (no interval). All methods
in one process, taking turns, **drafters of the first seed alone**, every prompt once."""
PAPER = """\
The paper's speed-ups (Table 2) are of other targets, on another machine and another engine, which batches prefills and
keeps a queue: set the course beside ours, not the numbers."""
Key = tuple[str, str, str, int]  # target, suite, method, concurrency


def build_rows(rows: Iterable[Mapping[str, Any]], printed: Mapping[Key, tuple[float, str]]) -> list[dict[str, Any]]:
    """A row per target, suite, method and concurrency, in the order of `rows`.

    printed: throughput that a paper prints, and where, by target in lower case, suite, method and concurrency.
    """
    found: dict[Key, list[Mapping[str, Any]]] = {}
    first: dict[Key, float] = {}
    for row in rows:
        key = (row["target"], row["suite"], row["method"], row["concurrency"])
        if row["kind"] == "load":
            found.setdefault(key, []).append(row)
        else:
            first[key] = row["seconds"]
    return [_row(key, mine, found, first.get(key), printed) for key, mine in found.items()]


def _row(
    key: Key,
    mine: Sequence[Mapping[str, Any]],
    found: Mapping[Key, Sequence[Mapping[str, Any]]],
    first: float | None,
    printed: Mapping[Key, tuple[float, str]],
) -> dict[str, Any]:
    target, suite, method, level = key
    speeds = {row["repeat"]: row["tokens"] / row["seconds"] for row in mine}
    plain = {row["repeat"]: row["tokens"] / row["seconds"] for row in found.get((target, suite, PLAIN, level), ())}
    ratios = [speeds[repeat] / plain[repeat] for repeat in speeds if repeat in plain]
    steps = sum(row["steps"] for row in mine)
    theirs, source = printed.get((target.lower(), suite, method, level), (None, None))
    base, _ = printed.get((target.lower(), suite, PLAIN, level), (None, None))
    unlike = [row["unlike_ar"] for row in mine if row["unlike_ar"] is not None]
    return {
        "target": target,
        "suite": suite,
        "method": method,
        "concurrency": level,
        "max_proposals": mine[0]["max_proposals"],
        "prompts": mine[0]["prompts"],
        "repeats": len(speeds),
        "tokens_per_s": median(speeds.values()),
        "tokens_per_s_low": min(speeds.values()),
        "tokens_per_s_high": max(speeds.values()),
        "speedup": median(ratios) if ratios else None,
        "speedup_low": min(ratios, default=None),
        "speedup_high": max(ratios, default=None),
        # every response has one token of its prefill, which no step made
        "tau": sum(row["tokens"] - row["prompts"] for row in mine) / steps if steps else None,
        "busy_rows": steps / sum(row["rounds"] for row in mine) if steps else None,
        "first_s": first,
        "unlike_ar": max(unlike, default=None),
        "reported": theirs,
        "reported_speedup": theirs / base if theirs and base else None,
        "reported_source": source,
        "machine": ", ".join(f"{name} {value}" for name, value in mine[0]["machine"].items()),
    }


def read_printed(folder: Path) -> dict[Key, tuple[float, str]]:
    """Throughput by target in lower case, suite, method and concurrency, with its source."""
    rows = [row for row in read_rows(folder / PRINTED) if row["metric"] == "throughput"]
    return {
        (row["target"].lower(), row["suite"], row["method"], int(row["concurrency"])): (
            float(row["value"]),
            row["source"],
        )
        for row in rows
    }


def lines_of(rows: Sequence[Mapping[str, Any]]) -> dict[tuple[str, str, str], dict[int, Mapping[str, Any]]]:
    """Rows by concurrency for each line (target, suite, method) of the table."""
    lines: dict[tuple[str, str, str], dict[int, Mapping[str, Any]]] = {}
    for row in rows:
        lines.setdefault((row["target"], row["suite"], row["method"]), {})[row["concurrency"]] = row
    return lines


def table_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """`target,suite,method,1,2,...,speedup_1,...`: tokens a second, then speed-ups, empty where not measured."""
    levels = levels_of(rows)
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["target", "suite", "method", *levels, *(f"speedup_{level}" for level in levels)])
    for key, line in lines_of(rows).items():
        speeds = [f"{line[level]['tokens_per_s']:.6g}" if level in line else "" for level in levels]
        ratios = [line.get(level, {}).get("speedup") for level in levels]
        writer.writerow([*key, *speeds, *("" if ratio is None else f"{ratio:.4g}" for ratio in ratios)])
    return out.getvalue()


def levels_of(rows: Iterable[Mapping[str, Any]]) -> list[int]:
    return sorted({row["concurrency"] for row in rows})


def table_md(rows: Sequence[Mapping[str, Any]], printed: Mapping[Key, tuple[float, str]]) -> str:
    """The same with ranges, where drafting stops paying, how full batches were, and the paper's speed-ups."""
    levels = levels_of(rows)
    lines = [
        [*key, *(_shown(line[level]) if level in line else "" for level in levels), _crossing(line)]
        for key, line in lines_of(rows).items()
    ]
    head = ["target", "suite", "method", *map(str, levels), "drafting pays"]
    parts = ["# Table 2: throughput by concurrency", DEFINITION, table(head, lines), _notes(rows)]
    parts.append(_paper(printed))
    return "\n\n".join(part for part in parts if part) + "\n"


def _shown(row: Mapping[str, Any]) -> str:
    text = f"{row['tokens_per_s']:.0f}"
    if row["method"] != PLAIN and row["speedup"] is not None:
        text += f" ({row['speedup']:.2f}x [{row['speedup_low']:.2f}, {row['speedup_high']:.2f}])"
    return text


def _crossing(line: Mapping[int, Mapping[str, Any]]) -> str:
    """Up to which concurrency a method is faster than `ar`, by the median and in every repeat."""
    known = {level: row for level, row in sorted(line.items()) if row["speedup"] is not None}
    if not known or next(iter(known.values()))["method"] == PLAIN:
        return ""
    slower = next((level for level, row in known.items() if row["speedup"] < 1), None)
    unsure = [str(level) for level, row in known.items() if row["speedup_low"] < 1 <= row["speedup_high"]]
    said = "at every level" if slower is None else f"below {slower}" if slower > min(known) else "nowhere"
    return f"{said}; repeats differ at {', '.join(unsure)}" if unsure else said


def _notes(rows: Sequence[Mapping[str, Any]]) -> str:
    lines = []
    for level in levels_of(rows):
        mine = [row for row in rows if row["concurrency"] == level]
        prompts = sorted({row["prompts"] for row in mine})
        caps = sorted({row["max_proposals"] for row in mine if row["max_proposals"] is not None})
        busy = [row["busy_rows"] for row in mine if row["busy_rows"] is not None]
        least, most = (f"{pick(busy):.1f}" if busy else "none" for pick in (min, max))
        text = f"* {level} at a time: {', '.join(map(str, prompts))} prompts a suite, {least} to {most} rows busy"
        lines.append(text + (f"; at most {caps[0]} proposals a round" if caps else ""))
    unlike = [row for row in rows if row["unlike_ar"]]
    for row in unlike:
        place = f"{row['target']}, {row['suite']}, {row['method']} at {row['concurrency']}"
        lines.append(f"* **{place}: {row['unlike_ar']} of {row['prompts']} outputs are not those of `{PLAIN}`**")
    if not unlike and any(row["unlike_ar"] == 0 for row in rows):
        lines.append(f"* every output of every method is that of `{PLAIN}` at the same concurrency")
    lines += [f"* measured on: {machine}" for machine in dict.fromkeys(row["machine"] for row in rows)]
    return "## Notes\n\n" + "\n".join(lines)


def _paper(printed: Mapping[Key, tuple[float, str]]) -> str:
    levels = sorted({level for *_, level in printed})
    lines: dict[tuple[str, str, str], list[str]] = {}
    for (target, suite, method, level), (value, _) in printed.items():
        base = printed.get((target, suite, PLAIN, level))
        if method != PLAIN and base:
            line = lines.setdefault((target, suite, method), [""] * len(levels))
            line[levels.index(level)] = number(str(value / base[0]), 2)
    if not lines:
        return ""
    grid = table(["target", "suite", "method", *map(str, levels)], [[*key, *line] for key, line in lines.items()])
    return f"## Reported\n\n{PAPER}\n\n{grid}"


def rows_of(config: Config) -> list[dict[str, Any]]:
    """The rows of a configuration.  Raises ReportError for files that are missing or not whole."""
    if not config.concurrency.suites:
        raise ReportError("concurrency.suites names no suite, so there is no Table 2; name one of suites")
    base, measured = project_path(config.output_dir), []
    for target in config.targets:
        path = base / "throughput" / f"{target}.jsonl"
        if not path.is_file():
            raise ReportError(f"{path} is missing; make it with python -m harness.throughput, or run the pipeline")
        rows = read_jsonl(path)
        check_loads(path, rows, config.methods)
        measured += rows
    order = {method: place for place, method in enumerate(config.methods)}
    made = build_rows(measured, read_printed(project_path(REPORTED)))
    targets, suites = list(config.targets), list(config.concurrency.suites)
    made = [row for row in made if row["suite"] in suites and row["method"] in order]
    return sorted(
        made,
        key=lambda row: (
            targets.index(row["target"]),
            suites.index(row["suite"]),
            order[row["method"]],
            row["concurrency"],
        ),
    )


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m harness.report.table2", description="Make Table 2.")
    parser.add_argument("--config", default="pocket", help="profile or YAML file")
    parser.add_argument("--out", type=Path, help="default: <output_dir>/table2.csv; the .md beside it")
    parser.add_argument("--tidy", type=Path, help="default: <output_dir>/concurrency.csv")
    arguments = parser.parse_args(argv)
    try:
        config = load_config(arguments.config, check=False)
        rows = rows_of(config)
    except ValueError as error:
        parser.exit(2, f"{error}\n")
    base = project_path(config.output_dir)
    out, tidy = arguments.out or base / "table2.csv", arguments.tidy or base / "concurrency.csv"
    write_text(tidy, table_text(CONCURRENCY, rows))
    write_text(out, table_csv(rows))
    write_text(out.with_suffix(".md"), table_md(rows, read_printed(project_path(REPORTED))))
    print(f"{out}: {len(rows)} cells")


if __name__ == "__main__":
    main()
