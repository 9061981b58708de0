"""The attention function every target runs with: one code path for prefill, decoding and verification.

Registered with transformers under `NAME`; a model set to it hands each layer's queries, keys and values over and knows
nothing of our cache.  A forward pass that carries no `Step` is a plain causal pass over its own tokens (features for
training).  This file knows attention arithmetic; it does not know models, tokens or rounds.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AttentionInterface

from harness.cache import Step

NAME = "harness_ragged"


def ragged_attention(
    module: nn.Module,
    query: Tensor,  # [B, heads, S, head_dim], rotated
    key: Tensor,  # [B, kv_heads, S, head_dim], rotated
    value: Tensor,  # [B, kv_heads, S, head_dim]
    attention_mask: Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    harness_step: Step | None = None,
    s_aux: Tensor | None = None,
    **_: object,
) -> tuple[Tensor, None]:
    """Causal attention over the row's cache and this pass's tokens.  Returns [B, S, heads, head_dim]."""
    if s_aux is not None:
        raise ValueError(f"{type(module).__name__} uses attention sinks, which this harness does not compute")
    if harness_step is None:
        window = sliding_window if sliding_window is not None and sliding_window < query.shape[2] else None
        causal, mask = window is None, None
        if window is not None:
            mask = _window_mask(query.shape[2], window, query)
    else:
        key, value = harness_step.write(module.layer_idx, key, value)
        causal = harness_step.from_scratch and (sliding_window is None or harness_step.end <= sliding_window)
        mask = None if causal else harness_step.mask(sliding_window, query.dtype)
    if softcap is not None:
        return _softcapped(query, key, value, mask, causal, scaling, softcap), None
    return _attend(query, key, value, mask, causal, scaling), None


def _attend(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, causal: bool, scaling: float | None
) -> Tensor:
    batch, heads, width, dim = query.shape
    kv_heads = key.shape[1]
    groups = heads // kv_heads
    if causal and width > 1:
        out = F.scaled_dot_product_attention(query, key, value, is_causal=True, scale=scaling, enable_gqa=groups > 1)
        return out.transpose(1, 2).contiguous()
    # Folding the query heads of a group into the query axis lets them share their keys without copying them.
    folded = query.reshape(batch, kv_heads, groups * width, dim)
    if mask is not None and groups > 1:
        mask = mask.repeat(1, 1, groups, 1)
    out = F.scaled_dot_product_attention(folded, key, value, attn_mask=mask, scale=scaling)
    return out.view(batch, heads, width, dim).transpose(1, 2).contiguous()


def _softcapped(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, causal: bool, scaling: float | None, cap: float
) -> Tensor:
    groups = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(groups, dim=1), value.repeat_interleave(groups, dim=1)
    scores = query @ key.transpose(2, 3) * (scaling if scaling is not None else query.shape[-1] ** -0.5)
    scores = torch.tanh(scores / cap) * cap
    if causal:
        mask = _window_mask(query.shape[2], query.shape[2], query)
    if mask is not None:
        scores = scores + mask
    weights = scores.softmax(dim=-1, dtype=torch.promote_types(torch.float32, query.dtype)).to(query.dtype)
    return (weights @ value).transpose(1, 2).contiguous()


def _window_mask(width: int, window: int, like: Tensor) -> Tensor:  # -> [width, width], additive
    cells = torch.arange(width, device=like.device)
    seen = (cells <= cells[:, None]) & (cells > cells[:, None] - window)
    return torch.zeros(width, width, dtype=like.dtype, device=like.device).masked_fill_(~seen, float("-inf"))


AttentionInterface.register(NAME, ragged_attention)
