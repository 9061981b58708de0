"""`python -m harness.bench <what>`: the benchmarks by name."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence

from harness.bench import gpu, relay, rounds, train

BENCHMARKS: dict[str, tuple[Callable[[Sequence[str]], None], str]] = {
    "gpu": (gpu.main, "all checks that want a GPU, in one command"),
    "relay": (relay.main, "the relay's two operations: fused kernels, eager torch, compiled torch"),
    "round": (rounds.main, "a decoding round, whole and by slice, at real dimensions and with scripted acceptance"),
    "train": (train.main, "a training step, whole and by round, with samples and tokens a second and peak memory"),
}


def main(argv: Sequence[str] | None = None) -> None:
    listed = "\n".join(f"  {name:8} {said}" for name, (_, said) in BENCHMARKS.items())
    parser = argparse.ArgumentParser(
        prog="python -m harness.bench",
        description=__doc__,
        epilog=f"benchmarks:\n{listed}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("what", choices=BENCHMARKS)
    parser.add_argument("rest", nargs=argparse.REMAINDER, help="options of the benchmark; --help after its name")
    arguments = parser.parse_args(argv)
    BENCHMARKS[arguments.what][0](arguments.rest)


if __name__ == "__main__":
    main(sys.argv[1:])
