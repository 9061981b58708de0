"""Command line: accuracy of a pocket target per scored suite, beside its majority and ablation figures.

    python -m harness.pocket.check --target harness/pocket/target --count 100

Ends with status 1 if a suite misses a limit of the pocket world (accuracy, majority, ablation).
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from harness.pocket.measure import score_all

LEAST_ACCURACY, MOST_MAJORITY, MOST_ABLATED = 0.80, 0.20, 0.25


def meets_limits(result: dict[str, float]) -> bool:
    """Whether one suite's figures are within the world's limits."""
    return (
        result["accuracy"] >= LEAST_ACCURACY
        and result["majority"] <= MOST_MAJORITY
        and result["ablated"] <= MOST_ABLATED
    )


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", type=Path, default=Path(__file__).parent / "target")
    parser.add_argument("--count", type=int, default=100, help="items a suite")
    parser.add_argument("--split", choices=("eval", "heldout", "train"), default="eval")
    args = parser.parse_args(argv)
    if args.count < 1:
        parser.error(f"--count must be at least 1, got {args.count}")
    try:
        results = score_all(args.target, args.count, args.split)
    except (OSError, ValueError) as error:
        print(error, file=sys.stderr)
        return 2
    print(f"{'suite':<18}{'accuracy':>9}{'no answer':>11}{'majority':>10}{'ablated':>9}")
    for suite, r in results.items():
        verdict = "" if meets_limits(r) else "  <- misses a limit"
        print(
            f"{suite:<18}{r['accuracy']:>9.3f}{r['no_answer']:>11.3f}{r['majority']:>10.3f}{r['ablated']:>9.3f}{verdict}"
        )
    return 0 if all(meets_limits(r) for r in results.values()) else 1


if __name__ == "__main__":
    raise SystemExit(main())
