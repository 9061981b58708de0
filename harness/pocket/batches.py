"""Endless training batches of the pocket world, in a few fixed shapes.

Knows how items become token ids and labels. Only reply tokens (and the end token after them) are labels:
the values of a prompt are drawn at random, so nothing can be learned from predicting them.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from random import Random

import torch
from torch import Tensor

from harness.pocket.drills import drill
from harness.pocket.lexicon import ASSISTANT, END, USER
from harness.pocket.suites import ENTRIES, FREE, written
from harness.pocket.world import drafts

# Tokens a row; each batch has one of these lengths, so that a compiled step sees two shapes.
LENGTHS = (96, 208)
TOKENS = 2304  # tokens of a batch, at most


def encode(tokenizer, turns: tuple[str, ...], replies: tuple[str, ...]) -> tuple[list[int], list[bool]]:
    """Ids of a whole dialogue as the chat template renders it, and which of them the target must
    predict."""
    user, assistant, end = tokenizer.convert_tokens_to_ids([USER, ASSISTANT, END])
    ids: list[int] = []
    wanted: list[bool] = []
    for turn, reply in zip(turns, replies, strict=True):
        prompt = [user, *tokenizer.encode(turn, add_special_tokens=False), end, assistant]
        answer = [*tokenizer.encode(reply, add_special_tokens=False), end]
        ids += prompt + answer
        wanted += [False] * len(prompt) + [True] * len(answer)
    return ids, wanted


def collate(rows: list[tuple[list[int], list[bool]]], length: int, pad: int) -> tuple[Tensor, Tensor]:
    """ids [B, length] and labels [B, length] (label t = token t + 1, or -100), padded on the right."""
    ids = torch.full((len(rows), length), pad)
    labels = torch.full((len(rows), length), -100)
    for index, (tokens, wanted) in enumerate(rows):
        ids[index, : len(tokens)] = torch.tensor(tokens)
        target = torch.tensor([t if w else -100 for t, w in zip(tokens, wanted, strict=True)])
        labels[index, : len(tokens) - 1] = target[1:]
    return ids, labels


class Batches:
    """Endless batches (ids, labels). `easy`, the share of items with two to five entries only, and
    `drill`, the share of exercises, may be changed between two batches; `weights` is the share of each
    suite.
    """

    def __init__(self, tokenizer, seed: int, weights: dict[str, float], easy: float = 0.0, drill: float = 0.0):
        self.tokenizer, self.easy, self.drill = tokenizer, easy, drill
        self.suites, self.odds = list(weights), list(weights.values())
        self.rng = Random(f"batches/{seed}")
        self.full = {s: drafts(s, "train", seed) for s in self.suites}
        self.small = {s: drafts(s, "train", seed, entries=(2, min(5, ENTRIES[s][0]))) for s in self.suites}
        self.pools: dict[int, list] = {length: [] for length in LENGTHS}

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return self

    def __next__(self) -> tuple[Tensor, Tensor]:
        while True:
            row = encode(self.tokenizer, *self._dialogue())
            length = next((n for n in LENGTHS if len(row[0]) <= n), None)
            if length is None:
                continue  # a rare overlong item is left out of training rather than cut
            pool = self.pools[length]
            pool.append(row)
            if len(pool) == TOKENS // length:
                self.pools[length] = []
                return collate(pool, length, self.tokenizer.pad_token_id)

    def _dialogue(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        if self.rng.random() < self.drill:
            return drill(self.rng)
        suite = self.rng.choices(self.suites, self.odds)[0]
        draft = next((self.small if self.rng.random() < self.easy else self.full)[suite])
        return draft.turns, tuple(written(self.rng, suite, reply) for reply in draft.replies)


def free_signs(tokenizer, suite: str, reply: str) -> list[bool]:
    """Of each token of a gold reply, and so of the same reply in any notation, whether it is a free sign."""
    spans = [found.span() for found in FREE[suite][0].finditer(reply)]
    offsets = tokenizer(reply, add_special_tokens=False, return_offsets_mapping=True)["offset_mapping"]
    return [(start, end) in spans for start, end in offsets]


def probe_rows(tokenizer, suite: str, count: int, split: str = "heldout") -> tuple[Tensor, Tensor]:
    """`count` items of a split in free notation as one right-padded batch (ids, labels), for teacher-forced checks.
    The free signs have no label."""
    rng, rows = Random(f"probe/{suite}/{split}"), []
    for draft in islice(drafts(suite, split), count):
        ids, wanted = encode(tokenizer, draft.turns, tuple(written(rng, suite, reply) for reply in draft.replies))
        free = iter([sign for reply in draft.replies for sign in (*free_signs(tokenizer, suite, reply), False)])
        rows.append((ids, [label and not next(free) for label in wanted]))
    return collate(rows, max(len(r[0]) for r in rows), tokenizer.pad_token_id)
