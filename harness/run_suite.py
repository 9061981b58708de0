"""The decode stage: one method, one temperature, one seed; a file of records for each suite.

    python -m harness.run_suite --config pocket --target pocket --method ar --suites pocket_word pocket_chat \
        --temperature 0 --seed 0 --out FOLDER [--drafter FOLDER]

It knows how tasks become prompts and responses become records, and that an interrupted run goes on where it stopped:
finished responses are kept as lines in the work folder, keyed by everything that could change them.  It does not know
what a drafter is, nor what will be computed from the records.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import logging
import os
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from tqdm import tqdm

from harness.arms import decode_settings, load_arm, others
from harness.config import Config, load_config, temperature_label
from harness.data import (
    Task,
    build_prompts,
    first_messages,
    next_turn,
    prompt_of,
    refuse_overlong,
    shared_prefix,
    suite_prompts,
)
from harness.decode import Decoder, Prompt
from harness.prompt_sections import SuiteConfig
from harness.provenance import checkpoint_digest, origin, write_origin
from harness.records import Record, append_record, prompt_sha, read_records, write_records
from harness.score.grade import GraderError, Limits, grade, self_test
from harness.stage import digest
from harness.stops import trim
from harness.target import Target
from methods.heads import DraftError

log = logging.getLogger(__name__)

#: A suite that can be decoded and graded: its settings, the graders' limits, its tasks and their first prompts.
Checked = tuple[SuiteConfig, Limits, Sequence[Task], Sequence[Prompt]]


def run_suite(
    config: Config,
    target: Target,
    name: str,
    method: str,
    suite: str,
    temperature: float,
    seed: int,
    drafter: Path | None,
    checked: Checked | None = None,
) -> list[dict]:
    """Decode and grade every turn of every prompt of a suite; returns its records in order of prompts and turns.

    checked: what `check_suite` found, if it has been asked before.
    All bad input (unknown suite, prompt or dialogue longer than the context, checkpoint of another target, a grader
    that fails its own test) raises before the first token is decoded.
    """
    spec, limits, tasks, prompts = checked or check_suite(config, target, suite)
    entrant = config.entrant(method)
    arm = load_arm(config, target, method, drafter)
    settings = decode_settings(config, suite, target, tasks, temperature, seed)
    settings = replace(settings, trace=config.decode.trace and arm is not None)
    facts = [repr(settings), config.decode.batch_size, drafter and checkpoint_digest(drafter), entrant.relay]
    facts.append(config.decode.max_proposals)
    facts.append(repr(limits))
    partial = _partial_path(config, target, name, method, suite, temperature, seed, facts)
    before = {(r["prompt_id"], r["turn"]): r for r in read_records(partial, repair=True)}
    log.info(
        "%s %s T=%g seed %d: %d prompts, %d finished before", method, suite, temperature, seed, len(tasks), len(before)
    )

    done: dict[tuple[str, int], dict] = {}
    shared = shared_prefix(tasks, prompts, target)
    decoder = Decoder(target, arm, settings, rows=config.decode.batch_size, shared_prefix=shared)
    fields = {"target": name, "method": method, "suite": suite}
    talks = {task.id: first_messages(task) for task in tasks}
    pending, turn = list(tasks), 0
    while pending:
        asked = [prompt_of(task, talks[task.id], target, spec.max_new_tokens) for task in pending]
        done |= {(p.id, turn): before[p.id, turn] for p in asked if _answers(before.get((p.id, turn)), p)}
        missing = [p for p in asked if (p.id, turn) not in done]
        _decode_turn(decoder, target, missing, {t.id: t for t in pending}, fields, spec.scored, limits, partial, done)
        following = []
        for task in pending:
            answer = {"role": "assistant", "content": done[task.id, turn]["text"]}
            messages = next_turn(task, [*talks[task.id], answer])
            if messages is not None:
                talks[task.id] = messages
                following.append(task)
        pending, turn = following, turn + 1
    order = {task.id: index for index, task in enumerate(tasks)}
    return [done[key] for key in sorted(done, key=lambda key: (order[key[0]], key[1]))]


def check_suite(config: Config, target: Target, suite: str) -> Checked:
    """The tasks and first prompts of a suite that can be decoded and graded.

    Raises ``ValueError`` for an unknown suite or a prompt or dialogue longer than the context, `GraderError` for a
    grader that fails its own test.
    """
    spec = config.suite(suite)
    tasks = suite_prompts(suite, spec, config.data_root)
    limits = Limits(run_code=config.run_code)
    if spec.scored:
        self_test(tasks, limits)
    prompts = build_prompts(tasks, target, spec.max_new_tokens)
    for task in tasks:
        refuse_overlong(task, target, spec.max_new_tokens)
    return spec, limits, tasks, prompts


def _answers(line: dict | None, prompt: Prompt) -> bool:
    """Whether a finished line answers this very prompt; one of its name may have been asked in other words."""
    return line is not None and line["prompt_sha"] == prompt_sha(prompt.ids)


def _decode_turn(
    decoder: Decoder,
    target: Target,
    prompts: Sequence[Prompt],
    tasks: dict[str, Task],
    fields: dict,
    scored: bool,
    limits: Limits,
    partial: Path,
    done: dict,
) -> None:
    """Decode one turn's prompts; each finished response is graded, appended to the partial file, and put in `done`."""
    if not prompts:
        return
    start = time.monotonic()
    label = f"{fields['method']} {fields['suite']} T={decoder.settings.temperature:g}"
    for number, response in enumerate(tqdm(decoder.run(prompts), total=len(prompts), desc=label, mininterval=2), 1):
        text = trim(target.decode(response.output_ids), decoder.settings.stop_strings)
        mark = grade(tasks[response.prompt_id], text, response.turn, limits) if scored else None
        record = Record.of(
            response,
            decoder.settings,
            **fields,
            text=text,
            score=mark.score if mark else None,
            verdict=mark.verdict if mark else None,
            seconds=round((time.monotonic() - start) / number, 4),
        )
        append_record(partial, record)
        done[response.prompt_id, response.turn] = json.loads(json.dumps(record.__dict__))


def _partial_path(
    config: Config, target: Target, name: str, method: str, suite: str, temperature: float, seed: int, facts: list
) -> Path:
    """Where the finished lines of this very computation lie: another target, drafter, setting or code, another file."""
    made_by = [target.fingerprint, target.template_hash, target.thinking, str(target.dtype), target.device.type]
    facts = [
        *facts,
        *made_by,
        digest("decode", [config.entrant(method).recipe]),
        config.suites[suite].model_dump(mode="json"),
    ]
    key = hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode()).hexdigest()[:12]
    folder = Path(config.work_dir or "work") / "partial" / name / method
    return folder / f"{suite}-T{temperature_label(temperature)}-seed{seed}-{key}.jsonl"


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m harness.run_suite", description=__doc__.split("\n")[0])
    parser.add_argument("--config", default="pocket", help="a profile or a YAML file")
    parser.add_argument("--target", required=True, help="a name under targets:")
    parser.add_argument("--method", required=True, help="a recipe or variant, e.g. ar")
    parser.add_argument("--suites", nargs="+", help="names under suites:, default all")
    parser.add_argument("--temperature", type=float, required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--drafter", type=Path, help="checkpoint folder, for a method that drafts")
    parser.add_argument("--out", type=Path, required=True, help="folder for <suite>-T<temperature>-seed<seed>.jsonl")
    parser.add_argument("--threads", type=int, default=0, help="CPU threads; 0 leaves torch's choice")
    arguments = parser.parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    try:
        config = load_config(arguments.config)
        suites = arguments.suites or list(config.suites)
        for suite in suites:
            config.suite(suite)
        target = Target.load(config.target(arguments.target), arguments.target)
        made_by = origin(
            fingerprint=target.fingerprint,
            dtype=config.target(arguments.target).dtype,
            drafter=arguments.drafter,
            method=arguments.method,
            other=others(target, arguments.drafter),
        )
        # One that could not be decoded is refused before any other is.
        checked = {suite: check_suite(config, target, suite) for suite in suites}
        for suite in suites:
            records = run_suite(
                config,
                target,
                arguments.target,
                arguments.method,
                suite,
                arguments.temperature,
                arguments.seed,
                arguments.drafter,
                checked[suite],
            )
            name = f"{suite}-T{temperature_label(arguments.temperature)}-seed{arguments.seed}.jsonl"
            write_origin(arguments.out / name, made_by)
            write_records(arguments.out / name, records)
            print(json.dumps({"suite": suite} | totals(records)))
    except (ValueError, OSError, DraftError, GraderError) as error:
        parser.exit(2, f"{error}\n")


def totals(records: Sequence[dict]) -> dict[str, float]:
    steps, tokens = sum(len(r["committed"]) for r in records), sum(sum(r["committed"]) for r in records)
    return {"records": len(records), "steps": steps, "tau": round(tokens / max(steps, 1), 4), "pid": os.getpid()}


if __name__ == "__main__":
    main()
