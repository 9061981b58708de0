"""What flows from a rejected suffix into the next block: how the block's input embeddings are made.

A relay knows the mask embedding and, where one exists, the state of the last verification.  It knows no cache
and no target; which verify row belongs to which slot is decided by `BlockLayout.relay_rows` alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from methods.config import DrafterConfig
from methods.kernels import relay_film, relay_gather

Embed = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class RelayState:
    """What the last verification left for the next block.  Leading axes: rows in decoding, blocks in training.

    states: [..., block, H] the state relayed to each slot, zero where there is none.
    live: [..., block] bool, which slots have a state.
    correction: [...] int64, the token the target put in place of the first rejected proposal: the new anchor.
    rejected: [...] int64, the first rejected proposal (the last one if all were accepted: nothing is live then).
    """

    states: Tensor
    live: Tensor
    correction: Tensor
    rejected: Tensor


@dataclass(frozen=True)
class Verified:
    """One verification of M blocks, as a relay sees it.

    projected: [M, K+1, H] fused taps of all verify rows, not normed; rows that are not live may hold anything finite.
    hidden: [M, block, H] what the drafter itself made of the verified block.
    accepted, next_token: [M]; proposals: [M, K].
    """

    projected: Tensor
    hidden: Tensor | None
    accepted: Tensor
    next_token: Tensor
    proposals: Tensor


class Relay(nn.Module):
    """Base of all relays.  `uses_states` False spares the decoder from keeping states at all, `uses_taps` False the
    trainer from running the target on rejected rows, `uses_hidden` False both from keeping hidden states."""

    uses_states = True
    uses_taps = True
    uses_hidden = False

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        self.layout, self.block_size = config.layout, config.block_size

    def state(self, verified: Verified, norm: nn.RMSNorm) -> RelayState:
        """What a verification leaves for the next block, in decoding and in training alike; norm: the fusion's."""
        raise NotImplementedError

    def block_inputs(self, mask: Tensor, batch: torch.Size, state: RelayState | None, embed: Embed) -> Tensor:
        """Input embeddings [*batch, block, H] of the slots, given the embedding of the mask token `mask` [H].

        Slots without a live state must stay plain masks; the drafter puts the anchor's embedding into slot 0.
        embed: the target's token embedding, for relays that look at the boundary tokens.
        """
        raise NotImplementedError


class NoRelay(Relay):
    """Every slot after the anchor is a plain mask (DFlash)."""

    uses_states = False
    uses_taps = False

    def block_inputs(self, mask: Tensor, batch: torch.Size, state: RelayState | None, embed: Embed) -> Tensor:
        return mask.expand(*batch, self.block_size, -1)


class VerifierRelay(Relay):
    """The target's states on the rejected suffix, shifted onto the masks that predict what they predict (DFlow 4.2).

    ``h = RMSNorm(W_fc taps)`` with the projection and norm of the context features; ``[beta; gamma] = MLP([E(b);
    E(y); h])`` (equation 4) with the correction ``b`` and the first rejected proposal ``y``, the same for the whole
    block; ``x = E_mask + beta * LN(h) + gamma`` (equation 5).  The MLP's last layer starts at zero, so a fresh DFlow
    is DFlash, bit for bit.
    """

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__(config)
        options, hidden = config.relay_options, config.hidden_size
        self.options, self.eps = options, config.rms_norm_eps
        self.uses_taps = options.states == "verifier"
        self.uses_hidden = not self.uses_taps
        self.mlp = nn.Sequential(
            nn.Linear(3 * hidden, options.mlp_width), nn.SiLU(), nn.Linear(options.mlp_width, 2 * hidden)
        )
        self.norm = nn.LayerNorm(hidden, eps=self.eps)
        nn.init.normal_(self.mlp[0].weight, std=(3 * hidden) ** -0.5)
        for vector in (self.mlp[0].bias, self.mlp[2].bias, self.mlp[2].weight):
            nn.init.zeros_(vector)

    def state(self, verified: Verified, norm: nn.RMSNorm) -> RelayState:
        options, layout = self.options, self.layout
        rows = layout.relay_rows(
            verified.accepted,
            first_rejected=options.first_rejected,
            last_row=options.last_row,
            anchor_slot=options.anchor_slot,
        )
        first = verified.accepted.clamp(max=layout.num_proposals - 1)[:, None]
        rejected = verified.proposals.gather(1, first)[:, 0]
        if options.shuffle:
            rows = _shuffled(rows, verified.next_token, rejected)
        if self.uses_hidden:  # the slot that predicted what row r predicts stands r places after the first one
            slots = torch.where((rows >= 0) & (rows < layout.num_proposals), rows + layout.first_slot, -1)
            live = slots >= 0
            states = _gather(verified.hidden.detach(), slots)
        else:
            live = rows >= 0
            source = verified.projected.detach() if options.detach == "state" else verified.projected
            weight = norm.weight.detach() if options.detach == "state" else norm.weight
            offset = torch.arange(len(rows), device=rows.device)[:, None] * source.shape[1]
            index = torch.where(live, rows + offset, -1)
            states = relay_gather(source.flatten(0, 1), index, weight, norm.eps)
        return RelayState(states, live, verified.next_token, rejected)

    def block_inputs(self, mask: Tensor, batch: torch.Size, state: RelayState | None, embed: Embed) -> Tensor:
        if state is None:
            return mask.expand(*batch, self.block_size, -1)
        first, last = self.mlp[0], self.mlp[2]
        boundary = torch.cat((embed(state.correction), embed(state.rejected)), dim=-1)  # [..., 2H]
        if self.options.normalise_boundary:
            boundary = F.rms_norm(boundary.unflatten(-1, (2, -1)), (len(mask),), eps=self.eps).flatten(-2)
        if not self.options.boundary:
            boundary = torch.zeros_like(boundary)
        split = boundary.shape[-1]
        # The boundary's half of the product is the same for every slot of a block, so it is made once.
        shared = F.linear(boundary, first.weight[:, :split], first.bias)[..., None, :]
        gates = last(F.silu(shared + F.linear(state.states, first.weight[:, split:])))
        scale, shift = gates.chunk(2, dim=-1)
        return relay_film(
            state.states,
            state.live,
            self.norm.weight,
            self.norm.bias,
            scale,
            shift,
            mask,
            self.eps,
            layer_norm=self.options.norm == "layer",
            offset=1.0 if self.options.gate == "one_plus" else 0.0,
        )


def _gather(source: Tensor, index: Tensor) -> Tensor:  # [M, n, H], [M, block] -> [M, block, H]
    """Rows of `source`, zeros where the index is negative; an unused row may hold anything."""
    rows = source.gather(1, index.clamp(min=0)[..., None].expand(-1, -1, source.shape[-1]))
    return torch.where(index[..., None] >= 0, rows, source.new_zeros(()))


def _shuffled(rows: Tensor, correction: Tensor, rejected: Tensor) -> Tensor:  # [M, block], [M], [M] -> [M, block]
    """Every live slot with the row of another one; a slot that is live alone stays plain.

    The live slots form a ring, in an order that their number and the boundary tokens fix: the same whenever a
    verification repeats, in training and decoding, and unlike from block to block.
    """
    live = rows >= 0
    count = live.sum(1, keepdim=True)
    salt = correction[:, None] * 104729 + rejected[:, None] * 1299709 + count
    key = (rows * 7919 + salt) % 15485863
    key = (key * key) % 15485863
    ring = torch.where(live, key, key.new_full((), 2**62)).argsort(dim=1, stable=True)  # dead slots behind all others
    place = torch.arange(rows.shape[1], device=rows.device)
    following = ring.gather(1, (place + 1) % count.clamp(min=1))
    taken = torch.where((place < count) & (count > 1), rows.gather(1, following), -1)
    return torch.full_like(rows, -1).scatter(1, ring, taken)


RELAYS: dict[str, type[Relay]] = {"none": NoRelay, "verifier": VerifierRelay}
