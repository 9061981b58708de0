"""What training costs, by method: sequences and supervised tokens a second, a step whole and round by round, memory.

    python -m harness.bench train --config pocket --target pocket --methods dflash dflow --steps 8 --out train.csv

A step is the trainer's own (`harness.train.loop`): a batch, its features, its rounds, one update, here at rate 0, so
that every block of steps does the same work.  All methods take turns, block by block, on the same batches in one
process.  A step whole is timed without a clock inside; its parts in blocks of their own, each by its own two ends
(`harness.clocks`): `features` (the batch, its features and their fusion), `round 0` (anchors drawn, drafter forward and
backward), `transition 1` (proposals, the target on rejected rows, the relayed states), `round 1`, ..., `update` (the
fusion's backward pass and the optimiser).  Drafters are fresh, so nearly all proposals are rejected, which is when a
transition costs most.  Peak memory is that of a process of its own for each method, on the largest batch there is: on a
GPU what torch has allocated, on a CPU the resident set.  `harness.train.cost` times the parts of one step alone
instead.
"""

from __future__ import annotations

import argparse
import logging
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import torch
from tqdm import tqdm

from harness.bench.clock import Timing, block, in_turn
from harness.bench.table import csv_text, machine, plain_text
from harness.clocks import PhaseClock
from harness.config import load_config, project_path
from harness.decode import Clock
from harness.sections import distinct
from harness.target import Target
from harness.train.corpus import Batch, collate
from harness.train.cost import peak, step_of, trainers
from harness.train.loop import Trainer
from harness.train.rounds import MaskRounds, Round
from harness.train.state import write_bytes
from methods.recipes import recipe

#: ms: of a step, or of a part in a mean step.  samples_s: sequences a second.  tokens_s: labels of all rounds a second.
#: gap_percent: of the parts' sum over the step.
COLUMNS = (
    "target",
    "method",
    "part",
    "ms",
    "ms_fastest",
    "ms_slowest",
    "samples_s",
    "tokens_s",
    "gap_percent",
    "peak_gb",
    "steps",
    "blocks",
)


class Stretches:
    """Phases of a clock one behind the other: beginning one leaves the one before."""

    def __init__(self, clock: Clock) -> None:
        self._clock, self._open = clock, ExitStack()

    def begin(self, name: str) -> None:
        self._open.close()
        self._open.enter_context(self._clock.phase(name))

    def end(self) -> None:
        """Leave the last one."""
        self._open.close()


class TimedRounds:
    """The rounds of a trainer, with a stretch for each of them and for what lies between and behind them."""

    def __init__(self, rounds: MaskRounds, stretches: Stretches) -> None:
        self._rounds, self._stretches = rounds, stretches

    def __getattr__(self, name: str) -> Any:
        return getattr(self._rounds, name)

    def first(self, step: int, batch: Batch, ids: torch.Tensor) -> Round:
        self._stretches.begin("round 0")
        return self._rounds.first(step, batch, ids)

    def following(self, step: int, ids: torch.Tensor, lengths: torch.Tensor, before: Round, *rest: Any) -> Round | None:
        if before.index < self._rounds.count:
            self._stretches.begin(f"transition {before.index + 1}")
        found = self._rounds.following(step, ids, lengths, before, *rest)
        self._stretches.begin("update" if found is None else f"round {found.index}")
        return found


def steps_ms(trainer: Trainer, steps: int, clock: Clock | None = None) -> tuple[float, int, int]:
    """Milliseconds of a step, over a block of them from the first batch on; sequences and labels of that block.

    clock: listens to the steps, which costs some time itself.
    """
    tallies, batches, rounds = [], [], trainer.rounds
    stretches = Stretches(clock or Clock())

    def take() -> None:
        for index in range(steps):
            stretches.begin("features")
            batches.append(collate(trainer.corpus.train, trainer.order.at(index)))
            tallies.extend(step_of(trainer, batches[-1]))
        stretches.end()

    if clock is not None:
        trainer.rounds = TimedRounds(rounds, stretches)
    try:
        took = 1e3 * block(take, 1, trainer.device) / steps
    finally:
        trainer.rounds = rounds
    labels = sum(float(tally.counted.sum()) for tally in tallies)
    return took, sum(len(batch.indices) for batch in batches), int(labels)


def measure(made: Mapping[str, Trainer], steps: int, blocks: int) -> list[dict[str, Any]]:
    """A row for the step of each method, and one for each part of it."""
    whole: dict[str, list[float]] = {name: [] for name in made}
    parts: dict[str, list[dict[str, float]]] = {name: [] for name in made}
    counted: dict[str, tuple[int, int]] = {}
    for trainer in made.values():
        steps_ms(trainer, 1)  # allocation and compilation are counted nowhere
    for name in tqdm(in_turn(list(made), blocks), total=blocks * len(made), desc="blocks", unit="block", mininterval=2):
        took, *counted[name] = steps_ms(made[name], steps)
        whole[name].append(took)
        clock = PhaseClock(made[name].device)
        steps_ms(made[name], steps, clock)
        parts[name].append({part: 1e3 * spent / steps for part, spent in clock.seconds.items()})
    rows = []
    for name in made:
        timing, (sequences, labels) = Timing.of(whole[name]), counted[name]
        own = {part: median(one.get(part, 0.0) for one in parts[name]) for part in parts[name][0]}
        rows.append(
            {
                "method": name,
                "part": "step",
                "ms": timing.median,
                "ms_fastest": timing.fastest,
                "ms_slowest": timing.slowest,
                "samples_s": 1e3 * sequences / steps / timing.median,
                "tokens_s": 1e3 * labels / steps / timing.median,
                "gap_percent": 100 * (sum(own.values()) / timing.median - 1),
            }
        )
        rows += [{"method": name, "part": part, "ms": spent} for part, spent in own.items()]
    return rows


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m harness.bench train", description=__doc__.split("\n")[0])
    parser.add_argument("--config", default="pocket", help="a profile or a YAML file")
    parser.add_argument("--target", required=True, help="a name under targets:")
    parser.add_argument("--methods", nargs="+", help="recipes and variants that are trained; default: of Table 1")
    parser.add_argument("--trajectories", type=Path, help="their folder; default <output_dir>/trajectories/<target>")
    parser.add_argument("--steps", type=int, default=8, help="steps of a block")
    parser.add_argument("--blocks", type=int, default=3, help="blocks a method, with and without a clock inside")
    parser.add_argument("--threads", type=int, default=0, help="CPU threads; 0: as train.threads says")
    parser.add_argument("--out", type=Path, help="also write the rows as CSV")
    arguments = parser.parse_args(argv)
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    try:
        rows, facts = _asked(arguments)
    except (ValueError, OSError, RuntimeError) as error:
        parser.exit(2, f"{error}\n")
    print(
        f"fresh drafters, {facts['dtype']}, {arguments.blocks} interleaved blocks of {arguments.steps} steps; peak "
        f"memory of a process a method; {facts['device']}, {facts['threads']} threads, commit {facts['git_sha']}"
        f"{' with changes' if facts['dirty'] else ''}"
    )
    print(plain_text(rows, [name for name in COLUMNS if name not in ("target", "steps", "blocks")]))
    if arguments.out:
        write_bytes(arguments.out, csv_text(rows, COLUMNS, facts).encode())


def _asked(arguments: argparse.Namespace) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The rows that the options ask for, and the facts of the machine."""
    for option in ("steps", "blocks"):
        if getattr(arguments, option) < 1:
            raise ValueError(f"--{option} is {getattr(arguments, option)}; it must be at least 1")
    config = load_config(arguments.config)
    source = config.target(arguments.target).in_training
    drafted = [name for name in config.methods if recipe(config.entrant(name).recipe).drafts]
    methods = arguments.methods or drafted
    try:
        distinct(methods)
    except ValueError as error:
        raise ValueError(f"--methods {error}") from None
    idle = [name for name in methods if not recipe(config.entrant(name).recipe).drafts]
    if idle:
        raise ValueError(f"--methods names {idle[0]!r}, which has nothing to train; name some of {', '.join(drafted)}")
    folder = arguments.trajectories or project_path(config.output_dir) / "trajectories" / arguments.target
    if not (folder / "manifest.json").is_file():
        raise ValueError(
            f"no trajectories in {folder}; name their folder with --trajectories, or make them with python -m "
            "harness.train.trajectories"
        )
    torch.set_num_threads(arguments.threads or config.train.threads or torch.get_num_threads())
    peaks = {  # first, while this process holds nothing of the device's memory
        name: peak(arguments.config, arguments.target, name, folder, arguments.threads)
        for name in tqdm(methods, desc="memory", unit="method")
    }
    target = Target.load(source, arguments.target)
    facts = machine(target.device, dtype=source.dtype)
    with TemporaryDirectory() as work:
        rows = measure(trainers(config, target, methods, folder, Path(work)), arguments.steps, arguments.blocks)
    for row in rows:
        row |= {"target": arguments.target, "steps": arguments.steps, "blocks": arguments.blocks}
        if row["part"] == "step":
            row["peak_gb"] = peaks[row["method"]]
    return rows, facts
