"""Does z-lab's released package decode an exported drafter as this project decodes the drafter itself?

    python3 -m venv zlab && zlab/bin/pip install 'dflash[local]==0.1.0'
    python -m tests.cross.zlab_parity --python zlab/bin/python --drafter results/drafters/pocket/dflash-seed0 \
        --out results/published/pocket/zlab-parity.json

A check, never a dependency: the package lives in an environment of its own, with its own pins, and runs as a process of
its own.  Float32, T = 0, batch 1, first turns of prompts of every suite, once with the suite's budget and once with one
so short that it ends every response.  Required, or the exit code is 1: equal output ids, and equal raw acceptance at
every step.  As a control the drafter is exported once more with its taps off by one: outputs then stay as they are and
steps do not, or the check could not fail.
"""

from __future__ import annotations

import argparse
import json
import logging
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from harness.arms import decode_settings, load_arm
from harness.checkpoint import export_drafter
from harness.config import Config, load_config, local_source
from harness.data import build_prompts, suite_prompts
from harness.decode import Decoder, DecodeSettings, Prompt, Response
from harness.provenance import checkpoint_digest, provenance, version
from harness.target import Target
from harness.train.state import write_json

METHOD = "dflash"
THEIRS = Path(__file__).with_name("zlab_decode.py")
#: Tokens that end before the responses do.
SHORT = 20
Found = list[tuple[dict[str, Any], Response]]


def local_target(config: Config, name: str) -> tuple[Target, Path]:
    """The target in float32 on the CPU, and its folder.  Raises ``ValueError`` for one that is no local folder."""
    source = config.target(name).model_copy(update={"dtype": "float32", "device": "cpu"})
    folder = local_source(source)
    if folder is None:
        raise ValueError(f"target {name} is a hub id; name a local folder, which both sides can read")
    return Target.load(source, name), folder


def asked_of(config: Config, target: Target, count: int) -> list[tuple[Prompt, DecodeSettings]]:
    """The first `count` prompts of every suite, and how they are decoded.

    Raises ``ValueError`` for a suite that ends at strings, which the released package does not know.
    """
    found = []
    for suite, spec in config.suites.items():
        tasks = suite_prompts(suite, spec, config.data_root)[:count]
        settings = decode_settings(config, suite, target, tasks, 0.0, 0)
        if settings.stop_strings:
            raise ValueError(f"suite {suite} stops at strings, which the released package does not know; leave it out")
        found += [(prompt, settings) for prompt in build_prompts(tasks, target, spec.max_new_tokens)]
    return found


def entry(prompt: Prompt, settings: DecodeSettings) -> dict[str, Any]:
    """A prompt as it is handed over."""
    limits = {"max_new_tokens": settings.max_new_tokens, "stop_ids": list(settings.stop_ids)}
    return {"ids": list(prompt.ids), **limits}


def decode_ours(config: Config, target: Target, drafter: Path, count: int, budget: int | None = None) -> Found:
    """Job entry and response of the first `count` prompts of every suite; budget: in place of the suite's."""
    arm, found = load_arm(config, target, METHOD, drafter), []
    for prompt, settings in asked_of(config, target, count):
        settings = replace(settings, max_new_tokens=budget or settings.max_new_tokens)
        found.append((entry(prompt, settings), next(Decoder(target, arm, settings).run([prompt]))))
    return found


def decode_theirs(python: Path, target: Path, drafter: Path, prompts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What `zlab_decode.py` answers in the environment of `python`."""
    with tempfile.TemporaryDirectory() as folder:
        job, answer = Path(folder) / "job.json", Path(folder) / "answer.json"
        job.write_text(json.dumps({"target": str(target), "drafter": str(drafter), "prompts": list(prompts)}))
        subprocess.run([python, THEIRS, job, answer], check=True)
        return json.loads(answer.read_text())


def compare(found: Found, answers: Sequence[dict[str, Any]]) -> dict[str, int]:
    """Counts of responses and of steps, and how many of each are equal.

    equal_outputs: as released, whole.  equal_steps: raw accepted + 1, all of ours.  equal_released_steps: responses
    whose step list is the committed one as released too, where the last blocks before a budget are shorter.
    """
    total = {"responses": 0, "equal_outputs": 0, "equal_unstopped_outputs": 0, "equal_released_steps": 0}
    total |= {"steps": 0, "equal_steps": 0, "responses_with_equal_steps": 0, "stopped_by_budget": 0}
    for (_, ours), theirs in zip(found, answers, strict=True):
        raw = [count + 1 for count in ours.accepted]
        steps = theirs["unstopped"]["acceptance_lengths"][: len(raw)]
        equal = sum(a == b for a, b in zip(raw, steps, strict=False))
        total["responses"] += 1
        total["equal_outputs"] += theirs["released"]["output_ids"] == list(ours.output_ids)
        whole = theirs["unstopped"]["output_ids"]
        total["equal_unstopped_outputs"] += whole[: len(ours.output_ids)] == list(ours.output_ids)
        total["equal_released_steps"] += theirs["released"]["acceptance_lengths"] == list(ours.committed)
        total["steps"] += len(raw)
        total["equal_steps"] += equal
        total["responses_with_equal_steps"] += steps == raw
        total["stopped_by_budget"] += ours.stop == "budget"
    return total


def check(config: Config, name: str, drafter: Path, python: Path, count: int) -> dict[str, Any]:
    """The whole comparison, as it is written down."""
    target, folder = local_target(config, name)
    whole, short = (decode_ours(config, target, drafter, count, budget) for budget in (None, SHORT))
    with tempfile.TemporaryDirectory() as exported:
        at = Path(exported)
        export_drafter(drafter, METHOD, target, at)
        answer, cut = (decode_theirs(python, folder, at, [asked for asked, _ in found]) for found in (whole, short))
        shift_taps(at / "config.json")
        control = decode_theirs(python, folder, at, [asked for asked, _ in whole])
    raw = [count + 1 for _, response in whole for count in response.accepted]
    made_by = provenance()
    commit = {name: made_by[name] for name in ("git_sha", "dirty")}
    return {
        "compared": compare(whole, answer["answers"]),
        "compared_with_a_short_budget": compare(short, cut["answers"]),
        "control_taps_off_by_one": compare(whole, control["answers"]),
        "mean_raw_accepted_plus_one": round(sum(raw) / len(raw), 4),
        "suites": list(config.suites),
        "temperature": 0,
        "dtype": "float32",
        "target_fingerprint": target.fingerprint,
        "drafter_sha256": checkpoint_digest(drafter),
        "ours": {package: version(package) for package in ("torch", "transformers")} | commit,
        "theirs": answer["versions"],
    }


def shift_taps(file: Path) -> None:
    """A fault to be seen: every tap is read one layer too late."""
    values = json.loads(file.read_text())
    layers = values["dflash_config"]["target_layer_ids"]
    values["dflash_config"]["target_layer_ids"] = [layer + 1 for layer in layers]
    file.write_text(json.dumps(values))


def passed(facts: dict[str, Any]) -> bool:
    """Equal where it must be, and the control seen to differ."""
    whole, short = facts["compared"], facts["compared_with_a_short_budget"]
    equal = all(
        found["equal_outputs"] == found["equal_unstopped_outputs"] == found["responses"]
        and found["equal_steps"] == found["steps"] > 0
        for found in (whole, short)
    )
    return equal and facts["control_taps_off_by_one"]["equal_steps"] < whole["steps"]


def options(name: str, says: str) -> argparse.ArgumentParser:
    """What every comparison with the released package is told."""
    parser = argparse.ArgumentParser(prog=f"python -m tests.cross.{name}", description=says)
    parser.add_argument("--config", default="pocket", help="a profile or a YAML file")
    parser.add_argument("--target", default="pocket", help="a name under targets:, a local folder")
    parser.add_argument("--drafter", required=True, type=Path, help="checkpoint folder of a dflash drafter")
    parser.add_argument("--python", required=True, type=Path, help="of the environment with dflash[local]==0.1.0")
    parser.add_argument("--prompts", type=int, default=4, help="of each suite")
    parser.add_argument("--out", type=Path, help="also write the outcome here")
    return parser


def main(argv: list[str] | None = None) -> None:
    parser = options("zlab_parity", __doc__.split("\n")[0])
    arguments = parser.parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    try:
        config = load_config(arguments.config)
        facts = check(config, arguments.target, arguments.drafter, arguments.python, arguments.prompts)
    except (ValueError, OSError, subprocess.CalledProcessError) as error:
        parser.exit(2, f"{error}\n")
    print(json.dumps(facts, indent=1))
    if arguments.out:
        write_json(arguments.out, facts)
    if not passed(facts):
        parser.exit(1, "outputs or steps differ, or the control does not\n")


if __name__ == "__main__":
    main()
