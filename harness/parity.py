"""Parity: does every method write what the target alone writes, at every batch size, and in the same steps?

    python -m harness.parity --config pocket --target pocket                       # float32: output must be equal
    python -m harness.parity --config pocket --target pocket --dtype float64       # step lists must be equal too
    python -m harness.parity --config pocket --target pocket --dtype bfloat16      # differences are listed

The reference is plain decoding at batch 1; under rejection sampling, which keeps the distribution but not the tokens,
it is the same method at batch 1.  Batch 1 is run whether named or not.  In float32 and float64 every difference is a
failure (exit code 1).  In bfloat16 a one-row and a many-row forward take different numeric paths, so each first
divergence is listed with how close the decision was, beside the floor: plain decoding at one batch size against
another.  It knows outputs and step lists; it does not know how a method drafts.
"""

from __future__ import annotations

import argparse
import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tqdm import tqdm

from harness.accept import probabilities, stream_key, uniforms
from harness.arms import decode_settings, load_arms
from harness.config import Config, load_config, project_path
from harness.data import first_messages, next_turn, prompt_of, suite_prompts
from harness.decode import Decoder, DecodeSettings, Prompt, Response
from harness.stops import trim
from harness.target import Target

log = logging.getLogger(__name__)


@dataclass
class Comparison:
    """One method at one batch size against the reference.  divergences: place and closeness of each first one."""

    method: str
    suite: str
    temperature: float
    batch: int
    accept: str = "exact"
    proposals: str = "greedy"
    responses: int = 0
    equal: int = 0
    divergences: list[dict[str, Any]] = field(default_factory=list)
    steps_equal: int | None = None  # against the same method at batch 1
    step_differences: list[str] = field(default_factory=list)


def decode(
    target: Target, arm: Any, prompts: Sequence[Prompt], settings: DecodeSettings, rows: int
) -> dict[tuple[str, int], Response]:
    """Responses by (prompt id, turn)."""
    return {(r.prompt_id, r.turn): r for r in Decoder(target, arm, settings, rows=rows).run(prompts)}


def closeness(target: Target, prompt: Prompt, output: Sequence[int], settings: DecodeSettings) -> float | None:
    """How near the decision after `output` was: the top-2 logit gap at T = 0, else the distance of the uniform to the
    next step of the cumulated distribution.  None under rejection, where several draws decide."""
    if settings.accept == "rejection":
        return None
    logits = target.logits(torch.tensor([[*prompt.ids, *output]], device=target.device))[0, -1].double()
    if settings.temperature == 0:
        best = logits.topk(2).values
        return float(best[0] - best[1])
    key = np.array([stream_key(settings.seed, prompt.id, prompt.turn)], dtype=np.uint64)
    uniform = uniforms(key, np.array([[len(prompt.ids) + len(output)]]), "target")[0, 0]
    return float((probabilities(logits, settings.temperature).cumsum(-1) - uniform).abs().min())


def compare(
    target: Target,
    prompts: Sequence[Prompt],
    reference: dict[tuple[str, int], Response],
    got: dict[tuple[str, int], Response],
    settings: DecodeSettings,
    result: Comparison,
) -> None:
    """Count equal outputs and describe each first divergence."""
    for prompt in prompts:
        expected, output = (side[prompt.id, prompt.turn].output_ids for side in (reference, got))
        result.responses += 1
        if expected == output:
            result.equal += 1
            continue
        pairs = enumerate(zip(expected, output, strict=False))
        at = next((i for i, (a, b) in pairs if a != b), min(len(expected), len(output)))
        result.divergences.append(
            {
                "prompt_id": prompt.id,
                "turn": prompt.turn,
                "token": at,
                "closeness": closeness(target, prompt, expected[:at], settings),
            }
        )


def compare_steps(
    single: dict[tuple[str, int], Response], got: dict[tuple[str, int], Response], result: Comparison
) -> None:
    """Count responses whose steps are those of batch 1, and name the others."""
    result.steps_equal = 0
    for key, response in got.items():
        same = (response.accepted, response.committed) == (single[key].accepted, single[key].committed)
        result.steps_equal += same
        if not same:
            result.step_differences.append(f"{key[0]} turn {key[1]}")


def suite_parity(
    config: Config, target: Target, arms: dict[str, Any], suite: str, temperature: float, seed: int, batches: list[int]
) -> list[Comparison]:
    """All methods at batch 1 and at `batches` on one suite at one temperature, every turn of every prompt.

    Raises ConfigError for an unknown suite.
    """
    spec = config.suite(suite)
    tasks = suite_prompts(suite, spec, config.data_root)
    settings = decode_settings(config, suite, target, tasks, temperature, seed)
    prompts, reference, talks = [], {}, {task.id: first_messages(task) for task in tasks}
    pending = list(tasks)
    while pending:
        asked = [prompt_of(task, talks[task.id], target, spec.max_new_tokens) for task in pending]
        answers = decode(target, None, asked, settings, 1)
        prompts, reference = [*prompts, *asked], reference | answers
        going = []
        for task, prompt in zip(pending, asked, strict=True):
            text = trim(target.decode(answers[task.id, prompt.turn].output_ids), settings.stop_strings)
            following = next_turn(task, [*talks[task.id], {"role": "assistant", "content": text}])
            if following is not None:
                talks[task.id] = following
                going.append(task)
        pending = going
    results = []
    for method, arm in arms.items():
        single: dict[tuple[str, int], Response] = {}
        for batch in sorted({1, *batches}):
            if arm is None and batch == 1:
                single = reference
                continue
            got: dict[tuple[str, int], Response] = {}
            for turn in sorted({p.turn for p in prompts}):  # ids repeat between turns of a dialogue
                got |= decode(target, arm, [p for p in prompts if p.turn == turn], settings, batch)
            if batch == 1:
                single = got
                if settings.accept == "rejection":
                    continue  # it would be compared with itself
            expected = reference if settings.accept == "exact" else single
            result = Comparison(method, suite, temperature, batch, settings.accept, settings.proposals)
            compare(target, prompts, expected, got, settings, result)
            if batch > 1:
                compare_steps(single, got, result)
            results.append(result)
    return results


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m harness.parity", description=__doc__.split("\n")[0])
    parser.add_argument("--config", default="pocket", help="a profile or a YAML file")
    parser.add_argument("--target", required=True, help="a name under targets:")
    parser.add_argument("--drafters", type=Path, help="default: <output_dir>/drafters/<target>")
    parser.add_argument("--dtype", choices=("float32", "float64", "bfloat16"), help="default: the target's own")
    parser.add_argument("--batch", type=int, nargs="+", default=[8], help="batch sizes beside 1")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--suites", nargs="+", help="default: all")
    parser.add_argument("--methods", nargs="+", help="recipes and variants; default: those of Table 1")
    parser.add_argument("--out", type=Path, help="also write the comparisons as JSON")
    arguments = parser.parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    try:
        config = load_config(arguments.config)
        source = config.target(arguments.target)
        suites = arguments.suites or list(config.suites)
        for suite in suites:
            config.suite(suite)
        if arguments.dtype:
            source = source.model_copy(update={"dtype": arguments.dtype})
        target = Target.load(source, arguments.target)
        drafters = arguments.drafters or project_path(config.output_dir) / "drafters" / arguments.target
        arms = load_arms(config, target, arguments.methods or config.methods, drafters, arguments.seed)
    except ValueError as error:
        parser.exit(2, f"{error}\n")
    cases = [(s, t) for s in suites for t in config.temperatures]
    results: list[Comparison] = []
    for suite, temperature in tqdm(cases, desc="parity"):
        results += suite_parity(config, target, arms, suite, temperature, arguments.seed, arguments.batch)
    if arguments.out:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_text(json.dumps([vars(r) for r in results], indent=1) + "\n", encoding="utf-8")
    failed = report(results, source.dtype)
    if failed and source.dtype != "bfloat16":
        parser.exit(1, f"{failed} comparisons failed in {source.dtype}, where none may\n")


def report(results: Sequence[Comparison], dtype: str) -> int:
    """Print a line per comparison and every divergence; returns how many comparisons failed what `dtype` demands."""
    failed = 0
    print(f"{'method':<14}{'suite':<18}{'T':>4}{'batch':>7}{'equal':>9}{'to':>9}{'steps as batch 1':>19}")
    for r in results:
        steps = "" if r.steps_equal is None else f"{r.steps_equal}/{r.responses}"
        equal, to = f"{r.equal}/{r.responses}", "ar" if r.accept == "exact" else "batch 1"
        print(f"{r.method:<14}{r.suite:<18}{r.temperature:>4g}{r.batch:>7}{equal:>9}{to:>9}{steps:>19}")
        for d in r.divergences:
            apart = "" if d["closeness"] is None else f", decision {d['closeness']:.3g} apart"
            print(f"    {d['prompt_id']} turn {d['turn']}: token {d['token']}{apart}")
        for name in r.step_differences:
            print(f"    other steps than at batch 1: {name}")
        strict_steps = dtype == "float64" and bool(r.step_differences)
        failed += bool(r.divergences) or strict_steps
    return failed


if __name__ == "__main__":
    main()
