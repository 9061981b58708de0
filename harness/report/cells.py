"""`results/cells.csv`: one row per target x method x temperature x suite, and one for the average over suites
(`avg`).

Knows how records become numbers: which metric, which interval, against which other method. Everything is a
pure function of the files read; the same files give the same bytes.

    python -m harness.report.cells --config pocket --out results/cells.csv
"""

from __future__ import annotations

import argparse
import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.config import load_config, project_path
from harness.gauge import knowledge
from harness.report.columns import KNOWN, cells_text
from harness.report.inputs import AVERAGE, BASELINE, PLAIN, Inputs, Key, read_inputs, write_text
from harness.report.speed import speed_columns
from harness.score import bootstrap
from harness.score.metrics import Acceptance, acceptance, flags, response_mean_unclipped

MACHINE = ("device", "threads", "dtype", "torch", "transformers", "git_sha")
#: What a figure can be at all; an interval over few seeds would reach beyond.
BOUNDS = {"tau": (1.0, math.inf), "tau_unclipped": (1.0, math.inf), "accuracy": (0.0, 1.0), "gain": (-1.0, math.inf)}


@dataclass(frozen=True)
class Settings:
    """How intervals are made."""

    resamples: int = 2000
    confidence: float = 0.95


def build_cells(inputs: Inputs, settings: Settings) -> list[dict[str, Any]]:
    """All rows, by temperature, target and method in the order of the configuration; suites, then their average."""
    rows = []
    for temperature in inputs.temperatures:
        for target in inputs.targets:
            for method in inputs.methods:
                keys = [Key(target, method, temperature, suite) for suite in inputs.suites]
                keys = [key for key in keys if key in inputs.records]
                rows += [_cell(inputs, key, settings) for key in keys]
                if keys:
                    rows.append(_average(inputs, keys, rows[-len(keys) :], settings))
    return rows


def _cell(inputs: Inputs, key: Key, settings: Settings) -> dict[str, Any]:
    records = inputs.records[key]
    total = acceptance(records)
    row = {
        **key.__dict__,
        "seeds": len({record["seed"] for record in records}),
        **_counts(total),
        "histogram": " ".join(map(str, total.histogram)),
        **_intervals(inputs, [key], settings),
        **_agreement(records, inputs.records.get(Key(key.target, PLAIN, key.temperature, key.suite))),
        **speed_columns(inputs.timing, key.target, key.method, key.temperature, key.suite),
        **_known(records, key),
        "no_answer": sum(record["verdict"] == "no_answer" for record in records) if _scored(records) else None,
        "provenance": _provenance(inputs, [key]),
    }
    row["reported"], row["reported_source"] = inputs.reported.get(_reported_key(key), (None, None))
    row["flags"] = "; ".join([*flags(records, drafts=key.method != PLAIN), *training_flags(inputs, key)])
    return row


def _average(
    inputs: Inputs, keys: Sequence[Key], cells: Sequence[Mapping[str, Any]], settings: Settings
) -> dict[str, Any]:
    """The plain mean over the suites; counts are sums. Without figures where a suite is missing: a mean over fewer
    suites beside means over all of them would be compared with them.
    """
    key = Key(keys[0].target, keys[0].method, keys[0].temperature, AVERAGE)
    row: dict[str, Any] = {**key.__dict__, "seeds": min(cell["seeds"] for cell in cells)}
    row["provenance"] = _provenance(inputs, keys)
    row |= speed_columns(inputs.timing, key.target, key.method, key.temperature, None)
    missing = [suite for suite in inputs.suites if suite not in {k.suite for k in keys}]
    if missing:
        row["flags"] = "; ".join([f"no average: {', '.join(missing)} missing", *training_flags(inputs, key)])
        return row
    for name in ("prompts", "responses", "steps", "tokens"):
        row[name] = sum(cell[name] for cell in cells)
    for name in ("tau_macro", "tau_with_prefill"):
        row[name] = sum(cell[name] for cell in cells) / len(cells)
    row |= _intervals(inputs, keys, settings)
    for name in ("no_answer", "verdicts_unlike_ar", "outputs_unlike_ar"):
        known = [cell[name] for cell in cells if cell.get(name) is not None]
        row[name] = sum(known) if known else None
    reported = [inputs.reported.get(_reported_key(k)) for k in keys]
    if all(reported):  # a printed average over other suites is not ours to compare with
        row["reported"] = sum(value for value, _ in reported) / len(reported)
        row["reported_source"] = f"our mean of {reported[0][1]}"
    row["flags"] = "; ".join(training_flags(inputs, key))
    return row


def _intervals(inputs: Inputs, keys: Sequence[Key], settings: Settings) -> dict[str, Any]:
    """tau, tau_unclipped, accuracy and the gain over the baseline, each with its interval; the mean over `keys`.

    Accuracy is the mean over those suites that are scored. Drafters are compared by seed: without a seed in common
    there is no gain.
    """

    def parts(above: Callable, below: Callable, of: Sequence[Key] = keys) -> list[bootstrap.Sums]:
        return [bootstrap.sums(key.suite, inputs.records[key], above, below) for key in of]

    taus = [tau_sums(inputs, key) for key in keys]
    found = {
        "tau": bootstrap.mean_interval(taus, settings.resamples, settings.confidence),
        "tau_unclipped": bootstrap.mean_interval(parts(_unclipped, _stepped), settings.resamples, settings.confidence),
    }
    scored = [key for key in keys if _scored(inputs.records[key])]
    if scored:
        found["accuracy"] = bootstrap.mean_interval(
            parts(_score, _graded, scored), settings.resamples, settings.confidence
        )
    base = [Key(key.target, BASELINE, key.temperature, key.suite) for key in keys]
    if keys[0].method not in (PLAIN, BASELINE) and all(key in inputs.records for key in base):
        theirs = [tau_sums(inputs, key) for key in base]
        if set.intersection(*(set(part.seeds) for part in (*taus, *theirs))):
            found["gain"] = bootstrap.gain_interval(taus, theirs, settings.resamples, settings.confidence)
    columns: dict[str, Any] = {}
    for name, whole in found.items():
        inside = whole.within(*BOUNDS[name])
        columns |= {name: inside.value, f"{name}_low": inside.low, f"{name}_high": inside.high}
        columns[f"{name}_by_seed"] = inside.by_seed
    return columns


def tau_sums(inputs: Inputs, key: Key) -> bootstrap.Sums:
    """Committed tokens over verify steps of one cell, by seed and prompt."""
    return bootstrap.sums(key.suite, inputs.records[key], _committed, _steps)


def _committed(record: Mapping[str, Any]) -> float:
    return sum(record["committed"])


def _steps(record: Mapping[str, Any]) -> float:
    return len(record["committed"])


def _unclipped(record: Mapping[str, Any]) -> float:
    return response_mean_unclipped(record) if record["accepted"] else 0.0


def _stepped(record: Mapping[str, Any]) -> float:
    return float(bool(record["accepted"]))


def _score(record: Mapping[str, Any]) -> float:
    return record["score"] or 0.0


def _graded(record: Mapping[str, Any]) -> float:
    return float(record["score"] is not None)


def _scored(records: Sequence[Mapping[str, Any]]) -> bool:
    return any(record["score"] is not None for record in records)


def _counts(total: Acceptance) -> dict[str, float]:
    names = ("prompts", "responses", "steps", "tokens", "tau_macro", "tau_with_prefill")
    return {name: getattr(total, name) for name in names}


def _agreement(
    records: Sequence[Mapping[str, Any]], plain: Sequence[Mapping[str, Any]] | None
) -> dict[str, int | None]:
    """Responses unlike plain decoding's on the same prompt, turn and seed: by output, by verdict."""
    if plain is None:
        return {"outputs_unlike_ar": None, "verdicts_unlike_ar": None}
    by_name = {(r["seed"], r["prompt_id"], r["turn"]): r for r in plain}
    pairs = [(r, by_name.get((r["seed"], r["prompt_id"], r["turn"]))) for r in records]
    pairs = [(ours, theirs) for ours, theirs in pairs if theirs is not None]
    return {
        "outputs_unlike_ar": sum(a["output_ids"] != b["output_ids"] for a, b in pairs),
        "verdicts_unlike_ar": sum(a["verdict"] != b["verdict"] for a, b in pairs) if _scored(records) else None,
    }


def _known(records: Sequence[Mapping[str, Any]], key: Key) -> dict[str, Any]:
    """What the verifier knew; nothing for plain decoding or records without a trace."""
    traced = [record for record in records if record.get("trace")]
    if key.method == PLAIN or not traced:
        return {}
    found = knowledge(traced)
    return {name: found[name] for name in KNOWN}


def _reported_key(key: Key) -> tuple[str, str, float, str]:
    return (key.target.lower(), key.method, key.temperature, key.suite)


def _provenance(inputs: Inputs, keys: Sequence[Key]) -> str:
    """The record files behind a row, what decoded them, and the machine behind its speed."""
    digests = [inputs.digests[key] for key in keys if key in inputs.digests]
    if len(digests) > 1:
        digests = [hashlib.sha256(" ".join(digests).encode()).hexdigest()[:12]]
    parts = [f"records {digest}" for digest in digests]
    made = sorted({_origin(found) for key in keys for found in inputs.origins.get(key, ())})
    parts += [f"decoded {' and '.join(made)}"] if made else []
    target, method = keys[0].target, keys[0].method
    machines = [row["machine"] for row in inputs.timing if (row["target"], row["method"]) == (target, method)]
    if machines:
        facts = ", ".join(f"{name} {machines[0][name]}" for name in MACHINE if machines[0].get(name) is not None)
        parts.append(f"timed on {facts}")
    return "; ".join(parts)


def _origin(found: Mapping[str, Any]) -> str:
    commit = (found.get("git_sha") or "unknown")[:12] + (" with changes" if found.get("dirty") else "")
    return f"at commit {commit}, {found.get('dtype')}, target {found.get('target_fingerprint')}"


def training_flags(inputs: Inputs, key: Key) -> list[str]:
    """What the drafters' final marks say about where they come from: of one that was imported nothing is claimed about
    its training, and it is the same drafter under every seed.  First, what about them is of another target."""
    marks = inputs.done.get((key.target, key.method), [])
    return _of_others(inputs, key, marks) + _trained(marks)


def _of_others(inputs: Inputs, key: Key, marks: Sequence[Mapping[str, Any]]) -> list[str]:
    decoded = [found for other, origins in inputs.origins.items() for found in origins if _alike(other, key)]
    names = sorted({name for found in [*decoded, *marks] for name in found.get("other") or ()})
    return [f"made for another target: {', '.join(names)}"] if names else []


def _alike(one: Key, other: Key) -> bool:
    return (one.target, one.method) == (other.target, other.method)


def _trained(marks: Sequence[Mapping[str, Any]]) -> list[str]:
    origins = list(dict.fromkeys(_import_of(mark["imported"]) for mark in marks if mark.get("imported")))
    if origins:
        same = "" if len(marks) == 1 else f", one drafter under all {len(marks)} seeds"
        return [f"imported from {' and '.join(origins)}{same}"]
    short = [mark for mark in marks if mark.get("plateau") is False]
    if not short:
        return []
    gains = [mark["walk_gain_last_third"] for mark in short if mark.get("walk_gain_last_third")]
    # A curve has rows at evaluations only: the span begins with the last one before the last third.
    still = f" (accept_walk gained up to {max(gains):.1%} since the evaluation before the last third)" if gains else ""
    return [f"under-trained: {len(short)} of {len(marks)} drafters had not reached their plateau{still}"]


def _import_of(found: Mapping[str, Any]) -> str:
    """A source with what tells its versions apart: the commit on the hub, else the content."""
    version = f"revision {found['revision'][:12]}" if found.get("revision") else f"sha256 {found['sha256'][:12]}"
    return f"{found['source']} ({found['format']}, {version})"


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m harness.report.cells", description="Make cells.csv.")
    parser.add_argument("--config", default="pocket", help="profile or YAML file")
    parser.add_argument("--out", type=Path, help="default: <output_dir>/cells.csv")
    parser.add_argument("--allow-missing", action="store_true", help="leave out cells without records")
    arguments = parser.parse_args(argv)
    try:
        config = load_config(arguments.config, check=False)
        settings = Settings(config.report.bootstrap, config.report.confidence)
        rows = build_cells(read_inputs(config, arguments.allow_missing), settings)
    except ValueError as error:
        parser.exit(2, f"{error}\n")
    out = arguments.out or project_path(config.output_dir) / "cells.csv"
    write_text(out, cells_text(rows))
    print(f"{out}: {len(rows)} rows")


if __name__ == "__main__":
    main()
