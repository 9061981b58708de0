"""Who may attend to whom in a draft block: the one definition, for training (either kernel) and decoding.

It knows indices only.  Keys of a training sequence are its S context positions followed by the slots of its N
blocks; keys of a decoding row are the cells of its cache, in which the block stands right after the context.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from methods.contract import BlockLayout

#: (batch, head, query, key) index tensors -> bool tensor, the signature FlexAttention asks for.
MaskMod = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


def block_mask_mod(layout: BlockLayout, anchors: Tensor, keep: Tensor, context_length: int) -> MaskMod:
    """Visibility in training: a slot sees the context its layout allows, and every slot of its own block.

    anchors, keep: [B, N].  A block with ``keep`` False sees no context; it still sees itself, so that its
    softmax has something finite to weigh and no NaN arises.  (DFlash section 4.2.)
    """
    block = layout.block_size

    def mask_mod(b: Tensor, h: Tensor, q: Tensor, kv: Tensor) -> Tensor:
        n = q // block
        in_context = kv < context_length
        context = in_context & layout.visible(kv, anchors[b, n]) & keep[b, n]
        return context | (~in_context & ((kv - context_length) // block == n))

    return mask_mod


def materialise(mask_mod: MaskMod, batch: int, queries: int, keys: int, device: torch.device) -> Tensor:
    """The mask as bool [B, 1, Q, KV], one plane for all heads."""
    b = torch.arange(batch, device=device)[:, None, None]
    q = torch.arange(queries, device=device)[None, :, None]
    kv = torch.arange(keys, device=device)[None, None, :]
    return mask_mod(b, torch.zeros_like(b), q, kv)[:, None]


def cache_mask(layout: BlockLayout, anchors: Tensor, cells: int) -> Tensor:  # [B] -> [B, 1, 1, cells]
    """Visibility in decoding: context cells before the anchor, the block's own cells from the anchor on."""
    cell = torch.arange(cells, device=anchors.device)[None, :]
    anchor = anchors[:, None]
    own = (cell >= anchor) & (cell < anchor + layout.block_size)
    return (layout.visible(cell, anchor) | own)[:, None, None, :]
