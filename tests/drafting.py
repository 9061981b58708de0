"""A tiny random drafter with a fake target for tests of `methods`: an embedding, a head, and nothing else."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from methods.config import DrafterConfig
from methods.contract import TargetBinding, Verdict
from methods.drafter import BlockDrafter
from methods.runner import BlockDraftRunner

VOCAB, HIDDEN, MASK = 37, 24, 36


def fake_binding(
    dtype: torch.dtype = torch.float64, vocab: int = VOCAB, hidden: int = HIDDEN, device: str = "cpu"
) -> TargetBinding:
    generator = torch.Generator().manual_seed(11)
    table = torch.randn(vocab, hidden, generator=generator, dtype=torch.float64).to(device, dtype)
    weight = torch.randn(vocab, hidden, generator=generator, dtype=torch.float64).to(device, dtype)

    def head(x: Tensor, ids: Tensor | None = None) -> Tensor:
        return nn.functional.linear(x, weight if ids is None else weight[ids])

    return TargetBinding(lambda ids: nn.functional.embedding(ids, table), head, hidden, vocab)


def config(**changes: Any) -> DrafterConfig:
    base = DrafterConfig(
        recipe="dflash",
        fusion="shared_fc",
        backbone="dflash",
        head="plain",
        relay="none",
        block_size=6,
        alignment="same",
        num_proposals=5,
        mask_token_id=MASK,
        taps=(1, 3),
        hidden_size=HIDDEN,
        num_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        intermediate_size=32,
        rms_norm_eps=1e-6,
        rope_theta=10000.0,
        max_position_embeddings=2048,
        vocab_size=VOCAB,
        draft_vocab_size=None,
        target="fake",
        target_source="example/fake",
        target_revision=None,
        target_fingerprint="f00d",
        template_hash="plain",
        thinking=None,
    )
    return replace(base, **changes)


def drafter(
    cfg: DrafterConfig | None = None, dtype: torch.dtype = torch.float64, seed: int = 0, **kwargs: Any
) -> BlockDrafter:
    """Random weights, norms included: with norms at one, a swapped or missing norm could go unseen."""
    torch.manual_seed(seed)
    built = BlockDrafter(cfg or config(), fake_binding(dtype), **kwargs).to(dtype)
    with torch.no_grad():
        for parameter in built.parameters():
            if parameter.ndim == 1:
                parameter.uniform_(0.5, 1.5)
            else:
                parameter.mul_(2)
    return built


def sequence(length: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    """Taps [length, F] and tokens [length + 16] of an imaginary text."""
    generator = torch.Generator().manual_seed(seed)
    taps = torch.randn(length, 2 * HIDDEN, generator=generator, dtype=torch.float64).to(dtype)
    return taps, torch.randint(VOCAB - 1, (length + 16,), generator=generator)


def started(built: BlockDrafter, taps: Tensor, anchor: int, token: Tensor, capacity: int = 64) -> BlockDraftRunner:
    """A one-row runner that has seen the features before `anchor`."""
    runner = BlockDraftRunner(built, 1, capacity)
    runner.start(torch.tensor([0]), [taps[:anchor]], token[None])
    return runner


def training_logits(built: BlockDrafter, taps: Tensor, tokens: Tensor, anchors: list[int]) -> Tensor:
    """Logits [N, K, V_d] of the proposing slots, by the training path."""
    at = torch.tensor([anchors])
    hidden = built.forward_blocks(built.context(taps)[None], at, tokens[at], torch.ones_like(at, dtype=torch.bool))
    block = tokens[at[..., None] + torch.arange(built.layout.block_size)]
    return built.train_logits(hidden, block).final[0, :, : built.layout.num_proposals]


def verdict(accepted: list[int], next_token: list[int], taps: Tensor, proposals: Tensor | None = None) -> Verdict:
    """A verification of rows whose taps [B, K+1, F] are given."""
    batch, width = taps.shape[:2]
    if proposals is None:
        proposals = torch.zeros(batch, width - 1, dtype=torch.int64)
    return Verdict(torch.tensor(accepted), torch.tensor(next_token), proposals, taps)
