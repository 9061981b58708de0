"""The contract between a drafter and the decoder that drives it.  Read this file first.

It knows shapes and positions, and nothing else: no model, no file, no benchmark, no sampling rule.  The trainer, the
decoder and every metric read the meaning of a slot from `BlockLayout`, so there is no second place in which a label,
a proposal or a relayed state could be shifted by one.

Shapes: ``B`` rows in the batch, ``K`` proposals a round, ``F`` width of the concatenated taps, ``V`` vocabulary.
Positions: ``p`` is the anchor, the last committed token, whose target features do not exist yet.  Proposals stand at
``p+1 .. p+K``.  Row 0 of a verification is the anchor, row ``j`` the proposal at ``p+j``; row ``j`` therefore predicts
the token at ``p+j+1``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor

Alignment = Literal["same", "next"]

#: Fills a proposal buffer before any slot is written; one that survives means a slot was never drafted.
SENTINEL = -1


@dataclass(frozen=True)
class BlockLayout:
    """What each slot of a draft block predicts, who proposes, who is supervised, and where a relayed state goes.

    ``same`` (DFlash): slot ``j >= 1`` predicts the token at ``p+j``; slot 0 is the anchor and predicts nothing.
    ``next`` (released Domino and DSpark checkpoints): slot ``j`` predicts ``p+j+1``, the anchor slot included.

    Raises ``ValueError`` for a block that cannot hold its proposals.
    """

    block_size: int
    alignment: Alignment
    num_proposals: int

    def __post_init__(self) -> None:
        if self.alignment not in ("same", "next"):
            raise ValueError(f"alignment is {self.alignment!r}; use 'same' or 'next'")
        if self.block_size < 2:
            raise ValueError(f"block_size is {self.block_size}; a block needs the anchor and at least one more slot")
        most = self.block_size - 1 if self.alignment == "same" else self.block_size
        if not 1 <= self.num_proposals <= most:
            raise ValueError(
                f"num_proposals is {self.num_proposals}; a block of {self.block_size} slots with alignment "
                f"{self.alignment!r} proposes 1 to {most} tokens"
            )

    @property
    def first_slot(self) -> int:
        """The first slot that predicts anything."""
        return 1 if self.alignment == "same" else 0

    @property
    def proposing_slots(self) -> range:
        """Slots whose predictions are the K proposals, in order of position."""
        return range(self.first_slot, self.first_slot + self.num_proposals)

    @property
    def supervised_slots(self) -> range:
        """Slots that carry a loss; may outnumber `proposing_slots` (Domino supervises slot 15, never proposes it)."""
        return range(self.first_slot, self.block_size)

    def offset(self, slot: int) -> int:
        """Distance from the anchor of the token that `slot` predicts, at least 1."""
        if slot not in self.supervised_slots:
            raise ValueError(f"slot {slot} of {self} predicts nothing; slots {self.supervised_slots} do")
        return slot + 1 - self.first_slot

    def label_offsets(self, device: torch.device | None = None) -> Tensor:  # [supervised]
        """Offsets from the anchor of the labels of `supervised_slots`, int64."""
        return torch.tensor([self.offset(slot) for slot in self.supervised_slots], device=device)

    def visible(self, position: Tensor, anchor: Tensor) -> Tensor:
        """Whether features at `position` may be seen by a block at `anchor`: strictly before it (broadcasts)."""
        return position < anchor

    def relay_rows(
        self, accepted: Tensor, *, first_rejected: bool = True, last_row: bool = True, anchor_slot: bool = False
    ) -> Tensor:  # [...] -> [..., block_size]
        """The verify row whose state is relayed to each slot of the next block, -1 where the slot stays plain.

        A state goes to the slot that predicts the token it predicts.  With ``a`` accepted the next anchor is
        ``p+a+1`` and rows ``a+1..K`` are live.  ``same``: row ``a+m`` to slot ``m``, ``m = 1..K-a``.  ``next``: row
        ``a+1+j`` to slot ``j``, ``j = 1..K-a-1``; the anchor slot stays plain.  (DFlow section 4.2, shift by one.)

        first_rejected False leaves out row ``a+1``, last_row False row ``K``; anchor_slot True relays row ``a+1`` to
        slot 0 where the anchor slot predicts (``next``).
        """
        slots = torch.arange(self.block_size, device=accepted.device)
        rows = accepted[..., None] + slots + (1 - self.first_slot)
        predicts = slots >= (self.first_slot if anchor_slot else 1)
        live = predicts & (rows <= self.num_proposals - (not last_row))
        if not first_rejected:
            live &= rows > accepted[..., None] + 1
        return torch.where(live, rows, torch.full_like(rows, -1))


@dataclass(frozen=True)
class Sampling:
    """How proposals are drawn when they are sampled: ``softmax(logits / temperature)`` inverted at `uniforms`."""

    temperature: float
    uniforms: Tensor  # [B, K] in [0, 1), from the decoder's counter-based draft stream


@dataclass
class Proposal:
    """What a drafter offers for one round.

    tokens: [B, K] int64, every cell written (a surviving `SENTINEL` is an error).
    q: [B, K, V] the exact distribution each token was sampled from; None if the tokens are an argmax (one-hot q).
    parents: reserved for trees; None is a chain.
    """

    tokens: Tensor
    q: Tensor | None = None
    parents: Tensor | None = None


@dataclass
class Verdict:
    """All that one verification learned, rejected rows included.  What a drafter uses of it is the drafter's affair.

    accepted: [B] int64 on the CPU, proposals accepted, before stops and budgets (a row that stopped is never observed).
    next_token: [B] int64, the target's token after the accepted prefix: the next anchor.
    proposals: [B, K] int64.
    taps: [B, K+1, F], concatenated tapped hidden states of the anchor and of every proposal.
    """

    accepted: Tensor
    next_token: Tensor
    proposals: Tensor
    taps: Tensor


class Drafter(Protocol):
    """A drafter as the decoder sees it.  Rows are slots of the batch; each advances at its own pace.

    `rows` stays on the CPU, where its numbers are needed: the decoder reads every result of a round in one transfer.
    """

    #: K, the number of proposals every call of `propose` returns.
    num_proposals: int
    #: Target layers whose outputs are tapped, in the order of concatenation.
    taps: tuple[int, ...]

    def start(self, rows: Tensor, prompt_taps: Sequence[Tensor], anchors: Tensor) -> None:
        """Begin new sequences in `rows` [B]: taps of each prompt ([T_i, F] each, positions 0..T_i-1) and the first
        committed token [B], which becomes the anchor at position T_i.  Forgets whatever the row held before."""

    def propose(self, rows: Tensor, sampling: Sampling | None = None) -> Proposal:
        """Draft K tokens after each row's anchor; greedy without `sampling`."""

    def observe(self, rows: Tensor, verdict: Verdict) -> None:
        """Take in a verification.  Afterwards the row's cache holds positions 0..anchor-1, exactly: the features of
        verify rows 0..accepted are appended, the new anchor has none yet."""

    def release(self, rows: Tensor) -> None:
        """Free rows whose sequence ended."""


@dataclass(frozen=True)
class TargetBinding:
    """What a drafter borrows from its frozen target, through the target's own modules.

    embed: token ids [...] -> embeddings [..., H] exactly as the target's first layer receives them (scaling included).
    head: normalised hidden states [..., H] -> logits [..., V], soft-capping included; with ids [N] given as second
        argument only those vocabulary rows, [..., N].
    """

    embed: Callable[[Tensor], Tensor]
    head: Callable[..., Tensor]
    hidden_size: int
    vocab_size: int
