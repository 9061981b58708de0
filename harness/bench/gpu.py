"""Everything that wants a GPU, in one command and a few minutes: tests, kernels, rounds at true shapes, training steps.

    python -m harness.bench gpu --minutes 8 --out results/published/gpu

It knows which commands there are, in what order, and how much time is left.  It measures nothing itself: each step is a
process of its own, whose output is kept and whose failure stops no other.  The folder it writes,
`<out>/<gpu>-<date>/`, holds their tables, a log a step, and a page that says what ran, how it ended and on what.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from tqdm import tqdm

from harness.provenance import provenance
from harness.settings import ROOT
from harness.train.state import write_bytes, write_json

SHAPES = ("qwen3-8b", "qwen3-4b", "qwen3-1.7b")
#: Mean accepted proposals of the scripted rounds: of an acceptance length of 3.93, which the paper prints for DFlow.
ACCEPTED = "2.93"
#: A step that could not end within this is not begun.
LEAST_SECONDS = 15.0
NOT_RUN = "not run: no time left"
SCRIPTED = """\
Rounds are of **scripted acceptance** over random weights at true shapes: they tell what a round costs, not what a
drafter is worth. Training steps are of the pocket target, wherever `device: auto` puts it."""


@dataclass(frozen=True)
class Step:
    """One command, run from the project's root.  makes: the file it writes into the folder, if any."""

    name: str
    command: tuple[str, ...]
    makes: str | None = None


@dataclass(frozen=True)
class Result:
    """How a step ended: `ok`, `failed (code)`, `out of time` or `NOT_RUN`, after so many seconds."""

    step: Step
    ended: str
    seconds: float


def steps(folder: Path, scratch: Path, device: str) -> list[Step]:
    """What is run, the most wanted first: a kernel that is wrong makes all that follows worthless.

    folder: where tables go; scratch: where what they are made from may lie.
    """

    def bench(name: str, makes: str, *options: str) -> Step:
        command = (sys.executable, "-m", "harness.bench", *options, "--out", str(folder / makes))
        return Step(name, command, makes)

    def rounds(shapes: str) -> Step:
        options = ("round", "--shapes", shapes, "--acceptance", ACCEPTED, "--device", device)
        return bench(f"rounds at {shapes}", f"round-{shapes}.csv", *options)

    tests = (sys.executable, "-m", "pytest", "-m", "gpu", "-p", "no:cacheprovider")
    prompted = ("--config", "smoke", "--target", "pocket")
    written = (sys.executable, "-m", "harness.train.trajectories", *prompted, "--out", str(scratch))
    first, *others = SHAPES
    return [
        Step("tests marked gpu", tests),
        bench("relay kernels", "relay.csv", "relay", "--device", device),
        rounds(first),
        Step("text to train on", written),
        bench("training steps", "train.csv", "train", *prompted, "--trajectories", str(scratch)),
        *map(rounds, others),
    ]


def run_steps(todo: Iterable[Step], folder: Path, seconds: float) -> list[Result]:
    """Run one step after another while there is time; each writes `<n>-<name>.log` into `folder`."""
    deadline, results = time.monotonic() + seconds, []
    for number, step in enumerate(tqdm(list(todo), desc="GPU checks", unit="step", mininterval=2), start=1):
        left, begun = deadline - time.monotonic(), time.monotonic()
        if left < LEAST_SECONDS:
            results.append(Result(step, NOT_RUN, 0.0))
            continue
        log = folder / f"{number}-{re.sub(r'[^a-z0-9.]+', '-', step.name.lower())}.log"
        with log.open("wb") as file:
            try:
                code = subprocess.run(
                    step.command, cwd=ROOT, stdout=file, stderr=subprocess.STDOUT, timeout=left, check=False
                ).returncode
                ended = "ok" if code == 0 else f"failed ({code})"
            except subprocess.TimeoutExpired:
                ended = "out of time"
        results.append(Result(step, ended, time.monotonic() - begun))
    return results


def folder_name(device: str, when: datetime) -> str:
    """`nvidia-h200-2026-01-31`, of the GPU's own name."""
    name = torch.cuda.get_device_name(device) if torch.device(device).type == "cuda" else device
    return f"{re.sub(r'[^a-z0-9]+', '-', name.lower()).strip('-')}-{when:%Y-%m-%d}"


def page(results: Sequence[Result], facts: dict[str, Any], minutes: float) -> str:
    """What ran, how it ended, and on what."""
    lines = [
        f"| {result.step.name} | {result.ended} | {result.seconds:.0f} | {result.step.makes or ''} |"
        for result in results
    ]
    said = ("device", "cuda", "torch", "transformers", "triton", "python", "git_sha", "dirty", "time")
    machine = "\n".join(f"* {name}: {facts.get(name)}" for name in said)
    return "\n\n".join(
        [
            "# GPU checks",
            f"`python -m harness.bench gpu --minutes {minutes:g}`. A log stands beside each table. {SCRIPTED}",
            machine,
            "\n".join(["| step | ended | seconds | table |", "|---|---|---|---|", *lines]) + "\n",
        ]
    )


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m harness.bench gpu", description=__doc__.split("\n")[0])
    parser.add_argument("--device", default="cuda", help="cuda, cuda:N; cpu runs what of it a CPU can")
    parser.add_argument("--minutes", type=float, default=8.0, help="for all steps together")
    parser.add_argument("--out", type=Path, default=Path("results/published/gpu"), help="<gpu>-<date> is made in it")
    arguments = parser.parse_args(argv)
    if arguments.minutes <= 0:
        parser.exit(2, f"--minutes is {arguments.minutes:g}; give more than 0\n")
    try:
        torch.empty(0, device=arguments.device)
    except (RuntimeError, AssertionError) as error:  # torch asserts where it was built without CUDA
        parser.exit(2, f"device {arguments.device!r} cannot be used ({str(error).splitlines()[0]}); is there a GPU?\n")
    folder = (arguments.out / folder_name(arguments.device, datetime.now(UTC))).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory() as scratch:
        todo = steps(folder, Path(scratch), arguments.device)
        results = run_steps(todo, folder, 60 * arguments.minutes)
    facts = provenance()
    write_json(folder / "provenance.json", facts)
    write_bytes(folder / "README.md", page(results, facts, arguments.minutes).encode())
    print(json.dumps({result.step.name: result.ended for result in results}, indent=1))
    if any(result.ended.startswith("failed") for result in results):
        parser.exit(1, f"some steps failed; their logs are in {folder}\n")


if __name__ == "__main__":
    main()
