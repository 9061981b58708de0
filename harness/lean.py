"""A lean forward pass for targets of the Llama family: the same arithmetic in a quarter of the calls.

A small target on a CPU spends most of a token in Python and in kernels of a few microseconds.  This file reads the
weights of a transformers decoder (Llama, Qwen2, Qwen3, Gemma-3: RMSNorm, rotary positions, grouped-query attention,
gated feed-forward) and runs it with one product for q, k and v, one for gate and up, fused norms and tabulated
rotations.  Baseline and drafted decoding go through it alike.  It knows layers, not tokens, caches or rounds; a decoder
it does not know to the last module is left to transformers, and `Target.self_test` compares it with the model's own
forward before it is used.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from harness.attention import ragged_attention
from harness.cache import Step

_LAYER = {"self_attn", "mlp", "input_layernorm", "post_attention_layernorm"}
_SANDWICH = {"pre_feedforward_layernorm", "post_feedforward_layernorm"}
_ATTENTION = {"q_proj", "k_proj", "v_proj", "o_proj"}
_HEAD_NORMS = {"q_norm", "k_norm"}
_MLP = {"gate_proj", "up_proj", "down_proj", "act_fn"}


class NotLean(Exception):
    """A decoder this file does not reproduce, with the reason."""


@dataclass(frozen=True)
class Norm:
    """An RMSNorm as (scale, eps); the scale already holds Gemma's plus one."""

    scale: Tensor
    eps: float

    @classmethod
    def of(cls, module: nn.Module) -> Norm:
        """Read a norm module.  Raises `NotLean` unless a probe shows it to be a plain RMSNorm."""
        weight = getattr(module, "weight", None)
        eps = getattr(module, "variance_epsilon", getattr(module, "eps", None))
        if weight is None or not isinstance(eps, float):
            raise NotLean(f"{type(module).__name__} is no RMSNorm")
        probe = torch.linspace(-2, 3, weight.numel(), dtype=weight.dtype, device=weight.device)[None]
        for offset in (0.0, 1.0):
            norm = cls(weight.detach() + offset, eps)
            if torch.allclose(norm(probe), module(probe), rtol=1e-2, atol=1e-3):
                return norm
        raise NotLean(f"{type(module).__name__} is no plain RMSNorm")

    def __call__(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, self.scale.shape, self.scale, self.eps)


@dataclass
class Layer:
    """One decoder layer's weights, fused where several products read the same input."""

    attention: nn.Module  # scaling, layer_idx and sliding_window are read from it
    kind: str
    norm_in: Norm
    norm_mlp: Norm
    after_attention: Norm | None
    after_mlp: Norm | None
    qkv: tuple[Tensor, Tensor | None]
    out: tuple[Tensor, Tensor | None]
    gate_up: tuple[Tensor, Tensor | None]
    down: tuple[Tensor, Tensor | None]
    heads: int
    kv_heads: int
    head_dim: int
    head_scale: Tensor | None  # [heads + kv_heads, head_dim]
    head_eps: float
    act: Callable[[Tensor], Tensor]

    def __call__(self, x: Tensor, cos: Tensor, sin: Tensor, step: Step | None) -> Tensor:  # [B, S, H] -> [B, S, H]
        batch, width, _ = x.shape
        mixed = F.linear(self.norm_in(x), *self.qkv).view(batch, width, -1, self.head_dim)
        rotated, value = mixed.split([self.heads + self.kv_heads, self.kv_heads], dim=2)
        if self.head_scale is not None:
            rotated = F.rms_norm(rotated, (self.head_dim,), None, self.head_eps) * self.head_scale
        rotated = torch.addcmul(rotated * cos, rotated.roll(self.head_dim // 2, -1), sin)
        query, key = rotated.transpose(1, 2).split([self.heads, self.kv_heads], dim=1)
        mixed, _ = ragged_attention(
            self.attention,
            query,
            key,
            value.transpose(1, 2),
            None,
            scaling=self.attention.scaling,
            sliding_window=getattr(self.attention, "sliding_window", None),
            harness_step=step,
        )
        mixed = F.linear(mixed.view(batch, width, -1), *self.out)
        x = x + (mixed if self.after_attention is None else self.after_attention(mixed))
        gate, up = F.linear(self.norm_mlp(x), *self.gate_up).chunk(2, dim=-1)
        mixed = F.linear(self.act(gate) * up, *self.down)
        return x + (mixed if self.after_mlp is None else self.after_mlp(mixed))


class LeanDecoder:
    """The decoder stack of a causal language model, embedding to final norm."""

    def __init__(self, decoder: nn.Module, embedding: nn.Module) -> None:
        """Read a transformers decoder.  Raises `NotLean` where its modules are not exactly those expected."""
        self.embedding, self.rotary = embedding, decoder.rotary_emb
        config = decoder.config
        if getattr(config, "use_bidirectional_attention", False):
            raise NotLean("bidirectional attention")
        if decoder.training:
            raise NotLean("the model is in training mode")
        self.norm = Norm.of(decoder.norm)
        self.layers = [_read_layer(layer, config) for layer in decoder.layers]
        self.tables: dict[str, tuple[Tensor, Tensor]] = {}
        types = getattr(self.rotary, "rope_type", "default")
        types = set(types.values()) if isinstance(types, dict) else {types}
        if not types <= {"default", "linear", "llama3", "yarn"}:  # the others depend on the length seen so far
            raise NotLean(f"rotary positions of type {types}")
        self._typed = "layer_type" in inspect.signature(type(self.rotary).forward).parameters
        self._extend(256)

    def __call__(
        self, ids: Tensor, positions: Tensor, step: Step | None, taps: frozenset[int], depth: int | None = None
    ) -> tuple[Tensor, dict]:
        """ids, positions: [B, S].  Returns normalised hidden states [B, S, H] and the outputs of tapped layers; those
        of the first `depth` layers only, if given."""
        last = positions.shape[-1] if step is None else step.end
        if last > self.length:
            self._extend(last)
        rotations = {kind: (cos[positions], sin[positions]) for kind, (cos, sin) in self.tables.items()}
        x, tapped = self.embedding(ids), {}
        for index, layer in enumerate(self.layers[:depth]):
            x = layer(x, *rotations[layer.kind], step)
            if index in taps:
                tapped[index] = x
        return self.norm(x), tapped

    def _extend(self, length: int) -> None:
        """Tabulate rotations of positions 0..length-1: cosines, and sines signed for a half-turn `roll`."""
        self.length = max(256, 1 << (length - 1).bit_length())
        probe = self.layers[0].norm_in.scale
        positions = torch.arange(self.length, device=probe.device)[None]
        for kind in {layer.kind for layer in self.layers}:
            cos, sin = self.rotary(probe[None, None], positions, *([kind] if self._typed else []))
            half = sin.shape[-1] // 2
            signed = torch.cat([-sin[0, :, :half], sin[0, :, half:]], dim=-1)
            self.tables[kind] = (cos[0][:, None], signed[:, None])  # [P, 1, head_dim]


def _read_layer(layer: nn.Module, config: Any) -> Layer:
    names = {name for name, _ in layer.named_children()}
    if names not in (_LAYER, _LAYER | _SANDWICH):
        raise NotLean(f"{type(layer).__name__} has modules {sorted(names)}")
    attention, mlp, sandwich = layer.self_attn, layer.mlp, bool(names & _SANDWICH)
    inner = {name for name, _ in attention.named_children()}
    if inner not in (_ATTENTION, _ATTENTION | _HEAD_NORMS) or {n for n, _ in mlp.named_children()} != _MLP:
        raise NotLean(f"attention {sorted(inner)} or feed-forward {type(mlp).__name__}")
    if getattr(attention, "attn_logit_softcapping", None) is not None or hasattr(attention, "sinks"):
        raise NotLean("soft-capped attention or attention sinks")
    if getattr(config, "sliding_window", None) is not None and not hasattr(attention, "sliding_window"):
        raise NotLean("a sliding window that the attention modules do not carry")
    if hasattr(attention, "use_rope") or getattr(config, "no_rope_layers", None):
        raise NotLean("layers without rotary positions")
    head_dim = attention.head_dim
    heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
    head_scale, head_eps = None, 0.0
    if inner & _HEAD_NORMS:
        q, k = Norm.of(attention.q_norm), Norm.of(attention.k_norm)
        if q.scale.shape != (head_dim,) or q.eps != k.eps:
            raise NotLean("head norms are not per head")
        head_scale, head_eps = torch.stack([q.scale] * heads + [k.scale] * kv_heads), q.eps
    after = Norm.of(layer.post_attention_layernorm)
    return Layer(
        attention=attention,
        kind=getattr(attention, "layer_type", None) or "full_attention",
        norm_in=Norm.of(layer.input_layernorm),
        norm_mlp=Norm.of(layer.pre_feedforward_layernorm) if sandwich else after,
        after_attention=after if sandwich else None,
        after_mlp=Norm.of(layer.post_feedforward_layernorm) if sandwich else None,
        qkv=_fuse(attention.q_proj, attention.k_proj, attention.v_proj),
        out=_fuse(attention.o_proj),
        gate_up=_fuse(mlp.gate_proj, mlp.up_proj),
        down=_fuse(mlp.down_proj),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        head_scale=head_scale,
        head_eps=head_eps,
        act=mlp.act_fn,
    )


def _fuse(*modules: nn.Module) -> tuple[Tensor, Tensor | None]:
    """One weight (and bias) for modules that read the same input; they keep views of it, so nothing is stored twice."""
    if any(type(module) is not nn.Linear for module in modules):
        raise NotLean(f"projections are {sorted({type(m).__name__ for m in modules})}, not plain linear layers")
    biases = [module.bias for module in modules]
    if any((b is None) != (biases[0] is None) for b in biases):
        raise NotLean("some projections have a bias and others none")
    if len(modules) == 1:
        return modules[0].weight.detach(), None if biases[0] is None else biases[0].detach()
    weight = torch.cat([module.weight.detach() for module in modules])
    for module, part in zip(modules, weight.split([m.out_features for m in modules]), strict=True):
        module.weight.data = part
    return weight, None if biases[0] is None else torch.cat([b.detach() for b in biases])
