"""Which blocks a step trains on, round by round.

A step is a chain of rounds over one batch that share the context features.  Round 0 stands on random anchors
and starts from plain masks; multi-round training goes on from there with the blocks the drafter's own proposals lead
to (DFlow section 4.3).  The loop asks `first`, then `following` until that is None, and never looks at what a relay
holds.  Rounds are detached from each other: nothing given to `following` carries a gradient.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from harness.target import Target
from harness.train.anchors import Blocks, block_tokens, blocks_at, draw, some_of
from harness.train.corpus import Batch
from harness.train.verify import Past, relay_after
from methods.drafter import BlockDrafter
from methods.relays import RelayState


@dataclass(frozen=True)
class Round:
    """The blocks of one round and what the round before left for them (None: plain masks); index: 0 for the first."""

    blocks: Blocks
    relay: RelayState | None = None
    index: int = 0


@dataclass(frozen=True)
class Transition:
    """What lies between two rounds, for the blocks whose chain may go on.

    blocks, hidden [B, N, block, H]: of the round before.  proposals [B, N, K] and how many of them are the
    trajectory's, accepted [B, N].  following: the next blocks, ``keep`` False where a chain ends.
    """

    blocks: Blocks
    hidden: Tensor
    proposals: Tensor
    accepted: Tensor
    following: Blocks


class MaskRounds:
    """Round 0 only: random anchors, plain masks (DFlash)."""

    #: Rounds after the first.
    count = 0
    #: Whether `following` wants the target's keys of the batch.
    uses_past = False

    def __init__(self, seed: int, anchors: int) -> None:
        self.seed, self.anchors = seed, anchors

    def first(self, step: int, batch: Batch, ids: Tensor) -> Round:  # ids: [B, S] on the drafter's device
        anchors, keep = draw(self.seed, step, batch.lengths, batch.prompts, self.anchors)
        return Round(blocks_at(ids, anchors.to(ids.device), keep.to(ids.device)))

    def following(
        self, step: int, ids: Tensor, lengths: Tensor, before: Round, hidden: Tensor, past: Past | None
    ) -> Round | None:
        """The round after `before`, given its hidden states [B, N, block, H] (detached); None ends the step.

        ids: [B, S]; lengths: [B]; past: the target's keys and values, if `uses_past`.
        """
        return None


class RejectedRounds(MaskRounds):
    """`count` reject-conditioned rounds behind round 0.

    Proposals are the drafter's own: `online` by its inference procedure, `teacher` by its teacher-forced argmax (a
    control).  The first proposal unlike the trajectory is where the next block's anchor stands, the trajectory's token
    there its correction.  A chain ends where no label is left.  After full acceptance it goes on from plain masks, as
    decoding does, or ends (`after_full`).  A drafter whose relay uses no states goes on from plain masks always.
    """

    def __init__(
        self,
        seed: int,
        anchors: int,
        drafter: BlockDrafter,
        target: Target,
        *,
        count: int,
        chains: int | None = None,
        rollout: Literal["online", "teacher"] = "online",
        after_full: Literal["continue", "drop"] = "continue",
        chunk: int = 1024,
    ) -> None:
        """chains: blocks a sequence that go on after round 0, drawn anew each step; None for all.  chunk: proposals
        whose logits exist at one time."""
        super().__init__(seed, anchors)
        self.drafter, self.target = drafter, target
        self.count, self.chains, self.rollout, self.after_full = count, chains, rollout, after_full
        self.blocks_at_once = max(1, chunk // drafter.layout.num_proposals)
        self.uses_past = count > 0 and drafter.relay.uses_taps

    def following(
        self, step: int, ids: Tensor, lengths: Tensor, before: Round, hidden: Tensor, past: Past | None
    ) -> Round | None:
        moved = self.transition(step, ids, lengths, before, hidden)
        if moved is None:
            return None
        relay = None
        if self.drafter.relay.uses_states:
            relay = relay_after(
                self.drafter,
                self.target,
                past,
                moved.blocks.anchors,
                moved.following.keep,
                moved.hidden,
                moved.proposals,
                moved.accepted,
                moved.following.tokens,
            )
        return Round(moved.following, relay, before.index + 1)

    def transition(self, step: int, ids: Tensor, lengths: Tensor, before: Round, hidden: Tensor) -> Transition | None:
        """Where the chains go on, by exact match with the trajectory; None if none does."""
        if before.index >= self.count:
            return None
        blocks = before.blocks
        if before.index == 0 and self.chains is not None and self.chains < self.anchors:
            chosen = some_of(self.seed, step, blocks.keep, self.chains)  # [B, chains]
            blocks = Blocks(*(value.gather(1, chosen) for value in vars(blocks).values()))
            hidden = hidden.gather(1, chosen[..., None, None].expand(-1, -1, *hidden.shape[2:]))
        proposals = self._proposals(ids, blocks, hidden)
        accepted = accepted_run(ids, lengths, blocks, proposals)
        anchors = blocks.anchors + accepted + 1
        keep = blocks.keep & (anchors < lengths[:, None] - 1)
        if self.after_full == "drop":
            keep = keep & (accepted < proposals.shape[-1])
        if not keep.any():
            return None
        following = blocks_at(ids, anchors.clamp(max=ids.shape[1] - 1), keep)
        return Transition(blocks, hidden, proposals, accepted, following)

    @torch.no_grad()
    def _proposals(self, ids: Tensor, blocks: Blocks, hidden: Tensor) -> Tensor:  # -> [B, N, K]
        """What the drafter proposes at every block; blocks that are not kept get something harmless."""
        flat = hidden.flatten(0, 1)
        tokens = block_tokens(ids, blocks, self.drafter.layout.block_size).flatten(0, 1)
        pieces = []
        for part, text in zip(flat.split(self.blocks_at_once), tokens.split(self.blocks_at_once), strict=True):
            if self.rollout == "online":
                pieces.append(self.drafter.draft(part, text[:, 0]).tokens)
            else:
                pieces.append(self.drafter.forced(part, text))
        return torch.cat(pieces).unflatten(0, hidden.shape[:2])


def accepted_run(ids: Tensor, lengths: Tensor, blocks: Blocks, proposals: Tensor) -> Tensor:  # -> [B, N]
    """How many leading proposals [B, N, K] are the trajectory's own tokens; none is past its end."""
    positions = blocks.anchors[..., None] + 1 + torch.arange(proposals.shape[-1], device=ids.device)
    true = ids.gather(1, positions.clamp(max=ids.shape[1] - 1).flatten(1)).view_as(positions)
    right = (proposals == true) & (positions < lengths[:, None, None])
    return right.long().cumprod(-1).sum(-1)
