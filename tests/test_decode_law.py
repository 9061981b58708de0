"""What the whole decoder emits at T > 0 follows the target's law: responses counted, not rules argued.

The target is a chain over four tokens, so that the probability of every response is known exactly.

pytest tests/test_decode_law.py
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from torch import Tensor

from harness.accept import invert
from harness.cache import RaggedCache
from harness.decode import Decoder, DecodeSettings, Prompt, Response
from harness.target import TargetOutput
from methods.contract import Proposal, Sampling, Verdict

V, K, N = 4, 3, 4_000
#: Row t: the law of the token after t.
CHAIN = torch.tensor(
    [[0.4, 0.3, 0.2, 0.1], [0.1, 0.5, 0.1, 0.3], [0.25, 0.15, 0.5, 0.1], [0.2, 0.3, 0.1, 0.4]], dtype=torch.float64
)
DRAFT = torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64)
FIRST = 2
#: 0.9999 quantile of chi-square with 4 * 4 * 4 - 1 = 63 degrees of freedom (Wilson and Hilferty 1931).
BOUND = 113.4


class Chain:
    """As much of a target as the decoder asks for."""

    name, max_positions, device = "chain", 64, torch.device("cpu")

    def forward(self, ids: Tensor, cache: RaggedCache, rows: Sequence[int], *, taps=(), logits="all") -> TargetOutput:
        cache.begin(rows, ids.shape[1])
        out = CHAIN[ids].log()
        return TargetOutput(out if logits == "all" else out[:, -1:], torch.zeros(*ids.shape, 1))

    def decode(self, ids: Sequence[int]) -> str:
        return ""


class Relaying:
    """Drafts by `DRAFT`, but puts most of a slot's mass on the refused token that stood at its position, if any."""

    num_proposals, taps = K, (0,)

    def __init__(self, rows: int, _capacity: int) -> None:
        self.law = DRAFT.repeat(rows, K, 1)

    def start(self, rows: Tensor, prompt_taps: Sequence[Tensor], anchors: Tensor) -> None:
        self.law[rows] = DRAFT

    def propose(self, rows: Tensor, sampling: Sampling | None = None) -> Proposal:
        q = self.law[rows]
        if sampling is None:
            return Proposal(q.argmax(-1))
        return Proposal(invert(q, sampling.uniforms), q)

    def observe(self, rows: Tensor, verdict: Verdict) -> None:
        self.law[rows] = DRAFT
        for row, accepted, proposals in zip(
            rows.tolist(), verdict.accepted.tolist(), verdict.proposals.tolist(), strict=True
        ):
            for slot, token in enumerate(proposals[accepted + 1 :]):
                self.law[row, slot] = 0.1
                self.law[row, slot, token] = 0.7

    def release(self, rows: Tensor) -> None:
        pass


def responses(drafter: type | None, accept: str, proposals: str) -> list[Response]:
    settings = DecodeSettings(1.0, 0, 4, accept=accept, proposals=proposals)
    return list(Decoder(Chain(), drafter, settings, rows=400).run([Prompt(f"p{n}", (1, FIRST)) for n in range(N)]))


ARMS = [(None, "exact", "greedy"), (Relaying, "exact", "greedy")] + [
    (Relaying, "rejection", proposals) for proposals in ("greedy", "sampled")
]


@pytest.fixture(scope="module")
def decoded() -> dict[tuple, list[Response]]:
    return {arm: responses(*arm) for arm in ARMS}


@pytest.mark.parametrize("arm", ARMS, ids=lambda arm: "-".join([arm[0].__name__ if arm[0] else "ar", *arm[1:]]))
@pytest.mark.parametrize("start", [0, 1])
def test_three_tokens_in_a_row_follow_the_targets_law_jointly(decoded, arm, start):
    """Jointly: two draws that share a random number are each right alone."""
    outputs = np.array([r.output_ids for r in decoded[arm]])[:, start : start + 3]
    counts = np.zeros((V, V, V))
    np.add.at(counts, tuple(outputs.T), 1)
    first = (CHAIN[FIRST] @ torch.linalg.matrix_power(CHAIN, start)).numpy()
    chain = CHAIN.numpy()
    expected = N * first[:, None, None] * chain[:, :, None] * chain[None, :, :]
    assert ((counts - expected) ** 2 / expected).sum() < BOUND


def test_sampled_proposals_are_kept_as_often_as_the_two_laws_overlap(decoded):
    """sum of min(p, q) under rejection; a rule that compares tokens would keep sum of p q."""
    found = decoded[Relaying, "rejection", "sampled"]
    for anchor in range(V):
        kept = [r.accepted[0] >= 1 for r in found if r.output_ids[0] == anchor]
        overlap = torch.minimum(CHAIN[anchor], DRAFT).sum().item()
        spread = (overlap * (1 - overlap) / len(kept)) ** 0.5
        assert np.mean(kept) == pytest.approx(overlap, abs=4 * spread)


def test_exact_match_writes_what_plain_decoding_writes(decoded):
    plain = [r.output_ids for r in decoded[None, "exact", "greedy"]]
    assert [r.output_ids for r in decoded[Relaying, "exact", "greedy"]] == plain
    assert [r.output_ids for r in decoded[Relaying, "rejection", "sampled"]] != plain
