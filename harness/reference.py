"""Regression of acceptance numbers: small trained drafters, the steps they take, and what retraining should give.

    python -m harness.reference make      # from trained drafters: fixtures and their step lists
    python -m harness.reference check     # decode the fixtures and compare every step, exactly
    python -m harness.reference band      # from the profile `reference`: accept_walk of each method by seed

Fixtures are the drafters of a run, rounded to bfloat16 to be small, and decoded in float64, where no rounding
decides.  It knows where the reference lies and how it is compared; it does not know how a drafter is trained.
"""

from __future__ import annotations

import argparse
import hashlib
import logging
import math
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from harness.arms import decode_settings, load_arm
from harness.config import Config, load_config, project_path, temperature_label
from harness.data import build_prompts, suite_prompts
from harness.decode import Decoder
from harness.provenance import provenance_short
from harness.report.inputs import drafter_folder, read_object
from harness.target import Target
from harness.train.state import write_json
from methods.checkpoint import load_drafter, save_drafter
from methods.recipes import recipe

REFERENCE = project_path("results/reference")
STEPS, BAND, DRAFTERS = "steps.json", "band.json", "drafters"
#: Prompts of each suite; first turns only.
PROMPTS = 2
#: A retraining may lie this many standard deviations of the seeds from their mean, and this much beside.
DEVIATIONS, SLACK = 4.0, 0.03


class ReferenceError(ValueError):
    """A reference that is missing, or made for something else."""


def reference_target(config: Config, name: str) -> Target:
    """The target in float64, whatever the profile says."""
    return Target.load(config.target(name).model_copy(update={"dtype": "float64", "device": "cpu"}), name)


def decode_steps(config: Config, target: Target, method: str, folder: Path) -> dict[str, Any]:
    """Accepted proposals by suite, temperature and prompt, and a hash of each output."""
    arm = load_arm(config, target, method, folder)
    found: dict[str, Any] = {}
    for suite, spec in config.suites.items():
        tasks = suite_prompts(suite, spec.model_copy(update={"prompts": PROMPTS}), config.data_root)
        prompts = build_prompts(tasks, target, spec.max_new_tokens)
        for temperature in config.temperatures:
            settings = decode_settings(config, suite, target, tasks, temperature, 0)
            responses = Decoder(target, arm, settings, rows=PROMPTS).run(prompts)
            found.setdefault(suite, {})[f"T{temperature_label(temperature)}"] = {
                r.prompt_id: {"accepted": r.accepted, "output": _digest(r.output_ids)} for r in responses
            }
    return found


def _digest(ids: Sequence[int]) -> str:
    return hashlib.sha256(" ".join(map(str, ids)).encode()).hexdigest()[:12]


def differences(expected: dict[str, Any], found: dict[str, Any], place: str) -> Iterator[str]:
    """Where two step lists part, a line for each prompt."""
    for suite in sorted(expected.keys() | found.keys()):
        for label in sorted(expected.get(suite, {}).keys() | found.get(suite, {}).keys()):
            ours, theirs = expected.get(suite, {}).get(label, {}), found.get(suite, {}).get(label, {})
            for prompt in sorted(ours.keys() | theirs.keys()):
                then, now = ours.get(prompt), theirs.get(prompt)
                if then != now:
                    yield f"{place} {suite} {label} {prompt}: {then} in the reference, {now} now"


def make(config: Config, name: str, drafters: Path, seed: int, out: Path) -> None:
    """Round the drafters of Table 1 to bfloat16, decode with them, and write both down."""
    target = reference_target(config, name)
    methods = [method for method in config.methods if recipe(config.entrant(method).recipe).drafts]
    steps = {}
    for method in tqdm(methods, desc="reference"):
        source = drafters / f"{config.entrant(method).weights}-seed{seed}"
        drafter = load_drafter(source, target.binding, dtype=torch.bfloat16)
        save_drafter(out / DRAFTERS / method, drafter)
        steps[method] = decode_steps(config, target, method, out / DRAFTERS / method)
    write_json(
        out / STEPS, {"target": target.fingerprint, "steps": steps, "made_by": provenance_short(dtype="float64")}
    )


def check(config: Config, name: str, out: Path, methods: Sequence[str] = ()) -> list[str]:
    """Decode the fixtures anew; returns a line for every prompt whose steps or output are others.

    Raises `ReferenceError` for a reference of another target, which is to be made again.
    """
    if not (out / STEPS).is_file():
        raise ReferenceError(f"{out / STEPS} is missing; make it with python -m harness.reference make")
    kept = read_object(out / STEPS, "harness.reference")
    target = reference_target(config, name)
    if kept["target"] != target.fingerprint:
        raise ReferenceError(
            f"{out / STEPS} is about target {kept['target']}, this one is {target.fingerprint}; make it again with "
            "python -m harness.reference make"
        )
    found = []
    for method, expected in kept["steps"].items():
        if not methods or method in methods:
            now = decode_steps(config, target, method, out / DRAFTERS / method)
            found += differences(expected, now, method)
    return found


def band(config: Config, name: str, out: Path) -> None:
    """Write accept_walk of each method by seed, from the drafters of a finished run of `config`."""
    base = project_path(config.output_dir)
    rows: dict[str, Any] = {}
    for method in config.methods:
        if recipe(config.entrant(method).recipe).drafts:
            marks = [drafter_folder(base, name, method, seed) / "done.json" for seed in config.seeds]
            done = [read_object(path, "harness.train") for path in marks]
            rows[method] = {"steps": done[0]["steps"], "accept_walk": [mark["accept_walk"] for mark in done]}
    write_json(out / BAND, {"methods": rows, "made_by": provenance_short(dtype=config.target(name).dtype)})


def limits(values: Sequence[float]) -> tuple[float, float]:
    """The band that a retraining with any seed should lie in: the seeds' mean, give or take."""
    middle = statistics.fmean(values)
    spread = DEVIATIONS * statistics.stdev(values) * math.sqrt(1 + 1 / len(values)) + SLACK * middle
    return middle - spread, middle + spread


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m harness.reference", description=__doc__.split("\n")[0])
    parser.add_argument("what", choices=("make", "check", "band"))
    parser.add_argument("--config", help="a profile or a YAML file; default pocket, for `band` reference")
    parser.add_argument("--target", default="pocket", help="a name under targets:")
    parser.add_argument("--drafters", type=Path, help="for `make`; default <output_dir>/drafters/<target>")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=REFERENCE)
    arguments = parser.parse_args(argv)
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    torch.set_num_threads(1)
    try:
        config = load_config(arguments.config or ("reference" if arguments.what == "band" else "pocket"))
        if arguments.what == "make":
            drafters = arguments.drafters or project_path(config.output_dir) / "drafters" / arguments.target
            make(config, arguments.target, drafters, arguments.seed, arguments.out)
        elif arguments.what == "band":
            band(config, arguments.target, arguments.out)
        else:
            found = check(config, arguments.target, arguments.out)
            if found:
                parser.exit(1, "\n".join(found) + "\n")
            print(f"every step is as in {arguments.out / STEPS}")
    except (ValueError, OSError) as error:
        parser.exit(2, f"{error}\n")


if __name__ == "__main__":
    main()
