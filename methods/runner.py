"""A drafter at work in the decoder: one context cache for all rows, each row at its own length.

It knows which cells of the cache belong to which row.  It does not know the target, the accept rule, or when
to stop.  Only context features stay in the cache; the keys and values of a block stand in the cells after
them, for the one round they are needed, and are overwritten by whatever comes next.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
import torch.nn.functional as F
from torch import Tensor

from methods.backbone import Angles, Attend, ContextWeights
from methods.contract import Proposal, Sampling, Verdict
from methods.drafter import BlockDrafter
from methods.relays import RelayState, Verified
from methods.visibility import cache_mask


class Phases:
    """Who is told what a runner is doing, a clock for instance; this one does not listen, at a tenth of a microsecond.

    `head`: from denoised slots to proposals, their check included.  `relay`: a block's inputs with the relayed states,
    and what a verification leaves for the next block.  The embeddings of anchor and mask, which every method looks up,
    are made in between and count as relay where there is one.  Without a relay that phase is never entered.
    """

    _silence = nullcontext()

    def phase(self, name: str) -> AbstractContextManager[None]:
        """Entered before the work called `name`, left behind it, as often as it is done in a round."""
        return self._silence


class BlockDraftRunner:
    """Implements `contract.Drafter` for any `BlockDrafter`.

    rows: how many sequences at once.  capacity: context positions a row can hold (prompt plus response).  relay False
    leaves every mask plain, whatever the drafter has learned.  phases: who is told when head and relay are at
    work, None for nobody.

    The `rows` arguments are int64 [B], without repetition; they and `Verdict.accepted` may stay on the CPU, and
    then the only wait for a GPU is the one that reads whether the draft logits were finite.
    Raises ``ValueError`` for a capacity the drafter's positions do not reach, for a row that is not in use and
    for a sequence longer than the capacity; `DraftError` for a draft that no decoder should verify.
    """

    def __init__(
        self, drafter: BlockDrafter, rows: int, capacity: int, *, relay: bool = True, phases: Phases | None = None
    ) -> None:
        config, weight = drafter.config, drafter.backbone.norm.weight
        if capacity > config.max_position_embeddings:
            raise ValueError(
                f"capacity is {capacity}, but the drafter knows {config.max_position_embeddings} positions; "
                "lower the capacity"
            )
        self.drafter, self.layout, self.capacity = drafter, drafter.layout, capacity
        self.phases = phases or Phases()
        self.num_proposals, self.taps = drafter.layout.num_proposals, config.taps
        self.device = weight.device
        # Past the capacity: room for the block, or for all rows of a verification.
        cells = capacity + max(self.layout.block_size, self.num_proposals + 1)
        shape = (config.num_layers, 2, rows, config.num_key_value_heads, cells, config.head_dim)
        self.cache = torch.zeros(shape, dtype=weight.dtype, device=self.device)
        self.lengths: list[int | None] = [None] * rows  # context cells of each row, None where it is idle
        self.rounds = [0] * rows
        self._swept = [cells] * rows  # cells from the block's end up to here are known to be finite
        self.anchors = torch.zeros(rows, dtype=torch.int64, device=self.device)
        self._weights: ContextWeights | None = None
        self._weights_version: tuple = ()
        self._relay = self._empty_relay(rows) if drafter.relay.uses_states and relay else None
        self._hidden: Tensor | None = None  # of the blocks last drafted, for a relay that asks for it

    # -- the contract ---------------------------------------------------------------------------------------

    @torch.no_grad()
    def start(self, rows: Tensor, prompt_taps: Sequence[Tensor], anchors: Tensor) -> None:
        """See `contract.Drafter.start`.  prompt_taps: one [T_i, F] for each row; anchors: [B]."""
        self._refresh_weights()
        for row, taps in zip(rows.tolist(), prompt_taps, strict=True):
            self._check_room(row, len(taps))
            self.lengths[row], self.rounds[row] = 0, 0
            self._append([row], slice(row, row + 1), self.drafter.context(taps.to(self.device)[None]))
            self.lengths[row] = self._swept[row] = len(taps)
            if self._relay is not None:
                self._relay.live[row] = False
        self.anchors[rows.to(self.device)] = anchors.to(self.device)

    @torch.no_grad()
    def propose(self, rows: Tensor, sampling: Sampling | None = None) -> Proposal:
        """See `contract.Drafter.propose`."""
        host = rows.tolist()
        hidden, anchors = self._denoise(host)
        if self._relay is not None and self.drafter.relay.uses_hidden:
            with self.phases.phase("relay"):
                if self._hidden is None:
                    self._hidden = hidden.new_zeros(len(self.lengths), *hidden.shape[1:])
                self._hidden[self._select(host)] = hidden

        def name(b: int) -> str:
            return f"row {host[b]} in round {self.rounds[host[b]]} (anchor at position {self.lengths[host[b]]})"

        with self.phases.phase("head"):
            return self.drafter.draft(hidden, anchors, sampling, name)

    @torch.no_grad()
    def draft_logits(self, rows: Tensor) -> Tensor:
        """Logits [B, K, V_d] that greedy proposals would be chosen from now; no round is affected by asking."""
        hidden, anchors = self._denoise(rows.tolist())
        return torch.cat(self.drafter.fill(hidden, anchors, keep_logits=True).logits, dim=1)

    @torch.no_grad()
    def observe(self, rows: Tensor, verdict: Verdict) -> None:
        """See `contract.Drafter.observe`.  All K+1 verify rows are projected and written, so shapes never
        depend on what was accepted; only the accepted ones count towards the length."""
        host, accepted = self._in_use(rows.tolist()), verdict.accepted.tolist()
        for row, count in zip(host, accepted, strict=True):
            if not 0 <= count <= self.num_proposals:
                raise ValueError(f"row {row} accepted {count} proposals; a round has 0 to {self.num_proposals}")
            self._check_room(row, self.lengths[row] + count + 1)
        where = self._select(host)
        projected = self.drafter.fusion.project(verdict.taps.to(self.device))  # [B, K+1, H]
        self._append(host, where, self.drafter.fusion.hidden_norm(projected))
        next_token = verdict.next_token.to(self.device)
        self.anchors[where] = next_token
        if self._relay is not None:
            with self.phases.phase("relay"):
                hidden = None if self._hidden is None else self._hidden[where]
                counts, proposals = verdict.accepted.to(self.device), verdict.proposals.to(self.device)
                state = self.drafter.relay_state(Verified(projected, hidden, counts, next_token, proposals))
                for kept, new in zip(vars(self._relay).values(), vars(state).values(), strict=True):
                    kept[where] = new
        for row, count in zip(host, accepted, strict=True):
            self.lengths[row] += count + 1
            self.rounds[row] += 1

    def release(self, rows: Tensor) -> None:
        """See `contract.Drafter.release`."""
        for row in rows.tolist():
            self.lengths[row] = None

    def poison(self) -> None:
        """Fill every cell past each row's length with NaN: nothing may ever read them (for tests)."""
        for row, length in enumerate(self.lengths):
            self.cache[:, :, row, :, length or 0 :] = torch.nan
            self._swept[row] = length or 0

    # -- the cache ------------------------------------------------------------------------------------------

    def _denoise(self, host: list[int]) -> tuple[Tensor, Tensor]:
        """One block per row: hidden states [B, block, H] and anchor tokens [B]."""
        lengths = [self.lengths[row] for row in self._in_use(host)]
        where = self._select(host)
        anchors = self.anchors[where]
        angles, attend = self._attend_cache(host, where, lengths)
        if self._relay is None:
            x = self.drafter.block_inputs(anchors, None)
        else:
            with self.phases.phase("relay"):
                relay = RelayState(*(kept[where] for kept in vars(self._relay).values()))
                x = self.drafter.block_inputs(anchors, relay)
        return self.drafter.backbone(x, angles, attend), anchors

    def _attend_cache(self, host: list[int], where: slice | Tensor, lengths: list[int]) -> tuple[Angles, Attend]:
        """Angles of the block's positions, and attention over each row's own context and block."""
        width = max(lengths) + self.layout.block_size
        cells, positions, mask = self._cells(where, lengths, self.layout.block_size), None, None
        if isinstance(cells, slice):
            angles = self.drafter.backbone.rotary(cells)
        else:
            self._sweep(host, width)
            positions = cells[1]
            angles = self.drafter.backbone.rotary(positions).unsqueeze(1)
            mask = cache_mask(self.layout, positions[:, 0], width)

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            keys, values = self.cache[layer]
            if positions is None:
                keys[where, :, cells], values[where, :, cells] = k, v
            else:
                keys[cells[0], :, positions], values[cells[0], :, positions] = k.transpose(1, 2), v.transpose(1, 2)
            return F.scaled_dot_product_attention(
                q, keys[where, :, :width], values[where, :, :width], attn_mask=mask, enable_gqa=True
            )

        return angles, attend

    def _append(self, host: list[int], where: slice | Tensor, features: Tensor) -> None:
        """Write context features [B, n, H] of `host` rows into the cells after their lengths."""
        cells = self._cells(where, [self.lengths[row] for row in host], features.shape[1])
        rotary = self.drafter.backbone.rotary
        angles = rotary(cells if isinstance(cells, slice) else cells[1])
        projected = self.drafter.backbone.project_context(features, angles, self._weights)
        for side, new in enumerate(projected):  # keys, values: [B, n, layers, Hkv, D]
            if isinstance(cells, slice):
                self.cache[:, side, where, :, cells] = new.permute(2, 0, 3, 1, 4)
            else:
                self.cache[:, side].permute(1, 3, 0, 2, 4)[cells] = new

    def _cells(self, where: slice | Tensor, lengths: list[int], count: int) -> slice | tuple[Tensor, Tensor]:
        """The `count` cells after each row's length: one slice if all rows stand alike, else (rows [B, 1],
        cells [B, count]) to index with."""
        if isinstance(where, slice) and min(lengths) == max(lengths):
            return slice(lengths[0], lengths[0] + count)
        rows = where if isinstance(where, Tensor) else torch.arange(where.start, where.stop, device=self.device)
        start = torch.tensor(lengths, device=self.device)
        return rows[:, None], start[:, None] + torch.arange(count, device=self.device)

    def _sweep(self, host: list[int], width: int) -> None:
        """Zero what lies past a row's end inside a view of `width` cells: masked weights are zero, but zero
        times NaN is NaN, and a reused row may hold anything.  Each cell is zeroed once per sequence."""
        for row in host:
            if self._swept[row] < width:
                self.cache[:, :, row, :, max(self._swept[row], self.lengths[row]) : width] = 0
                self._swept[row] = width

    def _select(self, host: list[int]) -> slice | Tensor:
        """An index for `host` rows: a slice, and so a view, if they are neighbours."""
        if host == list(range(host[0], host[0] + len(host))):
            return slice(host[0], host[0] + len(host))
        return torch.tensor(host, device=self.device)

    # -- checks and state -----------------------------------------------------------------------------------

    def _in_use(self, host: list[int]) -> list[int]:
        for row in host:
            if self.lengths[row] is None:
                raise ValueError(f"row {row} holds no sequence; call start for it first")
        return host

    def _check_room(self, row: int, length: int) -> None:
        if length > self.capacity:
            raise ValueError(
                f"row {row} would hold {length} context positions; the runner's capacity is "
                f"{self.capacity}: build it larger or lower the token budget"
            )

    def _refresh_weights(self) -> None:
        """Stack the context projections anew if the drafter's weights were replaced or changed in place."""
        version = tuple((p.data_ptr(), p._version) for p in self.drafter.backbone.parameters())
        if version != self._weights_version:
            self._weights = self.drafter.backbone.context_weights()
            self._weights_version = version

    def _empty_relay(self, rows: int) -> RelayState:
        block, hidden = self.layout.block_size, self.drafter.config.hidden_size
        token = torch.zeros(rows, dtype=torch.int64, device=self.device)
        return RelayState(
            torch.zeros(rows, block, hidden, dtype=self.cache.dtype, device=self.device),
            torch.zeros(rows, block, dtype=torch.bool, device=self.device),
            token,
            token.clone(),
        )
