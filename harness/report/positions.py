"""`results/positions.csv`: what the verifier knew, and what was accepted, mask by mask.

Knows which records make a row.  What is counted is defined in `harness/gauge.py`; here only this:

* A row is a target, entrant, temperature, suite and mask position m = 1 .. K, all seeds together.  Suite `all` is
  the sum over the suites, and only where all of them have records.
* Columns named after things are counts, so that every share can be made again, or of other rows together:
  `rounds` (those whose position m is inside the output), `relayed` and `bare` (which of the two mask m was),
  `stale_right` and `rescued` (of the relayed), `..._draft_right`, `accepted` (proposals 1 .. m, all of them),
  `..._tried` (proposals 1 .. m - 1 were accepted, so m decided) and `..._accepted` (of those).
* `accepted_prefix` = accepted / rounds; `stale_right_share`, `rescue_share`, `relayed_draft_right_share` = over
  relayed; `bare_draft_right_share` = over bare; `..._acceptance` = accepted / tried of that kind.

Relayed masks differ from bare ones in more than the relay (they stand nearer to the anchor, after another sort of
round), so the two shares of one entrant are no comparison; those of two entrants at one position are.

    python -m harness.report.positions --config pocket --out results/positions.csv
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from harness.config import Config, load_config, project_path
from harness.gauge import by_position, drafted
from harness.report.columns import EVERY_SUITE, POSITIONS, table_text
from harness.report.inputs import Inputs, Key, ReportError, drafts, read_inputs, write_text


def build_positions(inputs: Inputs) -> list[dict[str, Any]]:
    """Rows by temperature, target and entrant in the order of the configuration; suites, then their sum."""
    rows = []
    for temperature in inputs.temperatures:
        for target in inputs.targets:
            for entrant in inputs.methods:
                keys = [Key(target, entrant, temperature, suite) for suite in inputs.suites]
                found = {key.suite: inputs.records[key] for key in keys if key in inputs.records}
                if len(found) == len(keys):
                    found[EVERY_SUITE] = [record for records in found.values() for record in records]
                for suite, records in found.items():
                    about = {"target": target, "entrant": entrant, "temperature": temperature, "suite": suite}
                    about["seeds"] = len({record["seed"] for record in records})
                    rows += [about | row for row in by_position(filter(drafted, records))]
    return rows


def positions_of(config: Config, allow_missing: bool = False) -> list[dict[str, Any]]:
    """The rows of a configuration.  Raises ReportError where there can be none, or no sum over suites."""
    names = [name for name in config.entrants if drafts(config, name)]
    if not names:
        raise ReportError(f"methods and ablations are {config.entrants}, of which none drafts; add one that does")
    if EVERY_SUITE in config.suites:
        raise ReportError(f"a suite named {EVERY_SUITE!r} would be taken for the sum over suites; name it otherwise")
    rows = build_positions(read_inputs(config, allow_missing, names, timing=False))
    if not rows:
        raise ReportError("no record has traced proposals; decode with decode.trace: true")
    return rows


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m harness.report.positions", description="Make positions.csv.")
    parser.add_argument("--config", default="pocket", help="profile or YAML file")
    parser.add_argument("--out", type=Path, help="default: <output_dir>/positions.csv")
    parser.add_argument("--allow-missing", action="store_true", help="leave out what has no records")
    arguments = parser.parse_args(argv)
    try:
        config = load_config(arguments.config, check=False)
        rows = positions_of(config, arguments.allow_missing)
    except ValueError as error:
        parser.exit(2, f"{error}\n")
    out = arguments.out or project_path(config.output_dir) / "positions.csv"
    write_text(out, table_text(POSITIONS, rows))
    print(f"{out}: {len(rows)} rows")


if __name__ == "__main__":
    main()
