"""A drafter: fusion, backbone, head and relay put together, for whole sequences and many blocks at once.

It knows how blocks are laid over a sequence and what they may see.  It does not know how decoding rows are
cached (`runner.py`), how it is trained, or where its checkpoint lies.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from methods.backbone import BACKBONES, Attend
from methods.config import DrafterConfig
from methods.contract import Proposal, Sampling, TargetBinding
from methods.fusion import FUSIONS
from methods.heads import HEADS, DraftBuffer, TrainLogits
from methods.relays import RELAYS, RelayState, Verified
from methods.visibility import block_mask_mod, materialise


class BlockDrafter(nn.Module):
    """The trainable part of a method.  Embedding and head are the target's, borrowed through `binding`.

    config: what a checkpoint says about itself.  attention: "sdpa" (any device) or "flex" (compiled on a GPU;
    on a CPU it has no backward).  draft_vocab: [V_d] ascending target ids the head predicts over, required if
    and only if ``config.draft_vocab_size`` is set.  Raises ``ValueError`` if config, binding and draft_vocab disagree.
    """

    def __init__(
        self,
        config: DrafterConfig,
        binding: TargetBinding,
        *,
        attention: Literal["sdpa", "flex"] = "sdpa",
        draft_vocab: Tensor | None = None,
    ) -> None:
        super().__init__()
        _check_fit(config, binding, draft_vocab)
        self.config, self.layout, self.attention = config, config.layout, attention
        self.fusion = FUSIONS[config.fusion](config)
        self.backbone = BACKBONES[config.backbone](config)
        for component in (self.fusion, self.backbone):
            _initialise(component, std=config.hidden_size**-0.5)
        # Made last, so that one seed gives fusion and backbone the same weights under every method; they know best
        # how they must start, a relay, say, as the identity.
        self.head = HEADS[config.head](config)
        self.relay = RELAYS[config.relay](config)
        self.register_buffer("draft_vocab", draft_vocab)
        self.bind(binding)

    def bind(self, binding: TargetBinding) -> None:
        """Borrow another target's modules (same sizes).  They never become parameters of the drafter."""
        self.binding = binding
        self.narrowed = replace(
            binding, head=self.head_logits, vocab_size=self.config.draft_vocab_size or binding.vocab_size
        )

    def shortened(self, num_proposals: int) -> BlockDrafter:
        """The same weights, shared, with a block of so few slots that it proposes at most `num_proposals` (at least 1);
        this drafter where it proposes no more anyway.  It is decoded with: its later masks are not there to be seen."""
        if num_proposals < 1:
            raise ValueError(f"num_proposals is {num_proposals}; a drafter proposes at least 1 token")
        if num_proposals >= self.layout.num_proposals:
            return self
        config = replace(self.config, block_size=num_proposals + self.layout.first_slot, num_proposals=num_proposals)
        with torch.random.fork_rng(devices=[]):  # building draws initial weights, which are replaced
            short = BlockDrafter(config, self.binding, attention=self.attention, draft_vocab=self.draft_vocab)
        weight = self.backbone.norm.weight
        short.to(dtype=weight.dtype, device=weight.device).load_state_dict(self.state_dict(), assign=True)
        return short.train(self.training)

    # -- what training uses ---------------------------------------------------------------------------------

    def context(self, taps: Tensor) -> Tensor:  # [..., F] -> [..., H]
        """Fuse the concatenated taps into context features."""
        return self.fusion(taps)

    def forward_blocks(
        self, context: Tensor, anchors: Tensor, anchor_tokens: Tensor, keep: Tensor, relay: RelayState | None = None
    ) -> Tensor:
        """Denoise N blocks over each of B sequences; their context keys and values are computed once.

        context: [B, S, H], finite throughout (what stands at or after an anchor is never seen, but masked
        cells are weighed with zero); anchors: [B, N] positions; anchor_tokens: [B, N]; keep: [B, N] bool,
        False for padding, whose anchors may be anything; relay: leading axes [B, N], or None.
        Returns hidden states [B, N, block, H] after the final norm (finite, meaningless where not kept).
        """
        batch, length = context.shape[:2]
        anchors = torch.where(keep, anchors, 0)
        anchor_tokens = torch.where(keep, anchor_tokens, self.config.mask_token_id)
        x = self.block_inputs(anchor_tokens, relay).flatten(1, 2)  # [B, N*block, H]
        slots = torch.arange(self.layout.block_size, device=anchors.device)
        positions = (anchors[..., None] + slots).flatten(1)  # [B, N*block]
        backbone, rotary = self.backbone, self.backbone.rotary
        weights = backbone.context_weights()
        keys, values = backbone.project_context(context, rotary(slice(0, length)), weights)
        attend = self._attend_sequence(keys, values, anchors, keep)
        hidden = backbone(x, rotary(positions).unsqueeze(1), attend)
        return hidden.unflatten(1, (anchors.shape[1], self.layout.block_size))

    def _attend_sequence(self, keys: Tensor, values: Tensor, anchors: Tensor, keep: Tensor) -> Attend:
        """Attention of all blocks over their sequence's context keys and values [B, S, layers, Hkv, D]."""
        batch, length = keys.shape[:2]
        queries = anchors.shape[1] * self.layout.block_size
        mask_mod = block_mask_mod(self.layout, anchors, keep, length)
        context_k = keys.permute(2, 0, 3, 1, 4).unbind(0)
        context_v = values.permute(2, 0, 3, 1, 4).unbind(0)
        if self.attention == "flex":
            flex, build = _flex(keys.device.type)
            blocks = build(mask_mod, batch, None, queries, length + queries, device=keys.device)
            core = lambda q, k, v: flex(q, k, v, block_mask=blocks, enable_gqa=True)  # noqa: E731
        else:
            seen = materialise(mask_mod, batch, queries, length + queries, keys.device)
            # Additive once for all layers, where each would turn a boolean mask into this anew.
            mask = torch.zeros(seen.shape, dtype=keys.dtype, device=seen.device).masked_fill_(~seen, float("-inf"))
            core = lambda q, k, v: F.scaled_dot_product_attention(  # noqa: E731
                q, k, v, attn_mask=mask, enable_gqa=True
            )

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return core(q, torch.cat((context_k[layer], k), dim=2), torch.cat((context_v[layer], v), dim=2))

        return attend

    def train_logits(self, hidden: Tensor, tokens: Tensor) -> TrainLogits:
        """Teacher-forced logits [..., supervised, V_d] of the supervised slots.

        hidden: [..., block, H] (any leading axes, so blocks may come in chunks); tokens: [..., block] true
        tokens at anchor..anchor+block-1 (any id in the vocabulary where the sequence has ended).
        """
        return self.head.train_logits(hidden, tokens, self.narrowed)

    def labels(self, tokens: Tensor) -> Tensor:  # [...] -> [...]
        """Target ids as indices of the logits; -1 outside the draft vocabulary (such a token has no loss)."""
        if self.draft_vocab is None:
            return tokens
        index = torch.searchsorted(self.draft_vocab, tokens).clamp(max=len(self.draft_vocab) - 1)
        return torch.where(self.draft_vocab[index] == tokens, index, -1)

    # -- what training and decoding share -------------------------------------------------------------------

    def block_inputs(self, anchor_tokens: Tensor, relay: RelayState | None) -> Tensor:
        """Input embeddings [..., block, H]: the anchor's token, then masks, into which the relay may write.

        anchor_tokens: [...]; relay: the same leading axes, or None.
        """
        dtype = self.backbone.norm.weight.dtype
        embed = lambda ids: self.binding.embed(ids).to(dtype)  # noqa: E731
        mask = embed(anchor_tokens.new_tensor(self.config.mask_token_id))
        slots = self.relay.block_inputs(mask, anchor_tokens.shape, relay, embed)
        # A state in the anchor's slot bends the anchor's embedding as it would a mask's; without one this adds zero.
        anchor = embed(anchor_tokens)[..., None, :] + (slots[..., :1, :] - mask)
        return torch.cat((anchor, slots[..., 1:, :]), dim=-2)

    def relay_state(self, verified: Verified) -> RelayState:
        """What one verification leaves for the next block; for a relay that uses states."""
        return self.relay.state(verified, self.fusion.hidden_norm)

    def head_logits(self, hidden: Tensor) -> Tensor:  # [..., H] -> [..., V_d]
        """The target's head on denoised slots, over the draft vocabulary if there is one."""
        if self.draft_vocab is None:
            return self.binding.head(hidden)
        return self.binding.head(hidden, self.draft_vocab)

    def draft(
        self,
        hidden: Tensor,
        anchor_tokens: Tensor,
        sampling: Sampling | None = None,
        name: Callable[[int], str] = "block {}".format,
    ) -> Proposal:
        """The inference procedure on denoised blocks: hidden [M, block, H], anchors [M] -> proposals [M, K].

        Raises `DraftError` naming the block, through `name`, if logits are not finite or a slot stays empty.
        """
        return self.fill(hidden, anchor_tokens, sampling).proposal(name)

    def forced(self, hidden: Tensor, tokens: Tensor) -> Tensor:  # [M, block, H], [M, block] -> [M, K]
        """Teacher-forced proposals: each slot's argmax given the true tokens before it.  No decoder can have these."""
        chosen = self.train_logits(hidden, tokens).final[:, : self.layout.num_proposals].argmax(-1)
        return chosen if self.draft_vocab is None else self.draft_vocab[chosen]

    def fill(
        self, hidden: Tensor, anchor_tokens: Tensor, sampling: Sampling | None = None, *, keep_logits: bool = False
    ) -> DraftBuffer:
        """`draft` before its checks: the buffer the head has written into."""
        buffer = DraftBuffer(
            len(hidden),
            self.layout.num_proposals,
            self.config.vocab_size,
            hidden.device,
            sampling=sampling,
            draft_vocab=self.draft_vocab,
            keep_logits=keep_logits,
        )
        self.head.draft(hidden, anchor_tokens, buffer, self.narrowed)
        return buffer


def _check_fit(config: DrafterConfig, binding: TargetBinding, draft_vocab: Tensor | None) -> None:
    for name in ("hidden_size", "vocab_size"):
        ours, theirs = getattr(config, name), getattr(binding, name)
        if ours != theirs:
            raise ValueError(
                f"{name} is {ours} in the drafter and {theirs} in the target; a drafter borrows the target's "
                "embedding and head, so train one for this target"
            )
    size = None if draft_vocab is None else len(draft_vocab)
    if size != config.draft_vocab_size:
        raise ValueError(f"draft_vocab_size is {config.draft_vocab_size}, but draft_vocab holds {size} ids")
    if draft_vocab is not None:
        rising = bool((draft_vocab[1:] > draft_vocab[:-1]).all())
        inside = bool((draft_vocab >= 0).all() and (draft_vocab < config.vocab_size).all())
        if draft_vocab.dtype != torch.int64 or not rising or not inside:
            raise ValueError(
                f"draft_vocab must be int64, strictly ascending, and within the target's {config.vocab_size} ids"
            )


def _initialise(component: nn.Module, std: float) -> None:
    """Normal weights of width ``hidden_size ** -0.5`` (0.02 at 2560, as Qwen3 has it); norms stay at one.

    Draws from torch's global generator, in the order of the modules.
    """
    for module in component.modules():
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=std)


@cache
def _flex(device_type: str) -> tuple[Callable, Callable]:
    """FlexAttention and its mask builder: compiled on a GPU (uncompiled they materialise), plain on a CPU."""
    if device_type == "cpu":
        return flex_attention, create_block_mask
    return torch.compile(flex_attention), torch.compile(create_block_mask)
