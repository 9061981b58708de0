"""How a block is denoised: Qwen3-style layers whose keys and values also come from the context features.

It knows projections, norms and rotary positions.  It does not know where context keys are kept: the caller
hands in an `attend` function, which sees each layer's queries, keys and values and adds the context
(training: computed for the whole sequence; decoding: a cache).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from methods.config import DrafterConfig

#: (layer, q [B, Hq, T, D], k [B, Hkv, T, D], v [B, Hkv, T, D]) -> attention output [B, Hq, T, D]
Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]


class Angles(NamedTuple):
    """Cosines and sines of the rotary embedding, [..., T, D], each half of D repeated."""

    cos: Tensor
    sin: Tensor

    def unsqueeze(self, dim: int) -> Angles:
        return Angles(self.cos.unsqueeze(dim), self.sin.unsqueeze(dim))


class ContextWeights(NamedTuple):
    """Key and value projections of all layers, stacked so that context rows need one matrix product.

    kv: [layers * 2 * Hkv * D, H], key rows before value rows in each layer.  k_norm: [layers, 1, D].
    """

    kv: Tensor
    k_norm: Tensor


def rotate(x: Tensor, angles: Angles) -> Tensor:
    """Rotary embedding of x [..., T, D], half-split as in Llama and Qwen; angles broadcast against x."""
    first, second = x.chunk(2, dim=-1)
    return x * angles.cos + torch.cat((-second, first), dim=-1) * angles.sin


class Rotary(nn.Module):
    """Tables of angles at absolute positions, computed once in float64."""

    def __init__(self, head_dim: int, theta: float, positions: int) -> None:
        super().__init__()
        frequencies = theta ** (-torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim)
        angle = torch.arange(positions, dtype=torch.float64)[:, None] * frequencies
        angle = torch.cat((angle, angle), dim=-1)
        dtype = torch.get_default_dtype()
        self.register_buffer("cos", angle.cos().to(dtype), persistent=False)
        self.register_buffer("sin", angle.sin().to(dtype), persistent=False)

    def forward(self, positions: Tensor | slice) -> Angles:  # [...] int64 -> [..., D] each
        return Angles(self.cos[positions], self.sin[positions])


class BlockAttention(nn.Module):
    """Projections of one layer.  Keys and queries are normed per head before the rotary embedding (Qwen3)."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        queries = config.num_attention_heads * config.head_dim
        keys = config.num_key_value_heads * config.head_dim
        self.head_dim = config.head_dim
        self.q_proj = nn.Linear(config.hidden_size, queries, bias=False)
        self.k_proj = nn.Linear(config.hidden_size, keys, bias=False)
        self.v_proj = nn.Linear(config.hidden_size, keys, bias=False)
        self.o_proj = nn.Linear(queries, config.hidden_size, bias=False)
        self.q_norm = nn.RMSNorm(config.head_dim, eps=config.rms_norm_eps)
        self.k_norm = nn.RMSNorm(config.head_dim, eps=config.rms_norm_eps)

    def heads(self, x: Tensor) -> Tensor:  # [B, T, heads * D] -> [B, T, heads, D]
        return x.unflatten(-1, (-1, self.head_dim))

    def forward(self, x: Tensor, angles: Angles, layer: int, attend: Attend) -> Tensor:  # x: [B, T, H]
        q = rotate(self.q_norm(self.heads(self.q_proj(x))).transpose(1, 2), angles)
        k = rotate(self.k_norm(self.heads(self.k_proj(x))).transpose(1, 2), angles)
        v = self.heads(self.v_proj(x)).transpose(1, 2)
        return self.o_proj(attend(layer, q, k, v).transpose(1, 2).flatten(2))


class SwiGLU(nn.Module):
    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class BlockLayer(nn.Module):
    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        self.input_layernorm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.self_attn = BlockAttention(config)
        self.post_attention_layernorm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.mlp = SwiGLU(config)

    def forward(self, x: Tensor, angles: Angles, layer: int, attend: Attend) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), angles, layer, attend)
        return x + self.mlp(self.post_attention_layernorm(x))


class DFlashBackbone(nn.Module):
    """The DFlash stack (section 5, appendix A.3): context features enter every layer's K and V, nothing else.

    The context is projected by the same `k_proj`, `v_proj` and `k_norm` as the block, without the layer's
    input norm, at its own absolute positions.  It never meets Q, the output projection, the residual stream or the MLP.
    """

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        self.kv_heads, self.head_dim = config.num_key_value_heads, config.head_dim
        self.layers = nn.ModuleList(BlockLayer(config) for _ in range(config.num_layers))
        self.norm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        # A block at the last admissible anchor still has slots after it.
        positions = config.max_position_embeddings + config.block_size
        self.rotary = Rotary(config.head_dim, config.rope_theta, positions)

    def context_weights(self) -> ContextWeights:
        """The layers' context projections, stacked: a differentiable copy, stale after an optimiser step."""
        attention = [layer.self_attn for layer in self.layers]
        pairs = [weight for one in attention for weight in (one.k_proj.weight, one.v_proj.weight)]
        norms = torch.stack([one.k_norm.weight for one in attention])
        return ContextWeights(torch.cat(pairs), norms[:, None, :])

    def project_context(self, context: Tensor, angles: Angles, weights: ContextWeights) -> tuple[Tensor, Tensor]:
        """Context features [B, S, H] at the positions of `angles` [S, D] or [B, S, D] -> keys and values of
        every layer, each [B, S, layers, Hkv, D], keys rotated."""
        kv = F.linear(context, weights.kv).unflatten(-1, (len(self.layers), 2, self.kv_heads, self.head_dim))
        k, v = kv.unbind(-3)
        k = F.rms_norm(k, (self.head_dim,), eps=self.norm.eps) * weights.k_norm
        return rotate(k, angles.unsqueeze(-2).unsqueeze(-2)), v

    def forward(self, x: Tensor, angles: Angles, attend: Attend) -> Tensor:  # [B, T, H] -> [B, T, H]
        """Denoise block inputs `x`, final norm included; `angles` broadcast against [B, heads, T, D]."""
        for index, layer in enumerate(self.layers):
            x = layer(x, angles, index, attend)
        return self.norm(x)


BACKBONES: dict[str, type[nn.Module]] = {"dflash": DFlashBackbone}
