"""The training loop: batch, features, rounds, one update; evaluate, save, and know when to stop.

It knows the order of things and what must be saved so that a resumed run ends with the same bits.  It does
not know which method it trains: blocks come from a round source, slot weights from an objective, everything
else from the drafter.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from harness.sections import OF_LATER_ROUNDS, TrainConfig
from harness.train.anchors import blocks_at, draw
from harness.train.corpus import Batch, BatchOrder, Corpus, Trajectory, collate
from harness.train.curve import Curve
from harness.train.estimate import Estimate, measure
from harness.train.features import FeatureStore
from harness.train.guard import Stopped
from harness.train.loss import Tally, block_loss
from harness.train.optimiser import MasterAdamW, learning_rate
from harness.train.rounds import MaskRounds
from harness.train.state import load, save
from harness.train.walk import Walk, accept_walk, walk
from methods.drafter import BlockDrafter
from methods.objectives import Decay

log = logging.getLogger(__name__)

#: Settings that do not belong to a run's identity: changing them between two resumes changes when it ends,
#: not what it is.
LOOSE = frozenset(
    {
        "checkpoint_every",
        "feature_cache_gb",
        "key_cache_gb",
        "threads",
        "plateau_percent",
        "stop_at_plateau",
        "wall_time_minutes",
    }
)


#: Settings that say nothing about a run of one round a step.
OF_ROUNDS = frozenset({"rounds", "chains", "rollout", "after_full"})

#: And those that say nothing about a head without a base branch of its own.
OF_HEADS = frozenset({"base_until"})

#: What a saved state holds beside its identity.
SAVED = ("step", "seconds", "blocks", "optimiser", "curve", "tallies", "rng")


@dataclass(frozen=True)
class Stores:
    """Target features of the three parts of a corpus."""

    train: FeatureStore
    heldout: FeatureStore
    greedy: FeatureStore


@dataclass(frozen=True)
class Outcome:
    """How a run ended.  reason: "steps", "plateau" or "wall_time"."""

    steps: int
    reason: str
    plateau: bool
    seconds: float
    blocks: int
    walks: list[Walk]


class Trainer:
    """One run.  `step` updates are done; `run` continues from there to the end and returns how it ended.

    identity: plain data that says what this run is (target, data, method, code, seed); together with the
    settings it decides whether a saved state is its own.  between: called between steps, may raise `Stopped`.
    """

    def __init__(
        self,
        drafter: BlockDrafter,
        objective: Decay,
        corpus: Corpus,
        stores: Stores,
        rounds: MaskRounds,
        settings: TrainConfig,
        seed: int,
        work: Path,
        identity: dict[str, Any],
        between: Callable[[], None] = lambda: None,
    ) -> None:
        self.drafter, self.objective, self.corpus, self.stores = drafter, objective, corpus, stores
        self.settings, self.seed, self.work, self.between = settings, seed, work, between
        self.device = next(drafter.parameters()).device
        self.rounds = rounds
        self.order = BatchOrder([len(t) for t in corpus.train], settings.batch_sequences, seed)
        self.optimiser = MasterAdamW(drafter, settings.weight_decay, settings.clip)
        self.held_objective = Decay(settings.gamma)
        self.slots = len(drafter.layout.supervised_slots)
        loose = {k: v for k, v in settings.model_dump().items() if k not in LOOSE}
        without = {*(() if rounds.count else OF_LATER_ROUNDS), *(() if drafter.config.head_options else OF_HEADS)}
        loose = {k: v for k, v in loose.items() if k not in without}
        self.identity = identity | {"train": loose, "seed": seed, "drafter": drafter.config.to_dict()}
        self.step, self.seconds, self.blocks, self._saved = 0, 0.0, 0, 0
        self.curve, self.tallies = Curve(), self._zero()
        self._walks: list[Walk] | None = None

    # -- the run --------------------------------------------------------------------------------------------

    def run(self) -> Outcome:
        """Train to the end.  On `Stopped` (a signal, a dead parent) the state is saved first."""
        self._resume()
        if self._reason() is None:
            log.info(self.estimate().text(self.settings.steps - self.step))
        with tqdm(total=self.settings.steps, initial=self.step, desc="training", unit="step", mininterval=2) as bar:
            try:
                reason = self._train(bar)
            except Stopped as stopped:
                self._save()
                log.warning("stopped at step %d (%s); the same command goes on from there", self.step, stopped.reason)
                raise
        if self._walks is None:
            self._walks = self._walk()
        flat = self.curve.flat(self.settings.plateau_percent)
        return Outcome(self.step, reason, flat, self.seconds, self.blocks, self._walks)

    def _train(self, bar: tqdm) -> str:
        """Step until there is a reason not to, which is returned.  Safe to leave and re-enter at any point."""
        every = self.settings
        while True:
            self.between()
            reason = self._reason()
            due = self.step > 0 and (self.step % every.eval_every == 0 or reason is not None)
            if due and self.curve.step != self.step:
                self._evaluate(bar)
                self._save()
                reason = reason or self._reason()  # a plateau shows only now
            elif self.step > self._saved and self.step % every.checkpoint_every == 0:
                self._save()
            if reason is not None:
                return reason
            self._timed_step()
            bar.update()

    def _reason(self) -> str | None:
        """Why no further step is taken, or None."""
        limit = self.settings.wall_time_minutes
        if self.step >= self.settings.steps:
            return "steps"
        if limit is not None and self.step > 0 and self.seconds >= 60 * limit:
            return "wall_time"
        if self.settings.stop_at_plateau and self.curve.step == self.step and self.step >= self.settings.steps / 4:
            if self.curve.flat(self.settings.plateau_percent):
                return "plateau"
        return None

    def _timed_step(self) -> None:
        start = time.perf_counter()
        batch = collate(self.corpus.train, self.order.at(self.step))
        self.tallies = [a + b for a, b in zip(self.tallies, self._backward(batch, self.step), strict=True)]
        try:
            self.optimiser.step(self._rate(self.step))
        except FloatingPointError as error:
            raise FloatingPointError(
                f"step {self.step}: {error}; no weight was moved, and the last saved state (step {self._saved}) "
                f"is untouched. Lower train.learning_rate ({self.settings.learning_rate:g}), which starts over, "
                "or give the target dtype float32"
            ) from error
        self.step += 1
        self.seconds += time.perf_counter() - start

    def _rate(self, step: int) -> float:
        return learning_rate(step, self.settings.steps, self.settings.learning_rate, self.settings.warmup_ratio)

    def _backward(self, batch: Batch, step: int) -> list[Tally]:
        """Gradients of one step: every round backward on its own, through a detached leaf of the shared context.

        Returns what each round counted; a round that no chain reached counted nothing.
        """
        ids, lengths = batch.ids.to(self.device), batch.lengths.to(self.device)
        store = self.stores.train
        taps, past = store.batch_with_past(batch) if self.rounds.uses_past else (store.batch(batch), None)
        context = self.drafter.context(taps)
        leaf = context.detach().requires_grad_()
        tallies = self._zero()
        current = self.rounds.first(step, batch, ids)
        while current is not None:
            blocks = current.blocks
            hidden = self.drafter.forward_blocks(leaf, blocks.anchors, blocks.tokens, blocks.keep, current.relay)
            tallies[current.index] = block_loss(
                self.drafter,
                hidden,
                ids,
                lengths,
                blocks,
                self.objective,
                self.settings.head_chunk,
                progress=self._head_progress(step),
            )
            current = self.rounds.following(step, ids, lengths, current, hidden.detach(), past)
        context.backward(leaf.grad)
        return tallies

    def _head_progress(self, step: int) -> float:
        """0 to 1 over the share of the run in which a head's base loss counts; 1 from the start if that is none."""
        span = self.settings.base_until * self.settings.steps
        return min(1.0, step / span) if span else 1.0

    def _zero(self) -> list[Tally]:
        return [Tally.zero(self.slots, self.device) for _ in range(self.rounds.count + 1)]

    # -- evaluation -----------------------------------------------------------------------------------------

    def _evaluate(self, bar: tqdm) -> None:
        """Add a row to the curve.  Nothing is kept until all is measured: a signal loses nothing."""
        self._refuse_nan()
        train = [tally.cpu() for tally in self.tallies]
        walks, heldout = self._walk(), self.heldout()
        walked, self._walks = accept_walk(walks), walks
        self.blocks += int(sum(tally.blocks for tally in train))
        self.curve.add(self.step, self._rate(self.step - 1), train, heldout, walked, self.seconds, self.blocks)
        self.curve.write(self.work / "learning_curve.csv")
        self.tallies = self._zero()
        bar.set_postfix(loss=f"{train[0].loss:.3f}", heldout=f"{heldout.loss:.3f}", walk=f"{walked:.2f}")

    @torch.no_grad()
    def heldout(self) -> Tally:
        """Held-out trajectories at random anchors that are the same at every evaluation (and for every method)."""
        total = Tally.zero(self.slots, self.device)
        for indices in _pieces(self.corpus.heldout, self.settings.batch_sequences):
            batch = collate(self.corpus.heldout, indices)
            ids, lengths = batch.ids.to(self.device), batch.lengths.to(self.device)
            anchors, keep = draw(0, indices[0], batch.lengths, batch.prompts, self.settings.anchors)
            blocks = blocks_at(ids, anchors.to(self.device), keep.to(self.device))
            context = self.drafter.context(self.stores.heldout.batch(batch))
            hidden = self.drafter.forward_blocks(context, blocks.anchors, blocks.tokens, blocks.keep)
            total = total + block_loss(
                self.drafter,
                hidden,
                ids,
                lengths,
                blocks,
                self.held_objective,
                self.settings.head_chunk,
                progress=1.0,
                backward=False,
            )
            self.between()
        return total.cpu()

    def _walk(self) -> list[Walk]:
        return walk(self.drafter, self.stores.greedy, self.corpus.greedy, self.between)

    # -- cost, saving, resuming -----------------------------------------------------------------------------

    def estimate(self) -> Estimate:
        """Time and memory, measured on the largest batch and a few ordinary ones; no weight changes."""

        def run(indices: Sequence[int]) -> Callable[[], None]:
            def call() -> None:
                self.between()
                self._backward(collate(self.corpus.train, indices), self.step)
                self.optimiser.clear()

            return call

        ordinary = [run(self.order.at(self.step + i)) for i in range(3)]
        return measure(run(self.order.worst()), ordinary, self.device)

    def _refuse_nan(self) -> None:
        weighted = float(sum(tally.weighted for tally in self.tallies))
        if not math.isfinite(weighted):
            raise FloatingPointError(
                f"the loss became {weighted} between steps {self.curve.step} and {self.step}; the "
                f"saved state is untouched. Lower train.learning_rate ({self.settings.learning_rate:g})"
            )

    def _save(self) -> None:
        self._refuse_nan()
        state = {
            "identity": self.identity,
            "step": self.step,
            "seconds": self.seconds,
            "blocks": self.blocks,
            "optimiser": self.optimiser.state(),
            "curve": self.curve.rows,
            "tallies": [[t.cpu() for t in tally.tensors()] for tally in self.tallies],
            "rng": torch.get_rng_state(),
        }
        if self.device.type == "cuda":
            state["cuda_rng"] = torch.cuda.get_rng_state(self.device)
        save(self.work / "state.pt", state)
        self._saved = self.step

    def _resume(self) -> None:
        state = load(self.work / "state.pt", self.identity)
        if state is None:
            return
        self.step, self.seconds, self.blocks = state["step"], state["seconds"], state["blocks"]
        self._saved = self.step
        self.optimiser.restore(state["optimiser"])
        self.curve = Curve(state["curve"])
        self.tallies = [Tally(*(t.to(self.device) for t in tally)) for tally in state["tallies"]]
        torch.set_rng_state(state["rng"])
        if "cuda_rng" in state and self.device.type == "cuda":
            torch.cuda.set_rng_state(state["cuda_rng"], self.device)
        log.info("resumed at step %d of %d", self.step, self.settings.steps)


def _pieces(trajectories: Sequence[Trajectory], size: int) -> list[list[int]]:
    """Indices in order of length, `size` at a time."""
    order = sorted(range(len(trajectories)), key=lambda i: (len(trajectories[i]), i))
    return [order[i : i + size] for i in range(0, len(order), size)]
