"""A tiny random drafter with a fake target for tests of `methods`: an embedding, a head, and nothing else.

Tests of the contract run over `METHODS`, every recipe that drafts: a new one need not be named in any of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from methods.config import DominoOptions, DrafterConfig, RelayOptions
from methods.contract import Proposal, Sampling, TargetBinding, Verdict
from methods.drafter import BlockDrafter
from methods.recipes import RECIPES
from methods.relays import RelayState, Verified
from methods.runner import BlockDraftRunner

VOCAB, HIDDEN, MASK = 37, 24, 36
HEAD = DominoOptions(gru_size=10, rank=8, pure_prefix=1)
RELAY = RelayOptions(
    first_rejected=True,
    last_row=True,
    anchor_slot=False,
    mlp_width=20,
    gate="plain",
    norm="layer",
    normalise_boundary=False,
    detach="state",
    states="verifier",
    shuffle=False,
    boundary=True,
)
NEXT = dict(alignment="next", block_size=6, num_proposals=5)
METHODS = sorted(name for name, entry in RECIPES.items() if entry.drafts)


def fake_binding(
    dtype: torch.dtype = torch.float64, vocab: int = VOCAB, hidden: int = HIDDEN, device: str = "cpu"
) -> TargetBinding:
    generator = torch.Generator().manual_seed(11)
    table = torch.randn(vocab, hidden, generator=generator, dtype=torch.float64).to(device, dtype)
    weight = torch.randn(vocab, hidden, generator=generator, dtype=torch.float64).to(device, dtype)

    def head(x: Tensor, ids: Tensor | None = None) -> Tensor:
        return nn.functional.linear(x, weight if ids is None else weight[ids])

    return TargetBinding(lambda ids: nn.functional.embedding(ids, table), head, hidden, vocab)


def config(method: str = "dflash", **changes: Any) -> DrafterConfig:
    chosen = RECIPES[method]
    base = DrafterConfig(
        recipe=method,
        fusion=chosen.fusion,
        backbone=chosen.backbone,
        head=chosen.head,
        relay=chosen.relay,
        head_options=HEAD if chosen.head == "domino" else None,
        relay_options=RELAY if chosen.relay == "verifier" else None,
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
    """Random weights, norms included: with norms at one, a swapped or missing norm could go unseen, and so could
    all that stands behind a component which starts at zero."""
    torch.manual_seed(seed)
    built = BlockDrafter(cfg or config(), fake_binding(dtype), **kwargs).to(dtype)
    with torch.no_grad():
        for parameter in built.parameters():
            if parameter.ndim == 1:
                parameter.uniform_(0.5, 1.5)
            elif parameter.any():
                parameter.mul_(2)
            else:
                parameter.normal_(std=0.2)
    return built


def relayed(method: str = "dflow", *, changes: dict[str, Any] | None = None, **options: Any) -> BlockDrafter:
    """A random drafter whose relay matters, with other relay options than usual; changes: of its config."""
    return drafter(config(method, relay_options=replace(RELAY, **options), **(changes or {})))


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


def training_logits(
    built: BlockDrafter, taps: Tensor, tokens: Tensor, anchors: list[int], relay: RelayState | None = None
) -> Tensor:
    """Logits [N, K, V_d] of the proposing slots, by the training path; relay: leading axes [1, N]."""
    at = torch.tensor([anchors])
    keep = torch.ones_like(at, dtype=torch.bool)
    hidden = built.forward_blocks(built.context(taps)[None], at, tokens[at], keep, relay)
    block = tokens[at[..., None] + torch.arange(built.layout.block_size)]
    return built.train_logits(hidden, block).final[0, :, : built.layout.num_proposals]


def with_own_drafts(tokens: Tensor, anchor: int, logits: Tensor) -> Tensor:
    """The text as if the drafter's choices came true: a head that reads earlier slots reads these in decoding.

    logits: [K, V]."""
    own = tokens.clone()
    own[anchor + 1 : anchor + 1 + len(logits)] = logits.argmax(-1)
    return own


def assert_drafts_as_trained(
    built: BlockDrafter, drafted: Tensor, taps: Tensor, tokens: Tensor, anchor: int, relay: RelayState | None = None
) -> None:
    """The logits [K, V] that decoding gave at `anchor` are those of training, the drafter's own choices for labels."""
    trained = training_logits(built, taps, with_own_drafts(tokens, anchor, drafted), [anchor], relay)[0]
    torch.testing.assert_close(drafted, trained, rtol=1e-9, atol=1e-9)


def relay_after(built: BlockDrafter, seen: Verdict) -> RelayState | None:
    """What the verification of N rows leaves for their next blocks, as training has it: leading axes [1, N]."""
    if not built.relay.uses_states:
        return None
    projected = built.fusion.project(seen.taps)
    left = built.relay_state(Verified(projected, None, seen.accepted, seen.next_token, seen.proposals))
    return RelayState(*(value[None] for value in vars(left).values()))


def verdict(accepted: list[int], next_token: list[int], taps: Tensor, proposals: Tensor | None = None) -> Verdict:
    """A verification of rows whose taps [B, K+1, F] are given."""
    batch, width = taps.shape[:2]
    if proposals is None:
        proposals = torch.zeros(batch, width - 1, dtype=torch.int64)
    return Verdict(torch.tensor(accepted), torch.tensor(next_token), proposals, taps)


@dataclass(frozen=True)
class Observed:
    """One verified round of one row: its anchor's position, its verdict, the block's hidden states [block, H] where the
    relay asks for them, and what it left for the next block (None: the runner keeps no relay)."""

    anchor: int
    accepted: int
    proposals: Tensor  # [K]
    hidden: Tensor | None
    relay: RelayState | None


class Scripted(BlockDraftRunner):
    """A runner whose drafts are made right or wrong: in round r of a row the first ``right(row, r)`` proposals are the
    text's own, the next one is not, and behind it stands whatever the drafter has proposed.

    texts: by row, prompt included.  seen: the rounds of each row that were shown to it.
    """

    def __init__(
        self,
        built: BlockDrafter,
        rows: int,
        capacity: int,
        texts: Sequence[Sequence[int]],
        right: Callable[[int, int], int],
    ) -> None:
        super().__init__(built, rows, capacity)
        self.texts, self.right = texts, right
        self.seen: list[list[Observed]] = [[] for _ in range(rows)]

    def propose(self, rows: Tensor, sampling: Sampling | None = None) -> Proposal:
        tokens = super().propose(rows, sampling).tokens.clone()
        for b, row in enumerate(rows.tolist()):
            true = torch.tensor(self.texts[row][self.lengths[row] + 1 :][: self.num_proposals])
            count = min(self.right(row, self.rounds[row]), len(true))
            tokens[b, :count] = true[:count]
            if count < len(true) and tokens[b, count] == true[count]:
                tokens[b, count] = (true[count] + 1) % (VOCAB - 1)
        return Proposal(tokens)

    def observe(self, rows: Tensor, verdict: Verdict) -> None:
        anchors = [self.lengths[row] for row in rows.tolist()]
        super().observe(rows, verdict)
        for b, row in enumerate(rows.tolist()):
            relay = self._relay and RelayState(*(value[row].clone() for value in vars(self._relay).values()))
            hidden = None if self._hidden is None else self._hidden[row].clone()
            self.seen[row].append(Observed(anchors[b], int(verdict.accepted[b]), verdict.proposals[b], hidden, relay))
