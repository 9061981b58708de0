"""The pocket world's items: which suites exist, and which combinations of values belong to which split.

Knows splits and ids; the templates are in `suites.py`, the grader in `grade.py`. A combination of values
belongs to one split by the hash of its canonical tuple, so whatever the seed, no item of one split
repeats the values of another, in any order of mention and with any filler words.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from random import Random

from harness.pocket.suites import ENTRIES, MAKERS, Draft

SUITES: tuple[str, ...] = tuple(MAKERS)
SCORED: tuple[str, ...] = SUITES[:4]
SPLITS = ("train", "eval", "heldout")


@dataclass(frozen=True)
class Item:
    """One prompt with its gold replies. `turns[i]` is answered by `replies[i]`; `reference` goes to
    `grade.grade`."""

    id: str
    suite: str
    turns: tuple[str, ...]
    replies: tuple[str, ...]
    reference: dict


def split_of(key: tuple) -> str:
    """The split that owns a canonical tuple of values: eval and heldout a sixteenth each, the rest is for
    training."""
    bucket = hashlib.sha256(repr(key).encode()).digest()[0] % 16
    return {0: "eval", 1: "heldout"}.get(bucket, "train")


def drafts(suite: str, split: str, seed: int = 0, entries: tuple[int, int] | None = None) -> Iterator[Draft]:
    """Endless distinct drafts of a suite and split. `entries`: least and most entries of a reply (the
    suite's own if None).

    Raises KeyError for an unknown suite and ValueError for an unknown split.
    """
    if suite not in MAKERS:
        raise KeyError(f"unknown suite {suite!r}; the pocket world has {', '.join(SUITES)}")
    if split not in SPLITS:
        raise ValueError(f"unknown split {split!r}; valid: {', '.join(SPLITS)}")
    low, high = entries or ENTRIES[suite]
    rng = Random(f"{suite}/{split}/{seed}")
    seen: set[bytes] = set()
    while True:
        draft = MAKERS[suite](rng, rng.randint(low, high))
        digest = hashlib.sha256(repr(draft.key).encode()).digest()[:8]
        if split_of(draft.key) == split and digest not in seen:
            seen.add(digest)
            yield draft


def items(suite: str, split: str, count: int, seed: int = 0) -> list[Item]:
    """The first `count` items of a suite, split and seed: deterministic, all with different values."""
    stream = drafts(suite, split, seed)
    return [
        Item(f"{suite}/{split}/{index:05d}", suite, d.turns, d.replies, d.reference)
        for index, d in enumerate(islice(stream, count))
    ]
