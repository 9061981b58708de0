"""Which blocks a step trains on, round by round.

A step is a chain of rounds over one batch that share the context features.  Round 0 stands on random anchors
and starts from plain masks; a method with a relay goes on from there with the blocks its own proposals lead
to.  The loop asks `first`, then `following` until that is None, and never looks at what a relay holds.
Rounds are detached from each
other: nothing given to `following` carries a gradient.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from harness.train.anchors import Blocks, blocks_at, draw
from harness.train.corpus import Batch
from methods.relays import RelayState


@dataclass(frozen=True)
class Round:
    """The blocks of one round and what the round before left for them (None: plain masks)."""

    blocks: Blocks
    relay: RelayState | None = None


class MaskRounds:
    """Round 0 only: random anchors, plain masks (DFlash)."""

    def __init__(self, seed: int, anchors: int) -> None:
        self.seed, self.anchors = seed, anchors

    def first(self, step: int, batch: Batch, ids: Tensor) -> Round:  # ids: [B, S] on the drafter's device
        anchors, keep = draw(self.seed, step, batch.lengths, batch.prompts, self.anchors)
        return Round(blocks_at(ids, anchors.to(ids.device), keep.to(ids.device)))

    def following(self, batch: Batch, ids: Tensor, context: Tensor, before: Round, hidden: Tensor) -> Round | None:
        """The round after `before`, given its hidden states [B, N, block, H] (detached); None ends the step."""
        return None
