"""What a training step costs, by method, against its parts timed alone and against the others.

    python -m harness.train.cost --config pocket --target pocket --out results/cost.csv

All methods take steps on the same batches, interleaved in one process; a step is a batch's features, its rounds and
the update.  Parts of the same step are then timed one by one, on the very blocks the step's rounds stood on: the
features and keys of the trajectories (looked up, or a pass of the target), each round's drafter forward and
backward, each transition's target pass over rejected rows.  Drafting between rounds, the relay's own arithmetic, the
backward pass of the fusion and the update are no parts: they are what a step may cost beside them.  Peak memory is
that of a process of its own per method, on the largest batch there is.  It knows the trainer's pieces; it changes no
weight that anybody keeps.
"""

from __future__ import annotations

import argparse
import json
import logging
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from tqdm import tqdm

from harness.bench.table import csv_text, plain_text
from harness.config import Config, load_config, project_path
from harness.provenance import provenance_short
from harness.target import Target
from harness.train.build import build_drafter, build_rounds
from harness.train.corpus import Batch, collate, read_trajectories, split
from harness.train.estimate import peak_gb
from harness.train.features import FeatureStore
from harness.train.loop import Stores, Trainer
from harness.train.loss import Tally, block_loss
from harness.train.rounds import Round
from harness.train.state import write_bytes
from harness.train.verify import Past, rejected_taps
from methods.objectives import objective
from methods.recipes import recipe

log = logging.getLogger(__name__)
#: The step whose random numbers are drawn: one in the middle of a run, where a sequential head has both losses.
AT = 0.5


def trainers(config: Config, target: Target, methods: Sequence[str], trajectories: Path, work: Path) -> dict:
    """A trainer per method on the same trajectories; features are kept once for all of them."""
    lines, manifest = read_trajectories(trajectories)
    made: dict[str, Trainer] = {}
    stores: dict[tuple, Stores] = {}
    for method in methods:
        own = config.settings_of(method)
        train = own.train
        corpus = split(lines, manifest, train.max_length, train.heldout_prompts, train.walk_prompts)
        chosen = recipe(own.entrant(method).recipe)
        drafter = build_drafter(own, target, chosen.name, 0, corpus.train)
        rounds = build_rounds(train, drafter, target, 0)
        keys = train.key_cache_gb * rounds.uses_past
        kept = (drafter.config.taps, train.max_length, train.feature_cache_gb, keys)
        if kept not in stores:
            store = FeatureStore(target, drafter.config.taps, corpus.train, train.feature_cache_gb, key_budget_gb=keys)
            stores[kept] = Stores(store, store, store)  # a step reads the first alone
        law = objective(chosen.objective, train.gamma)
        made[method] = Trainer(drafter, law, corpus, stores[kept], rounds, train, 0, work / method, {})
        made[method].step = int(AT * train.steps)
    return made


def step_of(trainer: Trainer, batch: Batch) -> list[Tally]:
    """One step but for its count: gradients, and an update at rate 0.  Returns what its rounds counted."""
    tallies = trainer._backward(batch, trainer.step)
    trainer.optimiser.step(0.0)
    return tallies


def parts_of(trainer: Trainer, batch: Batch) -> dict[str, Callable[[], Any]]:
    """The parts of a step on this batch by name, each to be called alone; the same work, without what joins them."""
    ids, lengths = batch.ids.to(trainer.device), batch.lengths.to(trainer.device)
    store, rounds, drafter = trainer.stores.train, trainer.rounds, trainer.drafter
    take = store.batch_with_past if rounds.uses_past else store.batch
    taken = take(batch)
    taps, past = taken if rounds.uses_past else (taken, None)
    context = drafter.context(taps).detach().requires_grad_()
    parts: dict[str, Callable[[], Any]] = {"features and keys": lambda: take(batch)}
    current = rounds.first(trainer.step, batch, ids)
    while current is not None:
        hidden = _forward(trainer, context, current)
        parts[f"drafter, round {current.index}"] = _drafter_pass(trainer, context, ids, lengths, current)
        following = rounds.following(trainer.step, ids, lengths, current, hidden.detach(), past)
        if following is not None and rounds.uses_past:
            parts[f"rejected rows, round {current.index}"] = _target_pass(
                trainer, ids, lengths, current, hidden.detach(), past
            )
        current = following
    return parts


def _forward(trainer: Trainer, context: torch.Tensor, current: Round) -> torch.Tensor:
    blocks = current.blocks
    return trainer.drafter.forward_blocks(context, blocks.anchors, blocks.tokens, blocks.keep, current.relay)


def _drafter_pass(trainer: Trainer, context: torch.Tensor, ids, lengths, current: Round) -> Callable[[], None]:
    def call() -> None:
        hidden = _forward(trainer, context, current)
        settings, progress = trainer.settings, trainer._head_progress(trainer.step)
        block_loss(
            trainer.drafter,
            hidden,
            ids,
            lengths,
            current.blocks,
            trainer.objective,
            settings.head_chunk,
            progress=progress,
        )

    return call


def _target_pass(trainer: Trainer, ids, lengths, before: Round, hidden, past: Past) -> Callable[[], Any]:
    """The target on the rows that this transition runs, and nothing else of the transition."""
    moved = trainer.rounds.transition(trainer.step, ids, lengths, before, hidden)
    accepted = torch.where(moved.following.keep, moved.accepted, moved.proposals.shape[-1])
    where = (past, moved.blocks.anchors, moved.proposals, accepted)
    return lambda: rejected_taps(trainer.rounds.target, trainer.drafter.config.taps, *where)


def seconds(call: Callable[[], Any], device: torch.device) -> float:
    """Wall time of a call, a GPU's work included."""
    start = time.perf_counter()
    call()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - start


def measure(made: dict[str, Trainer], steps: int, repeats: int) -> list[dict[str, Any]]:
    """Rows method, part, ms: of whole steps, all methods in turn, and of each part, in turn with its step.

    A batch counts by the median of its repeats; ms is the mean over all batches, 0 for a part that a batch has not.
    """
    times: dict[tuple[str, str], float] = {}
    with tqdm(total=steps * len(made), desc="steps", unit="step") as bar:
        for index in range(steps):
            batch = collate(next(iter(made.values())).corpus.train, next(iter(made.values())).order.at(index))
            for method, trainer in made.items():
                parts = parts_of(trainer, batch)
                trainer.optimiser.clear()
                calls = {"step": lambda t=trainer, b=batch: step_of(t, b)} | parts
                found: dict[str, list[float]] = {name: [] for name in calls}
                for _ in range(repeats + 1):
                    for name, call in calls.items():
                        found[name].append(seconds(call, trainer.device))
                        trainer.optimiser.clear()
                for name, took in found.items():  # the first time pays for what is new
                    times[method, name] = times.get((method, name), 0.0) + statistics.median(took[1:]) / steps
                bar.update()
    rows = []
    for method in made:
        own = {name: 1e3 * mean for (m, name), mean in times.items() if m == method}
        whole = own.pop("step")
        rows.append({"method": method, "part": "step", "ms": whole, "over_parts": whole / sum(own.values())})
        rows += [{"method": method, "part": name, "ms": value} for name, value in own.items()]
    return rows


def peak(config_name: str, target: str, method: str, trajectories: Path, threads: int = 0) -> float:
    """Peak memory in GB of a process that takes steps of this method on its largest batch; threads: as in the options.

    Raises ``RuntimeError`` with the last words of a process that failed.
    """
    words = ["--config", config_name, "--target", target, "--methods", method, "--trajectories", str(trajectories)]
    words += ["--threads", str(threads)]
    done = subprocess.run(
        [sys.executable, "-m", "harness.train.cost", *words, "--peak-only"], capture_output=True, text=True, check=False
    )
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise RuntimeError(f"the process that measures {method} ended with {done.returncode}: {last}")
    return json.loads(done.stdout.splitlines()[-1])["peak_gb"]


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m harness.train.cost", description=__doc__.split("\n")[0])
    parser.add_argument("--config", default="pocket", help="a profile or a YAML file")
    parser.add_argument("--target", required=True, help="a name under targets:")
    parser.add_argument("--methods", nargs="+", help="recipes and variants that are trained; default: of Table 1")
    parser.add_argument("--trajectories", type=Path, help="their folder; default <output_dir>/trajectories/<target>")
    parser.add_argument("--steps", type=int, default=8, help="batches")
    parser.add_argument("--repeats", type=int, default=3, help="times each batch is taken, after one for warmth")
    parser.add_argument("--threads", type=int, default=0, help="CPU threads; 0: as train.threads says")
    parser.add_argument("--out", type=Path, help="also write the rows as CSV")
    parser.add_argument("--peak-only", action="store_true", help="print the peak memory of the first method alone")
    arguments = parser.parse_args(argv)
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    try:
        config = load_config(arguments.config)
        torch.set_num_threads(arguments.threads or config.train.threads or torch.get_num_threads())
        drafted = [name for name in config.methods if recipe(config.entrant(name).recipe).drafts]
        methods = arguments.methods or drafted
        folder = arguments.trajectories or project_path(config.output_dir) / "trajectories" / arguments.target
        target = Target.load(config.target(arguments.target).in_training, arguments.target)
        with TemporaryDirectory() as work:
            made = trainers(config, target, methods, folder, Path(work))
        if arguments.peak_only:
            trainer = made[methods[0]]
            batch = collate(trainer.corpus.train, trainer.order.worst())
            for _ in range(3):
                step_of(trainer, batch)
            print(json.dumps({"peak_gb": peak_gb(trainer.device)}))
            return
        rows = measure(made, arguments.steps, arguments.repeats)
        peaks = {
            name: peak(arguments.config, arguments.target, name, folder, arguments.threads)
            for name in tqdm(methods, desc="memory")
        }
    except (ValueError, OSError, RuntimeError) as error:
        parser.exit(2, f"{error}\n")
    report(rows, peaks, config.targets[arguments.target].in_training.dtype, arguments.out)


def report(rows: list[dict[str, Any]], peaks: dict[str, float], dtype: str, out: Path | None) -> None:
    """Print the table; write it as CSV, with the machine, if `out` is given."""
    first = next(row["ms"] for row in rows if row["part"] == "step")
    base, memory = rows[0]["method"], next(iter(peaks.values()))
    for row in rows:
        if row["part"] == "step":
            row |= {f"over_{base}": row["ms"] / first, "peak_gb": peaks[row["method"]]}
            row["peak_over"] = row["peak_gb"] / memory
    columns = ["method", "part", "ms", "over_parts", f"over_{base}", "peak_gb", "peak_over"]
    print(plain_text(rows, columns))
    if out:
        write_bytes(out, csv_text(rows, columns, provenance_short(dtype=dtype)).encode())


if __name__ == "__main__":
    main()
