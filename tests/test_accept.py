"""Accept rules proved by distribution, not by argument.

pytest tests/test_accept.py
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from harness.accept import Draws, accept_exact, accept_rejection, invert, pick, probabilities, stream_key, uniforms

V, K, N = 6, 2, 20_000


@pytest.fixture(scope="module")
def logits():
    """Target logits [K+1, V] that do not depend on what was drafted, so that every marginal is known exactly."""
    return torch.randn(K + 1, V, generator=torch.Generator().manual_seed(1)) * 1.5


def chi_square(counts: np.ndarray, probs: np.ndarray) -> float:
    expected = probs * counts.sum()
    return float(((counts - expected) ** 2 / expected).sum())


# 0.999 quantile of chi-square with V-1 = 5 degrees of freedom (standard tables).
BOUND = 20.515


def draws(count: int) -> Draws:
    keys = np.array([stream_key(0, f"p{i}", 0) for i in range(count)], dtype=np.uint64)
    return Draws(keys, np.full(count, 11))


def run(rule: str, logits: torch.Tensor, temperature: float = 1.0):
    """First and second emitted token of N rounds, in which drafts follow a law far from the target's."""
    d = draws(N)
    q = torch.softmax(torch.linspace(2, -2, V), 0).expand(N, K, V).double()
    batch = logits.expand(N, K + 1, V)
    if rule == "exact":
        tokens = pick(logits)[:K].expand(N, K)
        accepted, chosen = accept_exact(batch, tokens, temperature, d)
    elif rule == "rejection-greedy":
        tokens = logits[:K].topk(2).indices[:, 1].expand(N, K)  # greedy for a drafter that errs
        accepted, chosen = accept_rejection(batch, tokens, None, temperature, d)
    else:
        tokens = invert(q, d.at("draft", K, batch.device))
        accepted, chosen = accept_rejection(batch, tokens, q, temperature, d)
    emitted = torch.cat([tokens, torch.zeros(N, 1, dtype=torch.int64)], 1)
    emitted[torch.arange(N), accepted] = chosen
    return accepted, emitted


@pytest.mark.parametrize("rule", ["exact", "rejection-greedy", "rejection-sampled"])
@pytest.mark.parametrize("temperature", [0.7, 1.0])
def test_every_rule_emits_the_targets_distribution(rule, temperature, logits):
    accepted, emitted = run(rule, logits, temperature)
    for position in range(K + 1):
        live = accepted >= position
        counts = np.bincount(emitted[live, position].numpy(), minlength=V)
        assert counts.sum() > 200
        probs = probabilities(logits[position], temperature).numpy()
        assert chi_square(counts, probs) < BOUND, (rule, position)


def test_the_chi_square_test_can_fail(logits):
    """Greedy proposals accepted with the probability of sampled ones (p/q, q soft) are not lossless, and it shows."""
    q = torch.softmax(torch.linspace(2, -2, V), 0).expand(N, K, V).double()
    tokens = torch.zeros(N, K, dtype=torch.int64)  # the argmax of q, where its distribution q says they were drawn
    accepted, chosen = accept_rejection(logits.expand(N, K + 1, V), tokens, q, 1.0, draws(N))
    first = torch.where(accepted > 0, tokens[:, 0], chosen)
    counts = np.bincount(first.numpy(), minlength=V)
    assert chi_square(counts, probabilities(logits[0], 1.0).numpy()) > BOUND


def test_exact_match_emits_what_plain_sampling_would(logits):
    """The next token is the target's sample at that position's own uniform, however many drafts went before it."""
    d = draws(500)
    batch = logits.expand(500, K + 1, V)
    plain = invert(probabilities(batch, 1.0), d.at("target", K + 1, batch.device))
    for tokens in (plain[:, :K], (plain[:, :K] + 1) % V):
        accepted, chosen = accept_exact(batch, tokens, 1.0, d)
        assert torch.equal(chosen, plain.gather(1, accepted[:, None])[:, 0])
    assert (accepted == 0).all()


@pytest.mark.parametrize("accepted", range(K + 1))
def test_exact_match_counts_the_leading_run(accepted, logits):
    tokens = pick(logits)[None, :K].clone()
    if accepted < K:
        tokens[0, accepted] = (tokens[0, accepted] + 1) % V
    got, chosen = accept_exact(logits[None], tokens, 0.0, draws(1))
    assert got.item() == accepted and chosen.item() == pick(logits)[accepted].item()


def test_a_tie_goes_to_the_lowest_index():
    assert pick(torch.tensor([[0.0, 2.0, 2.0, 1.0]])).item() == 1


def test_inverse_cdf_hits_every_token_with_mass_and_no_other():
    probs = torch.tensor([0.0, 0.25, 0.0, 0.5, 0.25, 0.0], dtype=torch.float64)
    grid = torch.arange(0, 1, 1 / 64, dtype=torch.float64)
    tokens = invert(probs.expand(64, 6), grid)
    assert torch.bincount(tokens, minlength=6).tolist() == [0, 16, 0, 32, 16, 0]
    assert invert(probs, torch.tensor(1 - 2**-53, dtype=torch.float64)).item() == 4


def test_a_position_drafted_again_is_drawn_anew():
    """The slots of one round and of the next differ pairwise, though they draft the same positions."""
    keys = draws(1).keys
    rounds = [Draws(keys, np.array([anchor])).at("draft", 8, torch.device("cpu"))[0].tolist() for anchor in range(50)]
    assert len({uniform for drawn in rounds for uniform in drawn}) == 400
    many = draws(5000).at("draft", 20, torch.device("cpu")).flatten()
    counts = np.bincount((many.numpy() * V).astype(int), minlength=V)
    assert chi_square(counts, np.full(V, 1 / V)) < BOUND


def test_uniforms_depend_on_key_position_and_stream_and_on_nothing_else():
    keys = np.array([stream_key(0, "a", 0), stream_key(0, "b", 0), stream_key(1, "a", 0), stream_key(0, "a", 1)])
    at = uniforms(keys.astype(np.uint64), np.tile(np.arange(50), (4, 1)), "target")
    assert len(np.unique(at)) == at.size
    alone = uniforms(keys[1:2].astype(np.uint64), np.array([[7]]), "target")
    assert alone[0, 0] == at[1, 7]
    assert uniforms(keys[:1].astype(np.uint64), np.array([[7]]), "draft")[0, 0] != at[0, 7]
    many = uniforms(keys[:1].astype(np.uint64), np.arange(100_000)[None], "accept")[0]
    counts = np.bincount((many * V).astype(int), minlength=V)
    assert many.min() >= 0 and many.max() < 1 and chi_square(counts, np.full(V, 1 / V)) < BOUND
    assert abs(np.corrcoef(many[:-1], many[1:])[0, 1]) < 0.01
