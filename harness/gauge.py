"""Gauges of a decoded run: is there anything between two rounds that a relay could carry?

It knows the traces of records (proposals and target argmax of every verify row) and nothing else: no model,
no suite, no score.  ``python -m harness.gauge RECORDS...`` prints them per suite and overall; `knowledge` is
the same as a pure function for whoever makes tables, `by_position` tells the masks apart.

Definitions (K proposals a round, rows and masks as in `methods.contract`):

* A round has its anchor at ``p``, accepts ``a`` proposals, and the next anchor is ``p' = p + a + 1``.
* The **stale state** of the next round's mask ``m`` is this round's verify row ``a + m``, ``m = 1 .. K - a``:
it was computed behind a rejected proposal, and it predicts the token at ``p' + m``.  A round with at least
one is a *relay*.
* ``stale_right(m)``: the row's argmax is the token finally committed at ``p' + m``.  ``draft_right(m)``:
proposal ``m`` of the next round is that token.  Masks whose position lies past the end of the output have no
committed token and are counted nowhere; a stale state whose next round was never run neither.
* **rescue** = ``stale_right and not draft_right``, as a share of the counted relayed masks (``rescue_1_4``:
masks 1 to 4 only).  ``rescue_given_wrong`` divides by the masks whose draft is wrong instead.
* **Oracle ceiling**: at every anchor that was really visited, the oracle accepts the leading run of
  ``draft_right or stale_right`` (plain ``draft_right`` where no state is live) and commits that run plus one,
  never more than the output still holds.  ``oracle_tau`` is the mean over the same rounds over which ``tau``
  is the mean of the committed tokens.  It is a one-round ceiling: the anchors the oracle would visit after
  its longer steps have no trace, so the walk itself is not redone.

By position ``m = 1 .. K``, over the rounds whose ``p + m`` lies inside the output (all other masks are counted
nowhere, as above).  Mask ``m`` is **relayed** if a stale state is live for it, used by the drafter or not, and
**bare** otherwise: in a first round, after full acceptance, and behind the last live state.

* ``stale_right``, ``relayed_draft_right``, ``rescued``: of the relayed masks; ``bare_draft_right``: of the bare
  ones.
* ``accepted``: rounds that accepted proposals ``1 .. m``, all of them; ``accepted_prefix`` is their share.
* ``tried``: rounds that accepted ``1 .. m - 1``, so that mask ``m`` decided.  ``relayed_acceptance`` and
  ``bare_acceptance``: how often it was accepted then, by what stood behind that mask.
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from harness.config import load_config
from harness.plan import Plan

NEEDED = frozenset({"output_ids", "accepted"})  # of a line with a trace
NEAR = 4  # masks 1 to NEAR decide most of the acceptance length

#: The shares that `knowledge` reports, as (name, numerator, denominator) over the additive tallies.
RATES = (
    ("tau", "committed", "rounds"),
    ("full_acceptance", "full", "rounds"),
    ("relay_rounds", "relays", "rounds"),
    ("mean_live_masks", "live", "relays"),
    ("stale_right", "stale_right", "relayed"),
    ("stale_right_1_4", "stale_right_near", "relayed_near"),
    ("draft_right_1_4", "draft_right_near", "relayed_near"),
    ("rescue", "rescued", "relayed"),
    ("rescue_1_4", "rescued_near", "relayed_near"),
    ("rescue_given_wrong", "rescued", "draft_wrong"),
    ("rescue_given_wrong_1_4", "rescued_near", "draft_wrong_near"),
    ("oracle_tau", "oracle_committed", "rounds"),
)
#: What `by_position` counts, and the shares it makes of that, as (name, numerator, denominator).
POSITION_COUNTS = (
    *("rounds", "accepted", "relayed", "stale_right", "rescued"),
    *("relayed_draft_right", "relayed_tried", "relayed_accepted"),
    *("bare", "bare_draft_right", "bare_tried", "bare_accepted"),
)
POSITION_RATES = (
    ("accepted_prefix", "accepted", "rounds"),
    ("stale_right_share", "stale_right", "relayed"),
    ("rescue_share", "rescued", "relayed"),
    ("relayed_draft_right_share", "relayed_draft_right", "relayed"),
    ("bare_draft_right_share", "bare_draft_right", "bare"),
    ("relayed_acceptance", "relayed_accepted", "relayed_tried"),
    ("bare_acceptance", "bare_accepted", "bare_tried"),
)


def tally(record: Mapping[str, Any]) -> Counter[str]:
    """Additive counts of one record (a response with a trace); add those of many records, then call `rates`.

    Raises ``ValueError`` for a record without a trace, or whose trace and steps disagree in number.
    """
    counts: Counter[str] = Counter(responses=1)
    for one in _rounds(record):
        counts += _round(*one)
    return counts


def _rounds(record: Mapping[str, Any]) -> Iterator[tuple[list[int], int, list[int], list[int]]]:
    """Each round's proposals, accepted length, stale argmax of masks 1.., and the tokens that came after its anchor."""
    trace, accepted, output = record.get("trace"), record["accepted"], record["output_ids"]
    if not trace:
        raise ValueError(
            f"record {record.get('prompt_id')!r} has no trace; decode with decode.trace: true, "
            "the gauges need the proposals and the argmax of every verify row"
        )
    proposals, argmax = trace["proposals"], trace["argmax"]
    if not len(proposals) == len(argmax) == len(accepted):
        raise ValueError(
            f"record {record.get('prompt_id')!r}: {len(accepted)} steps but {len(proposals)} traced "
            f"proposals and {len(argmax)} traced verifications; the record is damaged, decode it again"
        )
    anchor, stale = 0, []  # anchor: index in output; stale: argmax of the rows relayed to masks 1, 2, ...
    for drafted, verified, kept in zip(proposals, argmax, accepted, strict=True):
        yield drafted, kept, stale, output[anchor + 1 :]
        stale = verified[kept + 1 :]
        anchor += kept + 1


def _round(drafted: list[int], accepted: int, stale: list[int], future: list[int]) -> Counter[str]:
    """Counts of one round: its proposals, its accepted length, the stale argmax of masks 1.., the tokens that came."""
    width = len(drafted)
    draft_right = [token == true for token, true in zip(drafted, future, strict=False)]
    stale_right = [token == true for token, true in zip(stale, future, strict=False)]
    either = [d or (m < len(stale_right) and stale_right[m]) for m, d in enumerate(draft_right)]
    counts = Counter(
        rounds=1,
        committed=min(accepted + 1, len(future)),
        full=int(accepted == width),
        relays=int(bool(stale)),
        live=len(stale),
        oracle_committed=min(_leading(either) + 1, len(future)),
    )
    for m, (old, new) in enumerate(zip(stale_right, draft_right, strict=False), start=1):
        for suffix in ("", "_near") if m <= NEAR else ("",):
            counts["relayed" + suffix] += 1
            counts["stale_right" + suffix] += int(old)
            counts["draft_right" + suffix] += int(new)
            counts["draft_wrong" + suffix] += int(not new)
            counts["rescued" + suffix] += int(old and not new)
    return counts


def _leading(flags: list[bool]) -> int:
    return flags.index(False) if False in flags else len(flags)


def rates(counts: Mapping[str, int]) -> dict[str, float | int]:
    """Shares and means from summed tallies; an empty denominator gives ``nan``.  Gains are relative to ``tau``."""
    result: dict[str, float | int] = {
        "responses": counts.get("responses", 0),
        "rounds": counts.get("rounds", 0),
    }
    for name, above, below in RATES:
        result[name] = counts.get(above, 0) / counts[below] if counts.get(below) else float("nan")
    result["relayed_masks"] = counts.get("relayed", 0)
    result["oracle_gain"] = result["oracle_tau"] / result["tau"] - 1 if counts.get("rounds") else float("nan")
    return result


def knowledge(records: Iterable[Mapping[str, Any]]) -> dict[str, float | int]:
    """The gauges of a set of traced records, as in the module docstring.  Pure: the order of records is immaterial."""
    total: Counter[str] = Counter()
    for record in records:
        total.update(tally(record))
    return rates(total)


def by_position(records: Iterable[Mapping[str, Any]]) -> list[dict[str, float | int]]:
    """Counts and shares of a set of traced records by mask position, `position` 1 first; an empty denominator gives
    ``nan``.  Empty if nothing was drafted.

    Raises ``ValueError`` like `tally`.
    """
    total: Counter[tuple[int, str]] = Counter()
    for record in records:
        for one in _rounds(record):
            total.update(_by_mask(*one))
    rows = []
    for m in range(1, max((m for m, _ in total), default=0) + 1):
        row: dict[str, float | int] = {"position": m} | {name: total[m, name] for name in POSITION_COUNTS}
        for name, above, below in POSITION_RATES:
            row[name] = row[above] / row[below] if row[below] else float("nan")
        rows.append(row)
    return rows


def _by_mask(drafted: list[int], accepted: int, stale: list[int], future: list[int]) -> Iterator[tuple[int, str]]:
    """(position, name) for each thing that one round counts; the arguments are those of `_round`."""
    for m, (token, true) in enumerate(zip(drafted, future, strict=False), start=1):
        live = m <= len(stale)
        kind = "relayed" if live else "bare"
        old, new = live and stale[m - 1] == true, token == true
        found = {
            "rounds": True,
            "accepted": accepted >= m,
            kind: True,
            f"{kind}_draft_right": new,
            f"{kind}_tried": accepted >= m - 1,
            f"{kind}_accepted": accepted >= m,
            "stale_right": old,
            "rescued": old and not new,
        }
        yield from ((m, name) for name, holds in found.items() if holds)


def gauge(records: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """One row per (target, method, suite, temperature), then one ``overall`` row per (target, method, temperature)."""
    groups: dict[tuple, Counter[str]] = {}
    for record in records:
        counts = tally(record)
        suite = record.get("suite", "")
        for name in (suite, "overall"):
            key = (record.get("target", ""), record.get("method", ""), record.get("temperature", ""), name)
            groups.setdefault(key, Counter()).update(counts)
    ordered = sorted(groups, key=lambda key: (*map(str, key[:3]), key[3] == "overall", key[3]))
    names = ("target", "method", "temperature", "suite")
    return [dict(zip(names, key, strict=True)) | rates(groups[key]) for key in ordered]


def drafted(record: Mapping[str, Any]) -> bool:
    """Whether the record has a trace with proposals in it: the baseline, which drafts nothing, has none."""
    trace = record.get("trace")
    return bool(trace) and any(trace["proposals"])


def read_lines(paths: Iterable[Path]) -> list[dict[str, Any]]:
    """Records of JSON-line files; folders are searched for ``*.jsonl``.  An empty choice is an error."""
    files = [file for path in paths for file in (sorted(path.rglob("*.jsonl")) if path.is_dir() else [path])]
    if not files:
        raise FileNotFoundError(f"no record files in {[str(path) for path in paths]}; give .jsonl files or folders")
    records = []
    for file in files:
        with file.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, 1):
                try:
                    found = json.loads(line) if line.strip() else {}
                except ValueError as error:
                    raise ValueError(f"{file}, line {number} is no JSON ({error}); decode again") from error
                missing = NEEDED - found.keys() if isinstance(found, dict) else NEEDED
                if missing and (not isinstance(found, dict) or found.get("trace")):
                    raise ValueError(f"{file}, line {number} is no record: it has no {', '.join(sorted(missing))}")
                records += [found] if found else []
    return records


def records_of(config: str) -> list[Path]:
    """The record files that a configuration asks for and that exist; what other settings left is not among them."""
    plan = Plan(load_config(config, check=False))
    files = [file for file in map(Path, plan.records(plan.config.entrants)) if file.is_file()]
    if not files:
        raise FileNotFoundError(
            f"none of the records that {config} asks for is in {plan.out}/records; make them with snakemake "
            "--cores all and the same settings"
        )
    return files


def main(argv: list[str] | None = None) -> list[dict[str, Any]]:
    parser = argparse.ArgumentParser(
        prog="python -m harness.gauge", description="Gauges of traced records, per suite and overall."
    )
    parser.add_argument("records", nargs="*", type=Path, help="record files (.jsonl) or folders of them")
    parser.add_argument("--config", help="a profile or a YAML file: the records it asks for, as far as they are there")
    parser.add_argument("--by-seed", action="store_true", help="each seed's drafter for itself, not all together")
    parser.add_argument("--format", choices=("table", "csv", "json"), default="table")
    parser.add_argument("--methods", nargs="*", help="only these methods (default: every method with traces)")
    arguments = parser.parse_args(argv)
    if bool(arguments.records) == bool(arguments.config):
        parser.error("give record files and folders, or --config, not both")
    try:
        paths = arguments.records or records_of(arguments.config)
        records = read_lines(paths)
    except (OSError, ValueError) as error:
        parser.error(str(error))
    chosen = [r for r in records if drafted(r) and (not arguments.methods or r.get("method") in arguments.methods)]
    if not chosen:
        raise SystemExit(f"none of the {len(records)} records has traced proposals; decode with decode.trace: true")
    if arguments.by_seed:
        chosen = [{**r, "method": f"{r['method']}, seed {r.get('seed')}"} for r in chosen]
    rows = gauge(chosen)
    if arguments.format == "json":
        json.dump(rows, sys.stdout, indent=1)
        print()
    elif arguments.format == "csv":
        writer = csv.DictWriter(sys.stdout, fieldnames=list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    else:
        _print_table(rows)
    return rows


def _print_table(rows: list[dict[str, Any]]) -> None:
    columns = (
        "suite",
        "rounds",
        "tau",
        "full_acceptance",
        "relay_rounds",
        "mean_live_masks",
        "stale_right",
        "rescue_1_4",
        "rescue",
        "oracle_tau",
        "oracle_gain",
    )
    before = None
    for row in rows:
        heading = f"{row['target']}  {row['method']}  T={row['temperature']}"
        if heading != before:
            print(f"\n{heading}\n" + "".join(f"{name:>16}" for name in columns))
        before = heading
        print("".join(f"{row[c]:>16.3f}" if isinstance(row[c], float) else f"{row[c]:>16}" for c in columns))


if __name__ == "__main__":
    main()
