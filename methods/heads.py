"""From denoised slots to tokens.  A head knows logits and the order of slots; no cache and no position.

Two ways in: `train_logits` is teacher-forced (every slot at once, true tokens as prefix), `draft` is the
inference procedure (a sequential head reads the tokens it has just drafted).  Both see slots through
`BlockLayout`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from methods.config import DrafterConfig
from methods.contract import SENTINEL, Proposal, Sampling, TargetBinding


class DraftError(RuntimeError):
    """A draft no decoder should verify: logits that are not finite, or a slot never drafted.

    row: which of the rows that were drafted together, counted from 0; None where it is of no single one.
    """

    def __init__(self, message: str, row: int | None = None) -> None:
        super().__init__(message)
        self.row = row


class TrainLogits(NamedTuple):
    """Logits of the supervised slots, [..., supervised, V_d]; base is without the head's correction, if any."""

    final: Tensor
    base: Tensor | None


class DraftBuffer:
    """Collects the proposals of one round, chosen from logits greedily or by inverse CDF, and their q.

    Starts filled with `SENTINEL`; `proposal` refuses a slot that was never written.  draft_vocab [V_d] maps
    the ids of the logits to target ids.
    """

    def __init__(
        self,
        batch: int,
        count: int,
        vocab_size: int,
        device: torch.device,
        *,
        sampling: Sampling | None = None,
        draft_vocab: Tensor | None = None,
        keep_logits: bool = False,
    ):
        self.tokens = torch.full((batch, count), SENTINEL, dtype=torch.int64, device=device)
        self.vocab_size, self.sampling, self.draft_vocab = vocab_size, sampling, draft_vocab
        self.q: list[Tensor] = []
        self.logits: list[Tensor] | None = [] if keep_logits else None
        self._sums: list[Tensor] = []

    def write(self, first: int, logits: Tensor) -> Tensor:  # [B, n, V_d] -> [B, n]
        """Choose the proposals ``first .. first+n-1`` from their logits; returns them as target ids."""
        span = slice(first, first + logits.shape[1])
        # A sum is finite only if all its terms are: one cheap pass, read once per round in `proposal`.
        self._sums.append(logits.sum(-1, dtype=torch.promote_types(logits.dtype, torch.float32)))
        if self.logits is not None:
            self.logits.append(logits)
        if self.sampling is None:
            chosen = logits.argmax(-1)
        else:
            chosen = self._sample(logits, self.sampling.uniforms[:, span])
        if self.draft_vocab is not None:
            chosen = self.draft_vocab[chosen]
        self.tokens[:, span] = chosen
        return chosen

    def _sample(self, logits: Tensor, uniforms: Tensor) -> Tensor:  # [B, n, V_d], [B, n] -> [B, n]
        """Invert the distribution at `uniforms`, and keep that very distribution as q."""
        dtype = torch.promote_types(logits.dtype, torch.float32)
        q = torch.softmax(logits.to(dtype) / self.sampling.temperature, dim=-1)
        cdf = q.cumsum(-1, dtype=torch.float64)
        # Scaled to the last value, so that rounding can never reach past the last token with any probability.
        point = uniforms.to(torch.float64)[..., None] * cdf[..., -1:]
        chosen = torch.searchsorted(cdf, point, right=True)[..., 0].clamp(max=logits.shape[-1] - 1)
        if self.draft_vocab is not None:
            q = q.new_zeros(*q.shape[:-1], self.vocab_size).index_copy(-1, self.draft_vocab, q)
        self.q.append(q)
        return chosen

    def proposal(self, name: Callable[[int], str]) -> Proposal:
        """The finished round.  Raises `DraftError` naming, through `name(b)`, the row that is unusable."""
        sums = torch.cat(self._sums, dim=1) if self._sums else self.tokens
        finite = torch.isfinite(sums).all(1)
        written = (self.tokens != SENTINEL).all(1)
        if not (finite & written).all():
            for b, (is_finite, is_written) in enumerate(zip(finite.tolist(), written.tolist(), strict=True)):
                if not is_finite:
                    raise DraftError(f"draft logits of {name(b)} are not finite; look for NaN in taps or weights", b)
                if not is_written:
                    raise DraftError(
                        f"{name(b)} left a proposal unwritten: {self.tokens[b].tolist()}; "
                        f"the head must write all {self.tokens.shape[1]} slots",
                        b,
                    )
        return Proposal(self.tokens, torch.cat(self.q, dim=1) if self.q else None)


class Head(nn.Module):
    """Base of all heads.  The `binding` they are given has a `head` over the drafter's own vocabulary, V_d."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        self.layout = config.layout

    def base_share(self, progress: float) -> float:
        """Weight of `TrainLogits.base` in the loss at `progress` (0 to 1) of training; `final` has the rest."""
        return 0.0

    def train_logits(self, hidden: Tensor, tokens: Tensor, binding: TargetBinding) -> TrainLogits:
        """Teacher-forced logits.  hidden: [..., block, H]; tokens: [..., block] true tokens at p..p+block-1,
        of which the slot that predicts p+k may read those before p+k only."""
        raise NotImplementedError

    def draft(self, hidden: Tensor, anchors: Tensor, buffer: DraftBuffer, binding: TargetBinding) -> None:
        """Write all proposals into `buffer`.  hidden: [B, block, H]; anchors: [B] anchor tokens."""
        raise NotImplementedError


class PlainHead(Head):
    """Slots are independent given the block: the target's own head on each (DFlash)."""

    def train_logits(self, hidden: Tensor, tokens: Tensor, binding: TargetBinding) -> TrainLogits:
        slots = self.layout.supervised_slots
        # Contiguous, or the product becomes one small one per block, each reading the head's weights anew.
        return TrainLogits(binding.head(hidden[..., slots.start : slots.stop, :].contiguous()), None)

    def draft(self, hidden: Tensor, anchors: Tensor, buffer: DraftBuffer, binding: TargetBinding) -> None:
        slots = self.layout.proposing_slots
        buffer.write(0, binding.head(hidden[:, slots.start : slots.stop].contiguous()))


class DominoHead(Head):
    """A GRU over the block's tokens corrects each slot's logits (Domino section 5).

    ``L = Head(h) + W2 SiLU(W1 [h; s])``, h the slot's denoised state, s [G] the GRU's state after every token of the
    block before the one the slot predicts, the anchor included.  The first `pure_prefix` proposals are the backbone's
    alone.  Parameters are named and shaped as in the released checkpoints; only the tokens' embeddings, which are the
    target's, are read from outside.
    """

    #: Entries of a table of the GRU's input products, by token, up to which it is made once instead of slot by slot.
    TABLE_ENTRIES = 2**22

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__(config)
        options = config.head_options
        self.pure_prefix, self.vocab_size = options.pure_prefix, config.vocab_size
        self.prefix_gru = nn.GRU(config.hidden_size, options.gru_size, bias=False, batch_first=True)
        self.embed_proj = nn.Sequential(
            nn.Linear(config.hidden_size + options.gru_size, options.rank, bias=False),
            nn.SiLU(),
            nn.Linear(options.rank, config.draft_vocab_size or config.vocab_size, bias=False),
        )
        self._table: Tensor | None = None
        self._table_version: tuple = ()

    def base_share(self, progress: float) -> float:
        """1 at the start, 0 at the end: the backbone learns first, the correction ever more (Domino section 5.2)."""
        return 1.0 - progress

    def train_logits(self, hidden: Tensor, tokens: Tensor, binding: TargetBinding) -> TrainLogits:
        slots = self.layout.supervised_slots
        hidden = hidden[..., slots.start : slots.stop, :].contiguous()
        base = binding.head(hidden)
        pure = min(self.pure_prefix, len(slots))
        if pure == len(slots):
            return TrainLogits(base, base)
        # The slot that predicts p+k has read the tokens at p..p+k-1, of which there are k.
        read = tokens[..., : len(slots)].flatten(0, -2)
        states, _ = self.prefix_gru(binding.embed(read).to(hidden.dtype))
        corrected = torch.cat((hidden, states.view(*hidden.shape[:-1], -1)), dim=-1)[..., pure:, :]
        final = torch.cat((base[..., :pure, :], base[..., pure:, :] + self.embed_proj(corrected)), dim=-2)
        return TrainLogits(final, base)

    def draft(self, hidden: Tensor, anchors: Tensor, buffer: DraftBuffer, binding: TargetBinding) -> None:
        slots = self.layout.proposing_slots
        hidden = hidden[:, slots.start : slots.stop].contiguous()
        base = binding.head(hidden)  # [B, K, V_d]
        first, last = self.embed_proj[0].weight, self.embed_proj[2]
        split = hidden.shape[-1]
        from_hidden = nn.functional.linear(hidden, first[:, :split])  # the slots' half of W1, for all at once
        pure = min(self.pure_prefix, len(slots))
        read = [anchors]  # what the GRU has to read before proposals 0, 1, ...
        if pure:
            read += buffer.write(0, base[:, :pure]).unbind(1)
        if pure == len(slots):
            return
        state = hidden.new_zeros(len(hidden), self.prefix_gru.hidden_size)
        for token in read[:-1]:
            state = self._step(token, state, binding)
        token = read[-1]
        for k in range(pure, len(slots)):
            state = self._step(token, state, binding)
            inner = nn.functional.silu(from_hidden[:, k] + nn.functional.linear(state, first[:, split:]))
            token = buffer.write(k, (base[:, k] + last(inner))[:, None])[:, 0]

    def _step(self, token: Tensor, state: Tensor, binding: TargetBinding) -> Tensor:  # [B], [B, G] -> [B, G]
        """One step of the GRU on target token ids, as `torch.nn.GRU` defines it."""
        reset_in, update_in, new_in = self._input(token, state.dtype, binding).chunk(3, dim=-1)
        products = nn.functional.linear(state, self.prefix_gru.weight_hh_l0)
        reset_state, update_state, new_state = products.chunk(3, dim=-1)
        reset, update = torch.sigmoid(reset_in + reset_state), torch.sigmoid(update_in + update_state)
        new = torch.tanh(new_in + reset * new_state)
        return new + update * (state - new)

    def _input(self, token: Tensor, dtype: torch.dtype, binding: TargetBinding) -> Tensor:  # [B] -> [B, 3G]
        """The token's input product, from a table where one is small enough to be worth having."""
        weight = self.prefix_gru.weight_ih_l0
        if torch.is_grad_enabled() or self.vocab_size * len(weight) > self.TABLE_ENTRIES:
            return nn.functional.linear(binding.embed(token).to(dtype), weight)
        version = (weight.data_ptr(), weight._version, dtype, binding.embed)
        if version != self._table_version:
            every = torch.arange(self.vocab_size, device=token.device)
            self._table = nn.functional.linear(binding.embed(every).to(dtype), weight)
            self._table_version = version
        return self._table[token]


HEADS: dict[str, type[Head]] = {"plain": PlainHead, "domino": DominoHead}
