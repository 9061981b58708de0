"""A lean trainable twin of a small Qwen3 model: same mathematics, fused projections, nothing else.

Knows the forward pass used to train the pocket target fast on a CPU, and how its weights are written as a
`Qwen3ForCausalLM`. What is shipped and measured is always the transformers model; a test holds the two
together.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class NetShape:
    """Dimensions of the target (Qwen3 architecture, tied embedding)."""

    vocab: int = 576  # rows of the embedding; the tokenizer may use fewer
    layers: int = 12
    hidden: int = 128
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 32
    ffn: int = 256
    rope_theta: float = 10000.0
    eps: float = 1e-6
    max_position: int = 2048

    def as_dict(self) -> dict:
        return asdict(self)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """RMSNorm over the last dimension, computed in float32. `x` [..., D], `weight` [D]."""
    wide = x.float()
    return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)).to(x.dtype) * weight.to(x.dtype)


def rotary(length: int, shape: NetShape, device=None) -> tuple[Tensor, Tensor]:
    """cos and sin, each [length, head_dim], in Qwen's rotate-half layout."""
    inverse = shape.rope_theta ** (-torch.arange(0, shape.head_dim, 2, device=device).float() / shape.head_dim)
    angle = torch.arange(length, device=device).float()[:, None] * inverse[None]
    angle = torch.cat([angle, angle], dim=-1)
    return angle.cos(), angle.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding of `x` [B, heads, T, head_dim]."""
    low, high = x.chunk(2, dim=-1)
    return x * cos.to(x.dtype) + torch.cat([-high, low], dim=-1) * sin.to(x.dtype)


class Layer(nn.Module):
    """One decoder layer: attention with per-head q/k norms, then a gated feed-forward."""

    def __init__(self, s: NetShape):
        super().__init__()
        self.shape = s
        width = (s.heads + 2 * s.kv_heads) * s.head_dim
        self.norm1, self.norm2 = nn.Parameter(torch.ones(s.hidden)), nn.Parameter(torch.ones(s.hidden))
        self.q_norm, self.k_norm = nn.Parameter(torch.ones(s.head_dim)), nn.Parameter(torch.ones(s.head_dim))
        deep = 0.02 / (2 * s.layers) ** 0.5
        self.qkv = nn.Parameter(torch.randn(width, s.hidden) * s.hidden**-0.5)
        self.out = nn.Parameter(torch.randn(s.hidden, s.heads * s.head_dim) * deep)
        self.up = nn.Parameter(torch.randn(2 * s.ffn, s.hidden) * s.hidden**-0.5)
        self.down = nn.Parameter(torch.randn(s.hidden, s.ffn) * deep)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, hidden_future: Tensor) -> Tensor:
        s, (batch, length, _) = self.shape, x.shape
        qkv = F.linear(rms_norm(x, self.norm1, s.eps), self.qkv.to(x.dtype)).view(batch, length, -1, s.head_dim)
        q, k, v = qkv.transpose(1, 2).split([s.heads, s.kv_heads, s.kv_heads], dim=1)
        q = rotate(rms_norm(q, self.q_norm, s.eps), cos, sin)
        k = rotate(rms_norm(k, self.k_norm, s.eps), cos, sin)
        group = s.heads // s.kv_heads
        k, v = (t.repeat_interleave(group, dim=1) for t in (k, v))
        # plain products: on a CPU, at these lengths, faster than the fused kernel (slow bfloat16 backward)
        scores = torch.matmul(q * s.head_dim**-0.5, k.transpose(-1, -2)) + hidden_future
        mixed = torch.matmul(torch.softmax(scores, dim=-1), v)
        x = x + F.linear(mixed.transpose(1, 2).reshape(batch, length, -1), self.out.to(x.dtype))
        gate, up = F.linear(rms_norm(x, self.norm2, s.eps), self.up.to(x.dtype)).chunk(2, dim=-1)
        return x + F.linear(F.silu(gate) * up, self.down.to(x.dtype))


class Net(nn.Module):
    """Token ids [B, T] -> hidden states [B, T, hidden] after the final norm; `logits` applies the tied
    head."""

    def __init__(self, shape: NetShape):
        super().__init__()
        self.shape = shape
        self.embed = nn.Parameter(torch.randn(shape.vocab, shape.hidden) * 0.05)
        self.layers = nn.ModuleList([Layer(shape) for _ in range(shape.layers)])
        self.norm = nn.Parameter(torch.ones(shape.hidden))
        cos, sin = rotary(shape.max_position, shape)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)

    def forward(self, ids: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
        length = ids.shape[1]
        x = F.embedding(ids, self.embed).to(dtype)
        hidden_future = torch.full((length, length), float("-inf"), dtype=dtype, device=ids.device).triu(1)
        for layer in self.layers:
            x = layer(x, self.cos[:length], self.sin[:length], hidden_future)
        return rms_norm(x, self.norm, self.shape.eps)

    def logits(self, hidden: Tensor) -> Tensor:
        return F.linear(hidden, self.embed.to(hidden.dtype))

    def loss(self, ids: Tensor, labels: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
        """Sum of cross-entropies over `labels` [B, T] that are not -100; label t is the token that
        follows ids[:, t]."""
        hidden = self(ids, dtype).flatten(0, 1)
        return F.cross_entropy(self.logits(hidden).float(), labels.flatten(), ignore_index=-100, reduction="sum")


def to_transformers(net: Net, token_ids: dict[str, int]):
    """The same model as a `Qwen3ForCausalLM` in float32. `token_ids`: pad, end."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    s = net.shape
    config = Qwen3Config(
        vocab_size=s.vocab,
        hidden_size=s.hidden,
        num_hidden_layers=s.layers,
        num_attention_heads=s.heads,
        num_key_value_heads=s.kv_heads,
        head_dim=s.head_dim,
        intermediate_size=s.ffn,
        max_position_embeddings=s.max_position,
        rms_norm_eps=s.eps,
        rope_parameters={"rope_type": "default", "rope_theta": s.rope_theta},
        tie_word_embeddings=True,
        attention_bias=False,
        pad_token_id=token_ids["pad"],
        eos_token_id=token_ids["end"],
        bos_token_id=None,
    )
    model = Qwen3ForCausalLM(config)
    state = {
        "model.embed_tokens.weight": net.embed,
        "model.norm.weight": net.norm,
        "lm_head.weight": net.embed,
    }
    q, kv = s.heads * s.head_dim, s.kv_heads * s.head_dim
    for index, layer in enumerate(net.layers):
        at = f"model.layers.{index}."
        parts = layer.qkv.split([q, kv, kv])
        state |= {f"{at}self_attn.{n}_proj.weight": w for n, w in zip("qkv", parts, strict=True)}
        gate, up = layer.up.chunk(2)
        state |= {
            f"{at}self_attn.o_proj.weight": layer.out,
            f"{at}self_attn.q_norm.weight": layer.q_norm,
            f"{at}self_attn.k_norm.weight": layer.k_norm,
            f"{at}input_layernorm.weight": layer.norm1,
            f"{at}post_attention_layernorm.weight": layer.norm2,
            f"{at}mlp.gate_proj.weight": gate,
            f"{at}mlp.up_proj.weight": up,
            f"{at}mlp.down_proj.weight": layer.down,
        }
    model.load_state_dict({k: v.detach().clone().contiguous() for k, v in state.items()}, strict=True)
    return model.eval()
