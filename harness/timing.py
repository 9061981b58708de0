"""Speed: every method of a target in one process, interleaved prompt by prompt, batch 1.

Knows clocks and the order of work. Does not know what a method is, and draws no conclusion: medians and
speed-ups are made from its rows by `harness/report/speed.py`.

    python -m harness.timing --config pocket --target pocket --out results/timing/pocket.jsonl

Rows (JSON lines), each with the facts of the machine:

* `run`: one response in one repeat. `tokens` are committed ids, the prefill's included, counted alike for
  every method; `seconds` are wall time with one synchronisation at each end; `same_as_ar` says whether the
  output is that of plain decoding (null under rejection sampling, which keeps the distribution, not the tokens).
* `first`: the first response of a method in this process, allocation and compilation included, counted nowhere else.
* `phases`: one response decoded twice more, in turns: `phases` are seconds by phase of its rounds (prefill excluded),
  each timed by itself, inner ones (head, relay) not counted in outer ones; `rounds_seconds` is what these rounds took
  in all, `whole_seconds` what they took the other time, when nobody looked inside. Looking costs time, so speeds never
  come from these rows, and what it costs is the difference.

Before each pass over a suite every method decodes warm-up prompts that are not counted. Only the first turn
of a dialogue is timed.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import torch
from tqdm import tqdm

from harness.arms import DrafterFactory, decode_settings, load_arms
from harness.clocks import PhaseClock, RoundsClock, turns, wait
from harness.config import Config, load_config, project_path
from harness.data import build_prompts, shared_prefix, suite_prompts
from harness.decode import Clock, Decoder, DecodeSettings, Prompt, Response
from harness.provenance import provenance_short
from harness.records import write_records
from harness.report.inputs import GENERATE
from harness.target import Target
from methods.contract import Drafter
from methods.heads import DraftError

Arms = Mapping[str, DrafterFactory | None]


@dataclass(frozen=True)
class Workload:
    """What is timed: prompts of one suite at one temperature, and how they are decoded."""

    suite: str
    prompts: tuple[Prompt, ...]
    settings: DecodeSettings
    shared_prefix: tuple[int, ...]

    @property
    def as_generate(self) -> bool:
        """Whether `generate` would do the same work: it draws other samples, watches no stop strings, and prefills
        what our decoder copies from a shared prefix."""
        return self.settings.temperature == 0 and not self.settings.stop_strings and not self.shared_prefix

    @property
    def fields(self) -> dict[str, Any]:
        return {
            "suite": self.suite,
            "temperature": self.settings.temperature,
            "accept": self.settings.accept,
            "proposals": self.settings.proposals,
        }


def workloads(config: Config, target: Target) -> list[Workload]:
    """A seeded sample of each suite's prompts at each temperature that is timed."""
    found = []
    for temperature in config.timing.temperatures:
        for name, spec in config.suites.items():
            tasks = suite_prompts(name, spec, config.data_root)
            settings = decode_settings(config, name, target, tasks, temperature, config.seeds[0])
            count = min(config.timing.prompts, len(tasks))
            tasks = Random(f"timing/{name}").sample(tasks, count)
            prompts = build_prompts(tasks, target, spec.max_new_tokens)
            prefix = shared_prefix(tasks, prompts, target)
            found.append(Workload(name, tuple(prompts), settings, prefix))
    return found


def measure(
    target: Target,
    arms: Arms,
    loads: Sequence[Workload],
    repeats: int,
    warmup: int,
    with_generate: bool = False,
) -> Iterator[dict[str, Any]]:
    """All rows: interleaved repeats first, then the instrumented pass. `warmup` below 1 counts as 1."""
    sync = partial(wait, target.device)
    seen: set[tuple[str, float]] = set()
    for repeat in range(repeats):
        for load in loads:
            yield from _interleaved(target, arms, load, repeat, max(1, warmup), with_generate, sync, seen)
    for load in loads:
        for method, factory in arms.items():
            yield from _instrumented(target, method, factory, load, max(1, warmup))


def _interleaved(
    target: Target,
    arms: Arms,
    load: Workload,
    repeat: int,
    warmup: int,
    with_generate: bool,
    sync: Callable[[], None],
    seen: set[tuple[str, float]],
) -> Iterator[dict[str, Any]]:
    """One repeat of one workload: each prompt by every method in turn, the first changing from prompt to prompt."""
    prompts = [*_warmups(load, warmup), *load.prompts]
    runs = {method: _responses(target, factory, load, prompts) for method, factory in arms.items()}
    if with_generate and load.as_generate:
        runs[GENERATE] = _generated(target, load, prompts)
    names = list(runs)
    for index, prompt in enumerate(prompts):
        rows, outputs = [], {}
        for method in turns(names, index + repeat):
            with _stock_attention(target) if method == GENERATE else nullcontext():
                sync()
                start = time.perf_counter()
                response = next(runs[method])
                sync()
                seconds = time.perf_counter() - start
            outputs[method] = response.output_ids
            row = {"method": method, **load.fields, "seconds": seconds, "tokens": len(response.output_ids)}
            if (method, load.settings.temperature) not in seen:
                seen.add((method, load.settings.temperature))
                yield {"kind": "first", **row}
            if index >= warmup:
                row |= {"repeat": repeat, "prompt_id": prompt.id, "steps": len(response.committed)}
                rows.append({"kind": "run", **row, "committed": sum(response.committed)})
        for row in rows:
            plain = outputs.get("ar") if load.settings.accept == "exact" else None  # else only the law is the same
            yield row | {"same_as_ar": None if plain is None else outputs[row["method"]] == plain}


def _instrumented(
    target: Target, method: str, factory: DrafterFactory | None, load: Workload, warmup: int
) -> Iterator[dict[str, Any]]:
    """Seconds by phase for each response of one method, beside those of its rounds when nobody looks inside."""
    phases, whole = PhaseClock(target.device), RoundsClock(target.device)
    prompts = [*_warmups(load, warmup), *load.prompts]
    looked_at = _responses(target, listened_to(factory, phases), load, prompts, phases)
    for index, response in enumerate(_responses(target, factory, load, prompts, whole)):
        again = next(looked_at)
        if index >= warmup:
            yield {
                "kind": "phases",
                "method": method,
                **load.fields,
                "prompt_id": response.prompt_id,
                "steps": len(again.committed),
                "committed": sum(again.committed),
                "whole_seconds": whole.rounds_seconds,
                "rounds_seconds": phases.rounds_seconds,
                "phases": phases.seconds,
            }
        phases.restart()
        whole.restart()


def listened_to(factory: DrafterFactory | None, clock: Clock) -> DrafterFactory | None:
    """The same drafters, who tell `clock` of the phases inside a draft."""
    if factory is None:
        return None

    def build(rows: int, capacity: int) -> Drafter:
        drafter = factory(rows, capacity)
        drafter.phases = clock
        return drafter

    return build


def _warmups(load: Workload, count: int) -> list[Prompt]:
    """Prompts of the workload's own shapes under names of their own."""
    return [replace(load.prompts[i % len(load.prompts)], id=f"warm-up/{load.suite}/{i}") for i in range(count)]


def _responses(
    target: Target,
    factory: DrafterFactory | None,
    load: Workload,
    prompts: Sequence[Prompt],
    clock: Clock | None = None,
) -> Iterator[Response]:
    """One row at a time, so that a response is finished before the next prompt is begun."""
    return Decoder(target, factory, load.settings, rows=1, shared_prefix=load.shared_prefix, clock=clock).run(prompts)


@contextmanager
def _stock_attention(target: Target) -> Iterator[None]:
    """The target with the attention of transformers.  Switching takes a millisecond: do it outside the clock."""
    target.use_our_attention(False)
    try:
        yield
    finally:
        target.use_our_attention(True)


def _generated(target: Target, load: Workload, prompts: Sequence[Prompt]) -> Iterator[Response]:
    """The same prompts by `transformers`, under `_stock_attention`; stop strings are not watched."""
    for prompt in prompts:
        ids = torch.tensor([prompt.ids], device=target.device)
        with torch.no_grad():
            out = target.model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=load.settings.max_new_tokens,
                do_sample=False,
                eos_token_id=list(load.settings.stop_ids) or None,
                pad_token_id=load.settings.stop_ids[0] if load.settings.stop_ids else 0,
            )
        new = out[0, ids.shape[1] :].tolist()
        steps = [1] * (len(new) - 1)
        yield Response(prompt.id, prompt.turn, prompt.ids, new, [0] * len(steps), steps, "budget")


def run(config: Config, name: str, drafters: Path) -> list[dict[str, Any]]:
    """Load a target and all its methods, and measure them. Bad input raises before anything is timed."""
    target = Target.load(config.target(name), name)
    loads = workloads(config, target)
    arms = load_arms(config, target, config.methods, drafters, config.seeds[0])
    timing = config.timing
    total = sum(
        len(load.prompts) * ((len(arms) + (timing.generate and load.as_generate)) * timing.repeats + len(arms))
        for load in loads
    )
    machine = provenance_short(dtype=config.targets[name].dtype)
    rows = []
    with tqdm(total=total, desc=f"timing {name}", mininterval=2) as bar:
        for row in measure(target, arms, loads, timing.repeats, timing.warmup, timing.generate):
            rows.append({"target": name, **row, "machine": machine})
            bar.update(row["kind"] != "first")
    return rows


def command(
    argv: Sequence[str] | None, name: str, says: str, measured: Callable[[Config, str, Path], list[dict[str, Any]]]
) -> None:
    """The command of a stage that measures all methods of a target and writes rows: `python -m harness.<name>`."""
    parser = argparse.ArgumentParser(prog=f"python -m harness.{name}", description=says)
    parser.add_argument("--config", default="pocket", help="a profile or a YAML file")
    parser.add_argument("--target", required=True, help="a name under targets:")
    parser.add_argument("--drafters", type=Path, help="default: <output_dir>/drafters/<target>")
    parser.add_argument("--out", type=Path, required=True, help="rows to write (.jsonl)")
    parser.add_argument("--threads", type=int, default=0, help="CPU threads; 0 leaves torch's choice")
    arguments = parser.parse_args(argv)
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    try:
        config = load_config(arguments.config)
        drafters = arguments.drafters or project_path(config.output_dir) / "drafters" / arguments.target
        rows = measured(config, arguments.target, drafters)
    except (ValueError, OSError, DraftError) as error:
        parser.exit(2, f"{error}\n")
    write_records(arguments.out, rows)
    print(f"{arguments.out}: {len(rows)} rows")


def main(argv: Sequence[str] | None = None) -> None:
    command(argv, "timing", "Time all methods of a target.", run)


if __name__ == "__main__":
    main()
