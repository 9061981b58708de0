"""A drafter: fusion, backbone, head and relay put together, for whole sequences and many blocks at once.

It knows how blocks are laid over a sequence and what they may see.  It does not know how decoding rows are cached
(`runner.py`), how it is trained, or where its checkpoint lies.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from methods.backbone import BACKBONES, Angles, Attend
from methods.config import DrafterConfig
from methods.contract import Proposal, Sampling, TargetBinding
from methods.fusion import FUSIONS
from methods.heads import HEADS, DraftBuffer, TrainLogits
from methods.relays import RELAYS, RelayState
from methods.visibility import block_mask_mod, materialise


class BlockDrafter(nn.Module):
    """The trainable part of a method.  The target's embedding and head are borrowed through `binding`, never owned.

    config: what a checkpoint says about itself.  attention: "sdpa" (any device) or "flex" (compiled on a GPU).
    draft_vocab: [V_d] target ids the head predicts over, ascending; required if ``config.draft_vocab_size`` is set.
    """

    def __init__(self, config: DrafterConfig, binding: TargetBinding, *,
                 attention: Literal["sdpa", "flex"] = "sdpa", draft_vocab: Tensor | None = None) -> None:
        super().__init__()
        self.config, self.binding, self.layout, self.attention = config, binding, config.layout, attention
        self.fusion = FUSIONS[config.fusion](config)
        self.backbone = BACKBONES[config.backbone](config)
        self.head = HEADS[config.head](config)
        self.relay = RELAYS[config.relay](config)

    # -- what training uses -------------------------------------------------------------------------------------------

    def context(self, taps: Tensor) -> Tensor:  # [..., F] -> [..., H]
        """Fuse the concatenated taps into context features."""
        raise NotImplementedError

    def forward_blocks(self, context: Tensor, anchors: Tensor, anchor_tokens: Tensor, keep: Tensor,
                       relay: RelayState | None = None) -> Tensor:
        """Denoise N blocks over each of B sequences.

        context: [B, S, H]; anchors: [B, N] positions; anchor_tokens: [B, N]; keep: [B, N] bool, False for padding;
        relay: leading axes [B, N], or None.  Returns hidden states [B, N, block, H] after the final norm.
        """
        raise NotImplementedError

    def train_logits(self, hidden: Tensor, tokens: Tensor) -> TrainLogits:
        """Teacher-forced logits [..., supervised, V_d] of the supervised slots.

        hidden: [..., block, H] (any leading axes, so blocks may come in chunks); tokens: [..., block] true tokens at
        anchor..anchor+block-1 (any id in the vocabulary where the sequence has ended).
        """
        raise NotImplementedError

    def labels(self, tokens: Tensor) -> Tensor:  # [...] -> [...]
        """Target ids as indices of the logits; -1 for a token outside the draft vocabulary (it carries no loss)."""
        raise NotImplementedError

    # -- what training and decoding share -----------------------------------------------------------------------------

    def head_logits(self, hidden: Tensor) -> Tensor:  # [..., H] -> [..., V_d]
        """The target's head on denoised slots, over the draft vocabulary if there is one."""
        raise NotImplementedError

    def draft(self, hidden: Tensor, anchor_tokens: Tensor, sampling: Sampling | None = None,
              name: Callable[[int], str] = "block {}".format) -> Proposal:
        """The inference procedure on denoised blocks: hidden [M, block, H], anchor_tokens [M] -> proposals [M, K].

        Raises `DraftError` naming the block, through `name`, if logits are not finite or a slot stays unwritten.
        """
        raise NotImplementedError
