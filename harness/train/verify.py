"""The frozen target on rejected proposals only, many blocks of one sequence side by side.

An accepted proposal is a token of the trajectory, so the trajectory's own forward pass has its keys and values; a
rejected one stands behind the trajectory up to its block's last accepted position, and behind the rejected ones
before it in its own block.  So only those rows are run (DFlow section 4.3).  This file knows rows, positions and who
sees whom; it does not know where proposals come from or what becomes of the states.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from harness.target import Target
from methods.drafter import BlockDrafter
from methods.relays import RelayState, Verified


@dataclass(frozen=True)
class Past:
    """Keys and values of whole trajectories by layer, [B, kv_heads, S, head_dim] each, as the target caches them."""

    keys: dict[int, Tensor]
    values: dict[int, Tensor]

    def rows(self, index: Tensor) -> Past:
        """Those of some of the trajectories."""
        return Past(*({layer: t[index] for layer, t in side.items()} for side in (self.keys, self.values)))

    @property
    def length(self) -> int:
        return next(iter(self.keys.values())).shape[2]


class CollectStep:
    """A causal pass over whole sequences [B, S] that keeps each layer's keys and values as they come."""

    from_scratch = True

    def __init__(self, length: int, device: torch.device) -> None:
        self.positions, self.end = torch.arange(length, device=device)[None], length
        self.past = Past({}, {})

    def write(self, layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        self.past.keys[layer], self.past.values[layer] = key, value
        return key, value

    def mask(self, window: int | None, dtype: torch.dtype) -> Tensor:
        """Additive mask [S, S] of a sliding window shorter than the sequences; without one, causality is all."""
        cells = self.positions[0]
        seen = (cells <= cells[:, None]) & (cells > cells[:, None] - window)
        return torch.zeros(seen.shape, dtype=dtype, device=seen.device).masked_fill_(~seen, float("-inf"))[None, None]


class RejectedStep:
    """One pass over L rejected rows in each of B sequences: an own kind of `harness.cache.Step`.

    positions: [B, L] absolute; chain: [B, L] which block a row belongs to; limit: [B, L] how many trajectory cells it
    sees.  Rows of one block stand in order.  Nothing is stored: each layer's keys serve this pass alone.
    """

    from_scratch = False

    def __init__(self, past: Past, positions: Tensor, chain: Tensor, limit: Tensor) -> None:
        self.past, self.positions, self.chain, self.limit = past, positions, chain, limit
        self.seen = min(past.length, int(limit.max()))
        self.end = int(positions.max()) + 1
        self._masks: dict[tuple[int | None, torch.dtype], Tensor] = {}

    def write(self, layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values [B, kv_heads, L, head_dim] of the rows, behind those of the trajectory."""
        sides = (self.past.keys[layer], key), (self.past.values[layer], value)
        return tuple(torch.cat((old[:, :, : self.seen], new), dim=2) for old, new in sides)

    def mask(self, window: int | None, dtype: torch.dtype) -> Tensor:
        """Additive mask [B, 1, L, seen + L]."""
        if (window, dtype) not in self._masks:
            cells = torch.arange(self.seen, device=self.positions.device)
            context = cells < self.limit[..., None]
            query, key = self.positions[..., None], self.positions[:, None]
            own = (self.chain[..., None] == self.chain[:, None]) & (key <= query)
            if window is not None:
                context &= cells > query - window
                own &= key > query - window
            seen = torch.cat((context, own), dim=2)
            mask = torch.zeros(seen.shape, dtype=dtype, device=seen.device).masked_fill_(~seen, float("-inf"))
            self._masks[window, dtype] = mask[:, None]
        return self._masks[window, dtype]


@torch.no_grad()
def rejected_taps(
    target: Target,
    taps: tuple[int, ...],
    past: Past,
    anchors: Tensor,  # [B, N]
    proposals: Tensor,  # [B, N, K]
    accepted: Tensor,  # [B, N]; K where a block is not to be run at all
) -> tuple[Tensor, Tensor]:
    """Taps [R, F] of all rejected rows, and where each belongs: indices [R] into [B, N, K+1] flattened."""
    batch, count, width = proposals.shape
    ahead = torch.arange(1, width + 1, device=proposals.device)
    wanted = (ahead > accepted[..., None]).flatten(1)  # [B, N * K]
    longest = int(wanted.sum(1).max())
    if not longest:
        return proposals.new_zeros(0, len(taps) * target.hidden_size, dtype=target.dtype), proposals.new_zeros(0)
    packed = wanted.to(torch.int8).argsort(dim=1, descending=True, stable=True)[:, :longest]  # [B, L]
    inside = wanted.gather(1, packed)
    positions = (anchors[..., None] + ahead).flatten(1).gather(1, packed)
    chain = packed // width
    limit = (anchors + accepted + 1).gather(1, chain)
    # Rows that only fill the batch up are a chain of their own: in their block's they would show it its accepted
    # tokens twice.
    step = RejectedStep(past, positions, torch.where(inside, chain, -1), limit)
    found = target.features_after(proposals.flatten(1).gather(1, packed), step, taps)
    place = chain * (width + 1) + packed % width + 1
    place = place + torch.arange(batch, device=place.device)[:, None] * (count * (width + 1))
    return found[inside], place[inside]


#: Proposals whose rows are run, and projected, at one time: a mask has as many rows, for every head that shares keys.
ROWS_AT_ONCE = 4096


def _project_rejected(
    drafter: BlockDrafter, target: Target, past: Past, anchors: Tensor, proposals: Tensor, accepted: Tensor
) -> Tensor:  # -> [B * N, K+1, H]
    """Fused taps of all verify rows, zero where one was not run; some blocks at a time, which see nothing of others."""
    batch, count, width = proposals.shape
    rows, places = [], []
    for some in torch.arange(count, device=anchors.device).split(max(1, ROWS_AT_ONCE // (batch * width))):
        part = [value[:, some] for value in (anchors, proposals, accepted)]
        taps, place = rejected_taps(target, drafter.config.taps, past, *part)
        rows.append(drafter.fusion.project(taps))
        sequence, inside = place // (len(some) * (width + 1)), place % (len(some) * (width + 1))
        places.append((sequence * count + some[0]) * (width + 1) + inside)
    found = torch.cat(rows)
    flat = found.new_zeros(batch * count * (width + 1), found.shape[-1]).index_put((torch.cat(places),), found)
    return flat.view(batch * count, width + 1, -1)


def relay_after(
    drafter: BlockDrafter,
    target: Target | None,
    past: Past | None,
    anchors: Tensor,  # [B, N]
    keep: Tensor,  # [B, N]
    hidden: Tensor,  # [B, N, block, H]
    proposals: Tensor,  # [B, N, K]
    accepted: Tensor,  # [B, N]
    correction: Tensor,  # [B, N]
) -> RelayState:
    """What verifying these blocks leaves for the next ones, leading axes [B, N]; blocks not kept leave nothing.

    target, past: None for a relay that does not use the target's taps.  Gradients reach the fusion, and nothing
    else, if the relay's options say so.
    """
    batch, count, width = proposals.shape
    accepted = torch.where(keep, accepted, width)
    learns = drafter.relay.uses_taps and drafter.config.relay_options.detach == "taps"
    with torch.set_grad_enabled(learns and torch.is_grad_enabled()):
        projected = None
        if drafter.relay.uses_taps:
            projected = _project_rejected(drafter, target, past, anchors, proposals, accepted)
        verified = Verified(
            projected, hidden.flatten(0, 1), accepted.flatten(), correction.flatten(), proposals.flatten(0, 1)
        )
        state = drafter.relay_state(verified)
    return RelayState(*(value.unflatten(0, (batch, count)) for value in vars(state).values()))
