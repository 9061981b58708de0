"""What flows from a rejected suffix into the next block: how the block's input embeddings are made.

A relay knows the mask embedding and, where one exists, the state of the last verification.  It knows no cache
and no target; which verify row belongs to which slot is decided by `BlockLayout.relay_rows` alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from methods.config import DrafterConfig
from methods.contract import BlockLayout

Embed = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class RelayState:
    """What the last verification left for the next block.  Leading axes: rows in decoding, blocks in training.

    states: [..., block, H] fused features of the verify row relayed to each slot, zero where there is none.
    live: [..., block] bool, which slots have a state.
    correction: [...] int64, the token the target put in place of the first rejected proposal: the new anchor.
    rejected: [...] int64, the first rejected proposal (the last one if all were accepted: nothing is live then).
    """

    states: Tensor
    live: Tensor
    correction: Tensor
    rejected: Tensor


def relay_state(
    layout: BlockLayout, features: Tensor, accepted: Tensor, next_token: Tensor, proposals: Tensor
) -> RelayState:
    """Turn one verification into the state of the next block, in decoding and in training alike.

    features: [B, K+1, H] fused features of all verify rows; accepted, next_token: [B]; proposals: [B, K].
    """
    rows = layout.relay_rows(accepted)  # [B, block]
    live = rows >= 0
    index = rows.clamp(min=0)[..., None].expand(-1, -1, features.shape[-1])
    # where, not a product: an unused row may hold anything, and zero times NaN is NaN.
    states = torch.where(live[..., None], features.gather(1, index), features.new_zeros(()))
    first = accepted.clamp(max=layout.num_proposals - 1)[:, None]
    return RelayState(states, live, next_token, proposals.gather(1, first)[:, 0])


class Relay(nn.Module):
    """Base of all relays.  `uses_states` False spares the decoder from keeping states at all."""

    uses_states = True

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        self.block_size = config.block_size

    def block_inputs(self, mask: Tensor, batch: torch.Size, state: RelayState | None, embed: Embed) -> Tensor:
        """Input embeddings [*batch, block, H] of the slots, given the embedding of the mask token `mask` [H].

        Slots without a live state must stay plain masks; the drafter puts the anchor's embedding into slot 0.
        embed: the target's token embedding, for relays that look at the boundary tokens.
        """
        raise NotImplementedError


class NoRelay(Relay):
    """Every slot after the anchor is a plain mask (DFlash)."""

    uses_states = False

    def block_inputs(self, mask: Tensor, batch: torch.Size, state: RelayState | None, embed: Embed) -> Tensor:
        return mask.expand(*batch, self.block_size, -1)


RELAYS: dict[str, type[Relay]] = {"none": NoRelay}
