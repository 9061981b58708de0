"""Who decides the next token: one `pick`, one counter-based uniform per position, two accept rules.

It knows logits, proposals and random numbers; it does not know caches, models or methods.

Randomness is counter-based: the uniform at an absolute position depends on (seed, prompt id, turn, position) and on a
stream, on nothing else, not on the batch, the method or the round.  Under exact match the target's sample at a position
is its inverse CDF at that uniform, so the output at T > 0 is token-identical to plain decoding for every drafter.

Proposals alone are drawn by (anchor, slot): a position that was refused is drafted again in the next round, and a
relay makes that draft depend on what was refused.  The same uniform twice would then make proposals that do not follow
the q they are judged by, and rejection sampling would no longer emit the target's distribution.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

#: Streams never share a number: the target's samples, the drafter's, the accept tests, the residual draws.
STREAMS = {"target": 1, "draft": 2, "accept": 3, "residual": 4}
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def stream_key(seed: int, prompt_id: str, turn: int) -> int:
    """64 bits that stand for one response under one seed."""
    digest = hashlib.blake2b(f"{seed}\x1f{prompt_id}\x1f{turn}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")


def uniforms(keys: np.ndarray, positions: np.ndarray, stream: str) -> np.ndarray:
    """One uniform in [0, 1) per key and position, float64 [B, S].

    keys: [B] uint64 from `stream_key`; positions: [B, S] absolute positions of the tokens to be drawn.
    """
    return (_bits(keys, positions, stream) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _bits(keys: np.ndarray, counters: np.ndarray, stream: str) -> np.ndarray:  # [B], [B, S] -> [B, S] uint64
    """The finaliser of SplitMix64 (Steele, Lea and Flood 2014) twice: once to bind the stream, once the counter."""
    with np.errstate(over="ignore"):
        bound = _mix(keys.astype(np.uint64) + np.uint64(STREAMS[stream]) * _GOLDEN)
        return _mix(bound[:, None] + (counters.astype(np.uint64) + np.uint64(1)) * _GOLDEN)


def _mix(x: np.ndarray) -> np.ndarray:
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def pick(logits: Tensor) -> Tensor:  # [..., V] -> [...]
    """The greedy token; the lowest index wins a tie, for baseline and verifier alike."""
    return logits.argmax(dim=-1)


def probabilities(logits: Tensor, temperature: float) -> Tensor:  # [..., V] -> [..., V] float64
    """softmax(logits / temperature)."""
    return torch.softmax(logits.to(torch.float64) / temperature, dim=-1)


def invert(probs: Tensor, uniform: Tensor) -> Tensor:  # [..., V] float64, [...] -> [...]
    """The token at which the cumulated probability first exceeds `uniform` times the total."""
    cdf = probs.cumsum(dim=-1)
    index = torch.searchsorted(cdf, (uniform * cdf[..., -1])[..., None], right=True)[..., 0]
    # Rounding may leave the last cells of the CDF below their total: the last token with any mass is meant then.
    last = probs.shape[-1] - 1 - (probs.flip(-1) > 0).to(torch.int8).argmax(dim=-1)
    return torch.minimum(index, last)


@dataclass(frozen=True)
class Draws:
    """The random numbers of one round: a key per row and the anchor's position per row."""

    keys: np.ndarray  # [B] uint64
    anchors: np.ndarray  # [B] int64, position of the anchor (-1 + prompt length for a prefill)

    def at(self, stream: str, count: int, device: torch.device) -> Tensor:  # -> [B, count] float64
        """Uniforms for the tokens at anchor+1 .. anchor+count; those of "draft" are this round's alone."""
        positions = self.anchors[:, None] + 1 + np.arange(count)[None, :]
        keys = self.keys
        if stream == "draft":  # see the head of this module
            keys = _bits(keys, self.anchors[:, None], stream)[:, 0]
        return torch.from_numpy(uniforms(keys, positions, stream)).to(device)


def target_choice(logits: Tensor, temperature: float, draws: Draws) -> Tensor:  # [B, S, V] -> [B, S]
    """What the target itself says after each row: its argmax, or its sample at the position's own uniform."""
    if temperature == 0:
        return pick(logits)
    return invert(probabilities(logits, temperature), draws.at("target", logits.shape[1], logits.device))


def accept_exact(logits: Tensor, tokens: Tensor, temperature: float, draws: Draws) -> tuple[Tensor, Tensor]:
    """Accept the longest prefix of proposals equal to the target's own choices.

    logits: [B, K+1, V]; tokens: [B, K].  Returns accepted [B] and next_token [B].  The choices beyond the first
    mismatch are conditioned on a rejected token and leave this function with nobody.
    """
    chosen = target_choice(logits, temperature, draws)
    accepted = (chosen[:, :-1] == tokens).to(torch.int64).cumprod(dim=1).sum(dim=1)
    return accepted, chosen.gather(1, accepted[:, None])[:, 0]


def accept_rejection(
    logits: Tensor, tokens: Tensor, q: Tensor | None, temperature: float, draws: Draws
) -> tuple[Tensor, Tensor]:
    """Speculative rejection sampling (Leviathan et al. 2023, algorithm 1): keep x with probability min(1, p(x)/q(x)),
    and at the first refusal draw from the normalised positive part of p - q.

    q: [B, K, V] the distribution the proposals were drawn from, or None for greedy proposals (one-hot).
    """
    batch, count = tokens.shape
    p = probabilities(logits, temperature)
    if count == 0:
        return torch.zeros(batch, dtype=torch.int64, device=logits.device), target_choice(logits, temperature, draws)[
            :, 0
        ]
    p_token = p[:, :-1].gather(2, tokens[..., None])[..., 0]
    q_token = torch.ones_like(p_token) if q is None else q.to(p.dtype).gather(2, tokens[..., None])[..., 0]
    kept = draws.at("accept", count, logits.device) * q_token < p_token
    accepted = kept.to(torch.int64).cumprod(dim=1).sum(dim=1)

    row = torch.arange(batch, device=logits.device)
    refused = accepted.clamp(max=count - 1)
    at = p[row, accepted]  # [B, V]
    minus = torch.zeros_like(at)
    if q is None:
        minus[row, tokens[row, refused]] = 1.0
    else:
        minus = q.to(p.dtype)[row, refused]
    minus = torch.where((accepted < count)[:, None], minus, torch.zeros_like(minus))
    residual = (at - minus).clamp(min=0)
    residual = torch.where(residual.sum(-1, keepdim=True) > 0, residual, at)  # p == q up to rounding
    uniform = draws.at("residual", count + 1, logits.device)[row, accepted]
    return accepted, invert(residual, uniform)
