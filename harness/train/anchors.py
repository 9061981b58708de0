"""Random anchors, and the labels of the blocks that stand on them.

It knows positions and the block layout; it knows no model.  A candidate anchor is a supervised token whose
successor is supervised too, exactly the positions that can be an anchor in decoding.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from methods.contract import BlockLayout


@dataclass(frozen=True)
class Blocks:
    """The blocks of one round.

    anchors: [B, N] int64 positions, ascending in each row (padding blocks repeat a harmless position).
    tokens: [B, N] int64, the token at each anchor.
    keep: [B, N] bool, False for padding blocks.
    """

    anchors: Tensor
    tokens: Tensor
    keep: Tensor


def draw(seed: int, step: int, lengths: Tensor, prompts: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """`count` anchors a row, uniform without replacement, ascending: a function of (seed, step) and nothing else.

    lengths, prompts: [B].  Returns anchors [B, count] and keep [B, count].  A row with fewer candidates uses
    them all and pads with ``keep=False``.
    """
    generator = torch.Generator().manual_seed(_mix(seed, step))
    first, width = prompts, lengths - 1 - prompts  # candidates: first .. lengths-2
    noise = torch.rand(len(lengths), max(count, int(width.max())), generator=generator)
    noise.masked_fill_(torch.arange(noise.shape[1]) >= width[:, None], 2.0)  # not candidates: drawn last
    values, chosen = noise.topk(count, dim=1, largest=False)
    keep = values < 2.0
    offsets = chosen.masked_fill(~keep, noise.shape[1]).sort(dim=1).values  # padding sorts to the end
    keep = keep.sort(dim=1, descending=True).values
    last = (width - 1).clamp(min=0)[:, None]
    return first[:, None] + torch.minimum(offsets, last), keep


def blocks_at(ids: Tensor, anchors: Tensor, keep: Tensor) -> Blocks:
    """Blocks on the given anchors.  ids: [B, S]; anchors, keep: [B, N]."""
    return Blocks(anchors, ids.gather(1, anchors), keep)


def some_of(seed: int, step: int, keep: Tensor, count: int) -> Tensor:  # [B, N] -> [B, count]
    """Indices of `count` blocks a row, ascending, uniform among those kept: a function of (seed, step) alone.

    A row with fewer kept blocks gets all of them and some that are not kept.
    """
    generator = torch.Generator().manual_seed(_mix(seed, ~step))
    noise = torch.rand(keep.shape, generator=generator).masked_fill(~keep.cpu(), 2.0)
    return noise.topk(count, dim=1, largest=False).indices.sort(dim=1).values.to(keep.device)


def block_tokens(ids: Tensor, blocks: Blocks, block_size: int) -> Tensor:  # -> [B, N, block]
    """True tokens at anchor..anchor+block-1, for heads that read their prefix; the last token repeats past the end."""
    steps = torch.arange(block_size, device=ids.device)
    positions = (blocks.anchors[..., None] + steps).clamp(max=ids.shape[1] - 1)
    return ids.gather(1, positions.flatten(1)).view_as(positions)


def labels(ids: Tensor, lengths: Tensor, blocks: Blocks, layout: BlockLayout) -> tuple[Tensor, Tensor]:
    """Labels of the supervised slots and whether each counts: two tensors [B, N, supervised].

    A label past the end of its sequence is masked, and so is every label of a padding block.  Anchors are
    response tokens, and everything after a response token is response, so no label can be a prompt token.
    """
    positions = blocks.anchors[..., None] + layout.label_offsets(ids.device)
    valid = (positions < lengths[:, None, None]) & blocks.keep[..., None]
    flat = positions.clamp(max=ids.shape[1] - 1).flatten(1)
    return ids.gather(1, flat).view_as(positions), valid


def _mix(seed: int, step: int) -> int:
    """A generator seed in which neither number is a shift of the other (splitmix64's finaliser)."""
    state = (seed * 0x9E3779B97F4A7C15 + (step + 1) * 0xD1B54A32D192ED03) & (2**64 - 1)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        state = ((state ^ (state >> shift)) * factor) & (2**64 - 1)
    return (state ^ (state >> 31)) & (2**63 - 1)
