"""Trajectories on disk, and the batches a step trains on.

It knows token ids, the boundary between prompt and response, and lengths.  It knows no model and no drafter.

Order is a pure function of (seed, step): there is no iterator whose position could be lost, so a resumed run
sees the batches the uninterrupted one would have seen, at an epoch boundary too.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

#: What training wants to know of the trajectories.
FACTS = ("fingerprint", "template_hash", "thinking", "dtype", "max_new_tokens", "stop_strings")
#: Batches are cut from runs of this many batches' worth of shuffled sequences, sorted by length within the
#: run.
BUCKET_BATCHES = 16


@dataclass(frozen=True)
class Trajectory:
    """One prompt and the target's own response to it.  Response tokens, and only they, are supervised.

    source: where the prompt comes from, if the manifest tells stop strings apart by that.
    """

    prompt_id: str
    prompt_ids: tuple[int, ...]
    response_ids: tuple[int, ...]
    temperature: float
    turn: int = 0
    source: str | None = None

    @property
    def ids(self) -> tuple[int, ...]:
        return self.prompt_ids + self.response_ids

    def __len__(self) -> int:
        return len(self.prompt_ids) + len(self.response_ids)


@dataclass(frozen=True)
class Batch:
    """Right-padded sequences of one step.

    ids: [B, S] int64, 0 past the end.  lengths: [B].  prompts: [B] prompt lengths.
    """

    indices: tuple[int, ...]
    ids: Tensor
    lengths: Tensor
    prompts: Tensor


@dataclass(frozen=True)
class Corpus:
    """Trajectories for training and held-out ones, and the manifest they came with."""

    train: tuple[Trajectory, ...]
    heldout: tuple[Trajectory, ...]
    greedy: tuple[Trajectory, ...]  # held-out, temperature 0, uncut: these are walked
    manifest: dict[str, Any]
    dropped: int

    @property
    def supervised_share(self) -> float:
        total = sum(len(t) for t in self.train)
        return sum(len(t.response_ids) for t in self.train) / total


def read_trajectories(folder: Path) -> tuple[list[Trajectory], dict[str, Any]]:
    """All shards named in ``manifest.json``, each checked against its hash."""
    path = folder / "manifest.json"
    if not path.is_file():
        raise FileNotFoundError(f"{path} is missing; make it with python -m harness.train.trajectories")
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
        shards = [(shard["file"], shard["sha256"]) for shard in manifest["shards"]]
        missing = [name for name in FACTS if name not in manifest]
        if missing:
            raise ValueError(f"it has no {', '.join(missing)}")
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is damaged ({error!r}): generate the trajectories again") from error
    found: list[Trajectory] = []
    for name, expected in shards:
        data = (folder / name).read_bytes()
        digest = hashlib.sha256(data).hexdigest()
        if digest != expected:
            raise ValueError(
                f"{folder / name} has sha256 {digest[:16]}, the manifest says {expected[:16]}: it was changed "
                "after it was made, generate the trajectories again"
            )
        found += [as_trajectory(json.loads(line)) for line in data.decode("utf-8").splitlines()]
    return found, manifest


def as_trajectory(line: dict[str, Any]) -> Trajectory:
    return Trajectory(
        line["prompt_id"],
        tuple(line["prompt_ids"]),
        tuple(line["response_ids"]),
        float(line["temperature"]),
        int(line.get("turn", 0)),
        line.get("source"),
    )


def split(
    trajectories: Iterable[Trajectory], manifest: dict[str, Any], max_length: int, heldout: int, walk: int
) -> Corpus:
    """Cut to `max_length`, drop what cannot hold one block, and put `heldout` trajectories aside.

    Held-out ones are those whose prompt id hashes lowest, greedy ones (for the walk) first, so that a longer
    corpus keeps them.  Both temperatures are among them where both exist.  Raises ``ValueError`` if nothing
    is supervised.
    """
    everything = list(trajectories)
    usable = [t for t in everything if len(_cut(t, max_length).response_ids) >= 2]  # an anchor and one label
    dropped = len(everything) - len(usable)
    if dropped > len(usable):
        longest = max(len(t.prompt_ids) for t in everything)
        raise ValueError(
            f"no supervised tokens in {dropped} of {len(everything)} trajectories: they keep fewer than two response "
            f"tokens within train.max_length {max_length} (the longest prompt has {longest}); raise it, shorten the "
            "prompts (fewer shots), or generate longer responses"
        )
    if not usable:
        raise ValueError("there are no trajectories; generate some with python -m harness.train.trajectories")
    usable.sort(key=lambda t: hashlib.sha256(f"{t.prompt_id}#{t.turn}".encode()).digest())
    # A prompt answered twice must not stand on both sides, so whole prompts are held out.
    greedy_ids = list(dict.fromkeys(t.prompt_id for t in usable if t.temperature == 0))[:walk]
    others = [i for i in dict.fromkeys(t.prompt_id for t in usable) if i not in set(greedy_ids)]
    held_ids = set(greedy_ids + others[: heldout - len(greedy_ids)])
    held = [t for t in usable if t.prompt_id in held_ids]
    train = [t for t in usable if t.prompt_id not in held_ids]
    if not train:
        raise ValueError(
            f"all {len(usable)} usable trajectories are held out (train.heldout_prompts {heldout}); "
            "generate more, or hold out fewer"
        )
    chosen = set(greedy_ids)
    return Corpus(
        train=tuple(_cut(t, max_length) for t in train),
        heldout=tuple(_cut(t, max_length) for t in held),
        greedy=tuple(t for t in held if t.temperature == 0 and t.prompt_id in chosen),
        manifest=manifest,
        dropped=dropped,
    )


def _cut(trajectory: Trajectory, max_length: int) -> Trajectory:
    room = max(0, max_length - len(trajectory.prompt_ids))
    return replace(trajectory, response_ids=trajectory.response_ids[:room])


def collate(trajectories: Sequence[Trajectory], indices: Sequence[int]) -> Batch:
    """Pad the chosen trajectories to the longest of them."""
    chosen = [trajectories[i] for i in indices]
    lengths = [len(t) for t in chosen]
    ids = torch.zeros(len(chosen), max(lengths), dtype=torch.long)
    for row, trajectory in enumerate(chosen):
        ids[row, : lengths[row]] = torch.tensor(trajectory.ids)
    return Batch(tuple(indices), ids, torch.tensor(lengths), torch.tensor([len(t.prompt_ids) for t in chosen]))


class BatchOrder:
    """Which sequences step ``s`` trains on: ``order.at(s)``, the same however often it is asked."""

    def __init__(self, lengths: Sequence[int], batch_sequences: int, seed: int) -> None:
        self.lengths = tuple(lengths)
        self.batch = min(batch_sequences, len(lengths))
        self.seed = seed
        #: Batches an epoch; up to batch-1 sequences sit out, other ones each epoch.
        self.per_epoch = len(lengths) // self.batch
        self._epoch = lru_cache(maxsize=2)(self._make_epoch)

    def at(self, step: int) -> tuple[int, ...]:
        epoch, position = divmod(step, self.per_epoch)
        return self._epoch(epoch)[position]

    def worst(self) -> tuple[int, ...]:
        """The largest batch there could be: the longest sequences together."""
        longest = sorted(range(len(self.lengths)), key=lambda i: (-self.lengths[i], i))
        return tuple(longest[: self.batch])

    def _make_epoch(self, epoch: int) -> list[tuple[int, ...]]:
        generator = random.Random(f"batches/{self.seed}/{epoch}")
        order = list(range(len(self.lengths)))
        generator.shuffle(order)
        order = order[: self.per_epoch * self.batch]
        run = self.batch * BUCKET_BATCHES
        batches = []
        for start in range(0, len(order), run):
            bucket = sorted(order[start : start + run], key=lambda i: self.lengths[i])
            batches += [tuple(bucket[i : i + self.batch]) for i in range(0, len(bucket), self.batch)]
        generator.shuffle(batches)
        return batches
