"""Where the files of a run lie, and how they are read: records, timing rows, drafters' marks, reported
numbers.

Knows paths and formats. Computes nothing. A file that the configuration asks for and that is not there is an
error that names the stage that makes it.
"""

from __future__ import annotations

import csv
import hashlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

from harness.config import Config, project_path, temperature_label
from harness.provenance import origin_path
from harness.report.checks import IDENTITY, ReportError, check_records, check_same_prompts, check_timing
from methods.recipes import recipe

REPORTED = Path("results") / "reported"
AVERAGE = "avg"
#: The method without a drafter: what speed-ups are over. And the method that gains are over.
PLAIN, BASELINE = "ar", "dflash"
#: The arm of timing rows that is no method: transformers' own `generate`.
GENERATE = "generate"


@dataclass(frozen=True, order=True)
class Key:
    """What one cell is about."""

    target: str
    method: str
    temperature: float
    suite: str


@dataclass(frozen=True)
class Inputs:
    """All that a report is made from, in the order of the configuration.

    methods: the entrants that the report is about, recipes and variants alike; records and marks may hold others.
    records: by cell, all seeds together. digests: by cell, a short hash of its record files. origins: by cell,
    what `harness.provenance.origin` wrote beside those files, for those that have one.
    timing: rows of every target. done: final marks of the drafters that decoded, by (target, method), a list over
    seeds; those of an entrant that borrows its weights are the lender's.
    reported: (target in lower case, method, temperature, suite) -> (value, source).
    """

    targets: tuple[str, ...]
    methods: tuple[str, ...]
    temperatures: tuple[float, ...]
    suites: tuple[str, ...]
    records: Mapping[Key, list[dict[str, Any]]]
    digests: Mapping[Key, str]
    timing: Sequence[dict[str, Any]] = ()
    done: Mapping[tuple[str, str], list[dict[str, Any]]] = field(default_factory=dict)
    reported: Mapping[tuple[str, str, float, str], tuple[float, str]] = field(default_factory=dict)
    origins: Mapping[Key, list[dict[str, Any]]] = field(default_factory=dict)


def read_inputs(
    config: Config, allow_missing: bool = False, entrants: Sequence[str] | None = None, timing: bool = True
) -> Inputs:
    """All that the configuration asks for, of `entrants` (default: its methods); `timing` False leaves speed out.

    Raises ReportError for missing record files unless `allow_missing`, and for files that are not whole (see
    `harness.report.checks`) in any case.
    """
    base = project_path(config.output_dir)
    names = tuple(config.methods if entrants is None else entrants)
    files = _record_files(base, config, names, allow_missing)
    records = {key: [row for path in paths for row in paths[path]] for key, paths in files.items()}
    return Inputs(
        targets=tuple(config.targets),
        methods=names,
        temperatures=tuple(float(t) for t in config.temperatures),
        suites=tuple(config.suites),
        records=records,
        digests={key: digest(paths) for key, paths in files.items()},
        origins={
            key: [read_object(origin_path(path), "harness.run_suite") for path in paths if origin_path(path).is_file()]
            for key, paths in files.items()
        },
        # a table without speed is still a table: timing wants the machine for itself and may come later
        timing=timing_rows(config) if timing else [],
        done=read_done(base, config, names),
        reported=read_reported(project_path(REPORTED)),
    )


def _record_files(
    base: Path, config: Config, entrants: Sequence[str], allow_missing: bool
) -> dict[Key, dict[Path, list[dict[str, Any]]]]:
    """Checked rows by cell and file, a file per seed."""
    found: dict[Key, dict[Path, list[dict[str, Any]]]] = {}
    for target in config.targets:
        for suite, settings in config.suites.items():
            asked: dict[Path, list[dict[str, Any]]] = {}
            for method, temperature, seed in product(entrants, config.temperatures, config.seeds):
                path = record_path(base, target, method, suite, temperature, seed)
                if not _existing([path], "harness.run_suite", allow_missing):
                    continue
                asked[path] = rows = read_jsonl(path)
                identity = dict(zip(IDENTITY, (target, method, suite, temperature, seed), strict=True))
                check_records(path, rows, identity, settings.prompts)
                found.setdefault(Key(target, method, float(temperature), suite), {})[path] = rows
            check_same_prompts(asked)
    return found


def drafts(config: Config, name: str) -> bool:
    """Whether an entrant has a drafter at all."""
    return recipe(config.entrant(name).recipe).drafts


def figure_names(config: Config) -> list[str]:
    """The figures there is something to draw in: what the verifier knew stands in traces alone, `dose` wants a
    comparison with the baseline, and speed plain decoding or a method that drafts."""
    drafting = [name for name in config.entrants if drafts(config, name)]
    curves = any(not config.pretrained_for(target, name) for target in config.targets for name in drafting)
    over = any(second == BASELINE and {first, second} <= set(config.entrants) for first, second in config.comparisons)
    traced = bool(drafting) and config.decode.trace
    loaded = bool(config.concurrency.suites) and PLAIN in config.methods and len(config.methods) > 1
    found = {"acceptance": bool(drafting), "training": curves, "position": traced, "dose": traced and over}
    found |= {"concurrency": loaded, "latency_breakdown": any(drafts(config, name) for name in config.methods)}
    return [name for name, drawn in found.items() if drawn]


def trained(config: Config, name: str) -> bool:
    """Whether an entrant has a drafter of its own, with a learning curve: borrowed weights have their lender's."""
    return drafts(config, name) and config.entrant(name).weights == name


def timing_rows(config: Config) -> list[dict[str, Any]]:
    """Timing rows of all targets, as far as there are some."""
    found = []
    for target in config.targets:
        path = project_path(config.output_dir) / "timing" / f"{target}.jsonl"
        if path.is_file():
            rows = read_jsonl(path)
            check_timing(path, rows)
            found += rows
    return found


def record_path(base: Path, target: str, method: str, suite: str, temperature: float, seed: int) -> Path:
    """Where the responses of one cell and seed lie."""
    return base / "records" / target / method / f"{suite}-T{temperature_label(temperature)}-seed{seed}.jsonl"


def drafter_folder(base: Path, target: str, method: str, seed: int) -> Path:
    """Where a trained drafter, its learning curve and its final marks lie."""
    return base / "drafters" / target / f"{method}-seed{seed}"


def read_done(base: Path, config: Config, entrants: Sequence[str]) -> dict[tuple[str, str], list[dict[str, Any]]]:
    """Final marks of the drafter behind every entrant, as far as there are some."""
    marks: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for target in config.targets:
        for name in entrants:
            for seed in config.seeds:
                path = drafter_folder(base, target, config.entrant(name).weights, seed) / "done.json"
                if path.is_file():
                    marks.setdefault((target, name), []).append(read_object(path, "harness.train"))
    return marks


def read_reported(folder: Path) -> dict[tuple[str, str, float, str], tuple[float, str]]:
    """Acceptance lengths that papers print, of each the first in the order of `reported_paths`."""
    found: dict[tuple[str, str, float, str], tuple[float, str]] = {}
    for path in reported_paths(folder):
        for row in read_rows(path):
            if row.get("metric") == "acceptance_length" and row["temperature"] and row["suite"]:
                key = (row["target"].lower(), row["method"], float(row["temperature"]), row["suite"])
                found.setdefault(key, (float(row["value"]), row["source"]))
    return found


def reported_paths(folder: Path) -> list[Path]:
    """The CSV files of reported numbers, those of the paper that is reproduced here first: where several papers print
    a cell, its numbers are of drafters trained on the same data."""
    return sorted(folder.glob("*.csv"), key=lambda path: (not path.name.startswith("dflow_"), path.name))


def read_rows(path: Path) -> list[dict[str, str]]:
    """Rows of a CSV file of reported numbers, in its order; none if there is no such file."""
    if not path.is_file():
        return []
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    """Rows of a JSON-lines file. Raises ReportError that names the line."""
    rows = []
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                try:
                    rows.append(json.loads(line))
                except json.JSONDecodeError as error:
                    raise ReportError(f"{path}, line {number}: not JSON ({error}); make the file again") from error
    return rows


def read_object(path: Path, stage: str) -> dict[str, Any]:
    """One JSON object. Raises ReportError that names the file and the stage that makes it."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ReportError(f"{path} is damaged ({error}); delete it and run python -m {stage} again") from error
    if not isinstance(found, dict):
        raise ReportError(f"{path} holds no JSON object; delete it and run python -m {stage} again")
    return found


def digest(paths: Iterable[Path]) -> str:
    """Short hash of files' contents."""
    total = hashlib.sha256()
    for path in paths:
        total.update(path.read_bytes())
    return total.hexdigest()[:12]


def write_text(path: Path, text: str) -> None:
    """Write under a temporary name and rename: the file exists whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)


def _existing(paths: Sequence[Path], stage: str, allow_missing: bool) -> list[Path]:
    missing = [path for path in paths if not path.is_file()]
    if missing and not allow_missing:
        raise ReportError(f"{missing[0]} is missing; make it with python -m {stage}, or run the pipeline")
    return [path for path in paths if path not in missing]
