"""The target's key/value cache: preallocated, one length per row, rollback by changing a length.

It knows rows, lengths and cells.  It does not know what a token is, who proposed it, or how attention is computed; the
attention function writes through a `Step` and reads the view the step hands back.  Sliding-window layers keep their
full length here (the window is a mask), so that nothing is ever evicted that a rollback could want back.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


class RaggedCache:
    """Keys and values of `rows` sequences, each at a length of its own.

    Layer tensors are [rows, kv_heads, capacity, head_dim] and are allocated by the first write of a layer, because
    layers of one model may differ in their number of heads.  Cells at or past a row's length hold garbage: they are
    never visible, and a batch view that covers them zeroes them first, since 0 x NaN would not be nothing.
    """

    def __init__(self, rows: int, capacity: int, device: torch.device | str = "cpu") -> None:
        if rows < 1 or capacity < 1:
            raise ValueError(f"a cache of {rows} rows and {capacity} cells holds nothing; both must be at least 1")
        self.rows, self.capacity, self.device = rows, capacity, torch.device(device)
        self.keys: dict[int, Tensor] = {}
        self.values: dict[int, Tensor] = {}
        self.lengths = [0] * rows
        self._touched = [0] * rows  # cells below this may hold garbage; above it they are zero since allocation

    def begin(self, rows: Sequence[int], width: int) -> Step:
        """Open a forward pass that appends `width` tokens to each of `rows`, for every layer alike.

        The tokens become part of a row only when `commit` says so.  Raises ``ValueError`` if a row would overflow.
        """
        starts = [self.lengths[row] for row in rows]
        end = max(starts) + width
        if end > self.capacity:
            raise ValueError(
                f"row {rows[starts.index(max(starts))]} holds {max(starts)} tokens and would grow by {width}, past the "
                f"capacity of {self.capacity}; allocate prompt + max_new_tokens + block"
            )
        for row, start in zip(rows, starts, strict=True):
            if start + width < min(end, self._touched[row]):  # once per sequence: afterwards nothing is left to zero
                self._zero(row, start + width, self._touched[row])
                self._touched[row] = start + width
            self._touched[row] = max(self._touched[row], start + width)
        return Step(self, list(rows), starts, width)

    def commit(self, row: int, tokens: int) -> None:
        """Make the first `tokens` of the last pass part of `row`; the rest is rolled back by this alone."""
        length = self.lengths[row] + tokens
        if tokens < 0 or length > self._touched[row]:
            raise ValueError(
                f"row {row} cannot commit {tokens} tokens: {self._touched[row] - self.lengths[row]} written"
            )
        self.lengths[row] = length

    def reset(self, row: int) -> None:
        """Forget a row's sequence, so that another may use its place."""
        self.lengths[row] = 0

    def copy_row(self, source: RaggedCache, source_row: int, row: int) -> None:
        """Begin `row` with everything `source_row` of `source` holds (a shared prefix, computed once)."""
        length = source.lengths[source_row]
        for layer in source.keys:
            self._allocate(layer, source.keys[layer])
            self.keys[layer][row, :, :length] = source.keys[layer][source_row, :, :length]
            self.values[layer][row, :, :length] = source.values[layer][source_row, :, :length]
        self.lengths[row] = length
        self._touched[row] = max(self._touched[row], length)

    def poison(self) -> None:
        """Fill every cell past each row's length with NaN (tests: such cells must never matter)."""
        for row, length in enumerate(self.lengths):
            for tensor in (*self.keys.values(), *self.values.values()):
                tensor[row, :, length:] = float("nan")
            self._touched[row] = self.capacity

    def _zero(self, row: int, start: int, end: int) -> None:
        for tensor in (*self.keys.values(), *self.values.values()):
            tensor[row, :, start:end] = 0

    def _allocate(self, layer: int, like: Tensor) -> None:  # like: [*, kv_heads, *, head_dim]
        if layer not in self.keys:
            shape = (self.rows, like.shape[1], self.capacity, like.shape[3])
            self.keys[layer] = torch.zeros(shape, dtype=like.dtype, device=like.device)
            self.values[layer] = torch.zeros(shape, dtype=like.dtype, device=like.device)


class Step:
    """One forward pass over `width` new tokens in each of B rows: where they go, and what they may see."""

    def __init__(self, cache: RaggedCache, rows: list[int], starts: list[int], width: int) -> None:
        self.cache, self.rows, self.starts, self.width = cache, rows, starts, width
        self.end = max(starts) + width
        device = cache.device
        first = torch.tensor(starts, device=device)
        self.positions = first[:, None] + torch.arange(width, device=device)[None, :]  # [B, width]
        self._contiguous = rows == list(range(rows[0], rows[0] + len(rows)))
        self._row_index = None if len(rows) == 1 else torch.tensor(rows, device=device)
        self._masks: dict[tuple[int | None, torch.dtype], Tensor | None] = {}

    def write(self, layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Store this pass's keys and values [B, kv_heads, width, head_dim]; return those of positions 0..end-1.

        The result is [B, kv_heads, end, head_dim], a view wherever the rows lie side by side.
        """
        cache = self.cache
        cache._allocate(layer, key)
        keys, values = cache.keys[layer], cache.values[layer]
        if self._row_index is None:
            row, start = self.rows[0], self.starts[0]
            keys[row, :, start : self.end] = key[0]
            values[row, :, start : self.end] = value[0]
        else:
            where = (self._row_index[:, None], slice(None), self.positions)
            keys[where] = key.transpose(1, 2)
            values[where] = value.transpose(1, 2)
        if self._contiguous:
            span = slice(self.rows[0], self.rows[0] + len(self.rows))
            return keys[span, :, : self.end], values[span, :, : self.end]
        return (
            keys[:, :, : self.end].index_select(0, self._row_index),
            values[:, :, : self.end].index_select(0, self._row_index),
        )

    def mask(self, window: int | None, dtype: torch.dtype) -> Tensor | None:
        """Additive mask [B, 1, width, end] of what each new token may see, None where it may see everything.

        A token at position i sees positions j <= i, and with a sliding `window` only j > i - window.
        """
        key = (window, dtype)
        if key not in self._masks:
            self._masks[key] = self._build_mask(window, dtype)
        return self._masks[key]

    @property
    def from_scratch(self) -> bool:
        """Whether this is the first pass over a single empty row, where plain causality is the whole mask."""
        return len(self.rows) == 1 and self.starts[0] == 0

    def _build_mask(self, window: int | None, dtype: torch.dtype) -> Tensor | None:
        inside = window is None or self.end <= window
        if self.width == 1 and inside and min(self.starts) == max(self.starts):
            return None
        cells = torch.arange(self.end, device=self.cache.device)
        seen = cells <= self.positions[:, :, None]  # [B, width, end]
        if not inside:
            seen &= cells > self.positions[:, :, None] - window
        mask = torch.zeros(seen.shape, dtype=dtype, device=seen.device).masked_fill_(~seen, float("-inf"))
        return mask[:, None]
