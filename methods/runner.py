"""A drafter at work in the decoder: one context cache for all rows, each row at its own length.

It knows which cells of the cache belong to which row.  It does not know the target, the accept rule, or when to stop.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from methods.contract import Proposal, Sampling, Verdict
from methods.drafter import BlockDrafter


class BlockDraftRunner:
    """Implements `contract.Drafter` for any `BlockDrafter`.

    rows: how many sequences at once.  capacity: context positions a row can hold (prompt plus response).
    `rows` arguments are int64 tensors [B] and `Verdict.accepted` may live on the CPU: then no call synchronises a GPU
    but the one that reads whether the draft logits were finite.
    """

    def __init__(self, drafter: BlockDrafter, rows: int, capacity: int) -> None:
        self.drafter = drafter
        self.num_proposals = drafter.layout.num_proposals
        self.taps = drafter.config.taps

    def start(self, rows: Tensor, prompt_taps: Sequence[Tensor], anchors: Tensor) -> None:
        raise NotImplementedError

    def propose(self, rows: Tensor, sampling: Sampling | None = None) -> Proposal:
        raise NotImplementedError

    def draft_logits(self, rows: Tensor) -> Tensor:
        """Logits [B, K, V_d] from which greedy proposals would be chosen now; changes nothing (for tests, analyses)."""
        raise NotImplementedError

    def observe(self, rows: Tensor, verdict: Verdict) -> None:
        raise NotImplementedError

    def release(self, rows: Tensor) -> None:
        raise NotImplementedError

    def poison(self) -> None:
        """Fill every cell past each row's length with NaN: nothing may ever read them (for tests)."""
        raise NotImplementedError
