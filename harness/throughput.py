"""Throughput: every method of a target with 1, 2, 4 ... sequences at a time, in one process, interleaved.

Knows clocks, levels of concurrency and the order of work. Does not know what a method is, and draws no conclusion:
medians and speed-ups are made from its rows by `harness/report/table2.py`.

    python -m harness.throughput --config pocket --target pocket --out results/throughput/pocket.jsonl

A row (a JSON line with the facts of the machine) is one method that decodes all prompts of one level in one repeat:
`tokens` are committed ids, the prefill's included, counted alike for every method; `seconds` are wall time from the
first prompt in to the last response out, prefills included, with one synchronisation at each end; `rounds` are
verifications of the whole batch, `steps` those of single rows, so that steps over rounds says how full the batch was.
The place of a sequence that ends is taken by the next prompt; towards the end of a pass there is none left, which a
server with a queue would not see.

Before its first pass at a level every method decodes as many prompts as are decoded at a time: `first` rows, which
count nowhere else. Of a dialogue only the first turn is asked.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from tqdm import tqdm

from harness import stage
from harness.arms import DrafterFactory, decode_settings, load_arms
from harness.clocks import turns, wait
from harness.config import Config, project_path
from harness.data import build_prompts, shared_prefix, suite_prompts
from harness.decode import Clock, Decoder, DecodeSettings, Prompt
from harness.provenance import checkpoint_digest, provenance_short
from harness.records import read_records, write_records
from harness.report.inputs import PLAIN
from harness.target import Target
from harness.timing import command
from harness.train.state import digest

Arms = Mapping[str, DrafterFactory | None]
Outputs = dict[str, list[int]]  # ids by prompt
#: Throughput is of greedy decoding, where what a method writes does not depend on it.
TEMPERATURE = 0.0


@dataclass(frozen=True)
class Load:
    """Prompts of one suite at one level of concurrency, and how they are decoded.  max_proposals: the cap at this
    level, as configured."""

    suite: str
    level: int
    prompts: tuple[Prompt, ...]
    settings: DecodeSettings
    shared_prefix: tuple[int, ...]
    max_proposals: int | None

    @property
    def fields(self) -> dict[str, Any]:
        return {
            "suite": self.suite,
            "concurrency": self.level,
            "max_proposals": self.max_proposals,
            "prompts": len(self.prompts),
        }


class Rounds(Clock):
    """Counts verifications of the batch; measures nothing."""

    def __init__(self) -> None:
        self.count = 0

    def phase(self, name: str) -> AbstractContextManager[None]:
        self.count += name == "verify"
        return nullcontext()


def loads(config: Config, target: Target) -> list[Load]:
    """All suites at all levels.  A level asks the prompts of the levels below it and further ones, all different.

    Raises DataError for a suite with fewer prompts than the highest level asks for.
    """
    asked, found = config.concurrency, []
    most = max(asked.prompts_at(level) for level in asked.levels)
    for name in asked.suites:
        spec = config.suite(name).model_copy(update={"prompts": most})
        tasks = suite_prompts(name, spec, config.data_root)
        Random(f"throughput/{name}").shuffle(tasks)
        settings = decode_settings(config, name, target, tasks, TEMPERATURE, config.seeds[0])
        prompts = build_prompts(tasks, target, spec.max_new_tokens)
        prefix = shared_prefix(tasks, prompts, target)
        for level in asked.levels:
            chosen = tuple(prompts[: asked.prompts_at(level)])
            found.append(Load(name, level, chosen, settings, prefix, asked.cap_at(level)))
    return found


def measure(
    target: Target, arms: Mapping[int | None, Arms], work: Sequence[Load], repeats: int
) -> Iterator[dict[str, Any]]:
    """Rows of all loads.  arms: the methods under each cap of the draft length.

    Methods take turns within each repeat of a load, another one first each time.
    """
    sync = partial(wait, target.device)
    for load in work:
        found = arms[load.max_proposals]
        for repeat in range(repeats):
            rows, outputs = [], {}
            for name in turns(list(found), repeat):
                if repeat == 0:
                    row, _ = _pass(target, found[name], _warmups(load), sync)
                    yield {"kind": "first", "method": name, **load.fields, **row}
                row, outputs[name] = _pass(target, found[name], load, sync)
                rows.append({"kind": "load", "method": name, **load.fields, "repeat": repeat, **row})
            for row in rows:
                yield row | {"unlike_ar": _unlike(outputs[row["method"]], outputs.get(PLAIN))}


def _unlike(outputs: Outputs, plain: Outputs | None) -> int | None:
    """Responses that differ from those of plain decoding; None where nothing was decoded plainly."""
    return None if plain is None else sum(plain[key] != ids for key, ids in outputs.items())


def _pass(
    target: Target, factory: DrafterFactory | None, load: Load, sync: Callable[[], None]
) -> tuple[dict[str, Any], Outputs]:
    """One method decodes the prompts of a load: what it took, and what it wrote."""
    rounds = Rounds()
    decoder = Decoder(target, factory, load.settings, rows=load.level, shared_prefix=load.shared_prefix, clock=rounds)
    sync()
    start = time.perf_counter()
    responses = list(decoder.run(load.prompts))
    sync()
    seconds = time.perf_counter() - start
    taken = {
        "seconds": seconds,
        "tokens": sum(len(response.output_ids) for response in responses),
        "steps": sum(len(response.committed) for response in responses),
        "rounds": rounds.count,
    }
    return taken, {response.prompt_id: response.output_ids for response in responses}


def _warmups(load: Load) -> Load:
    """As many prompts as are decoded at a time, of the load's own shapes under names of their own."""
    prompts = [replace(prompt, id=f"warm-up/{prompt.id}") for prompt in load.prompts[: load.level]]
    return replace(load, prompts=tuple(prompts))


def run(config: Config, name: str, drafters: Path) -> list[dict[str, Any]]:
    """Load a target and all its methods, and measure them, going on where an interrupted run of the same stopped.

    Bad input raises before anything is timed.
    """
    if not config.concurrency.suites:
        raise ValueError("concurrency.suites names no suite, so there is nothing to measure; name one of suites")
    target = Target.load(config.target(name), name)
    work = loads(config, target)
    caps = dict.fromkeys(load.max_proposals for load in work)
    arms = {cap: load_arms(config, target, config.methods, drafters, config.seeds[0], cap) for cap in caps}
    machine = provenance_short(dtype=config.targets[name].dtype)
    whole = config.model_dump(mode="json", include={"suites", "methods", "variants", "decode", "concurrency", "seeds"})
    weights = dict.fromkeys(config.entrant(method).weights for method in config.methods)
    folders = [drafters / f"{method}-seed{config.seeds[0]}" for method in weights]
    files = [checkpoint_digest(folder) for folder in folders if folder.is_dir()]
    asked = digest([whole, target.fingerprint, files, stage.digest("throughput"), machine])
    partial = project_path(config.work_dir) / "throughput" / f"{name}-{asked[:12]}.jsonl"
    rows = read_records(partial, repair=True)
    repeats = config.concurrency.repeats
    total = sum(len(load.prompts) for load in work) * len(config.methods) * repeats
    with tqdm(total=total, desc=f"throughput {name}", unit="resp", mininterval=2) as bar:
        for load in work:
            done = [row for row in rows if (row["suite"], row["concurrency"]) == (load.suite, load.level)]
            bar.update(len(load.prompts) * len(config.methods) * repeats * bool(done))
            if done:
                continue
            made = []
            for row in measure(target, arms, [load], repeats):
                made.append({"target": name, **row, "machine": machine})
                bar.update(len(load.prompts) * (row["kind"] == "load"))
            rows += made  # all of a load or none, since they are compared with one another
            write_records(partial, rows)
    return rows


def main(argv: Sequence[str] | None = None) -> None:
    command(argv, "throughput", "Throughput of all methods of a target by concurrency.", run)


if __name__ == "__main__":
    main()
