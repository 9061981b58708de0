"""Target features of trajectories, and its keys: computed once and kept if they fit a budget, else at every step.

It knows the target's forward passes and the shape of a batch.  It does not know what a drafter makes of them.  What
all trajectories begin with (a few-shot prefix) is run once and held once, as the decoder does.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from tqdm import tqdm

from harness.cache import RaggedCache
from harness.target import Target
from harness.train.corpus import Batch, Trajectory, collate
from harness.train.verify import CollectStep, Past

log = logging.getLogger(__name__)

#: Padded tokens of one target forward while features are cached: large enough to be efficient, small in memory.
TOKENS_A_FORWARD = 4096
#: A common beginning shorter than this is not worth a cache of its own.
SHARED_AT_LEAST = 64


class FeatureStore:
    """Features of trajectories by index.  `cached` says whether they were kept, in the target's dtype, unrounded;
    `keys_cached` the same of the target's keys and values, which only rounds with a relay ask for.

    shared: tokens that all trajectories begin with, 0 if too few to bother.
    """

    def __init__(
        self,
        target: Target,
        taps: tuple[int, ...],
        trajectories: Sequence[Trajectory],
        budget_gb: float,
        between: Callable[[], None] = lambda: None,
        *,
        key_budget_gb: float = 0.0,
    ) -> None:
        """`between` is called between forward passes; it may raise to stop (a signal, a dead parent).

        key_budget_gb: gigabytes that keys and values may take; 0 keeps none.
        """
        self.target, self.taps = target, taps
        self.shared = common_prefix(trajectories)
        self.width = len(taps) * target.hidden_size
        self._prefix = RaggedCache(1, max(1, self.shared), target.device)
        if self.shared:
            ids = torch.tensor([trajectories[0].ids[: self.shared]], device=target.device)
            self._first = target.features_after(ids, self._prefix.begin([0], self.shared), taps)[0]  # [shared, F]
            self._prefix.commit(0, self.shared)
        tokens = self.shared + sum(len(t) - self.shared for t in trajectories) + 1
        self.gigabytes = tokens * self.width * target.dtype.itemsize / 2**30
        self.cached = self.gigabytes <= budget_gb
        self.keys_cached = False
        log.info(
            "features: %d tokens (%d shared) x %d, %.2f GB: %s",
            tokens - 1,
            self.shared,
            self.width,
            self.gigabytes,
            "computed once" if self.cached else f"more than {budget_gb:.2f} GB, computed again at every step",
        )
        self._flat_keys: dict[int, Tensor] = {}
        if trajectories and key_budget_gb:
            self._plan_keys(trajectories, tokens, key_budget_gb)
        if trajectories and (self.cached or self.keys_cached):
            self._fill(trajectories, tokens, between)

    def _plan_keys(self, trajectories: Sequence[Trajectory], tokens: int, budget_gb: float) -> None:
        """Allocate a place for every key and value, if there is room for them."""
        ids = collate(trajectories[:1], [0]).ids[:, : self.shared + 1].to(self.target.device)
        shapes = {layer: (t.shape[1], t.shape[3]) for layer, t in self._run(ids, keys=True)[1].keys.items()}
        size = tokens * sum(2 * heads * dim for heads, dim in shapes.values()) * self.target.dtype.itemsize / 2**30
        self.keys_cached = size <= budget_gb
        said = "computed once" if self.keys_cached else f"more than {budget_gb:.2f} GB, computed again at every step"
        log.info("keys of %d layers: %.2f GB: %s", len(shapes), size, said)
        if self.keys_cached:
            dtype = self.target.dtype
            self._flat_keys = {layer: torch.zeros(tokens, 2, *shape, dtype=dtype) for layer, shape in shapes.items()}

    def batch(self, batch: Batch) -> Tensor:
        """Features of a batch, [B, S, F], on the target's device; finite but meaningless past each sequence's end."""
        if not self.cached:
            return self._whole(self._run(batch.ids.to(self.target.device), keys=False)[0])
        return self._flat[self._index(batch)].to(self.target.device)

    def batch_with_past(self, batch: Batch) -> tuple[Tensor, Past]:
        """The same, and the target's keys and values [B, kv_heads, S, head_dim] up to the last tapped layer."""
        if self.keys_cached:
            index = self._index(batch)
            found = {layer: flat[index].to(self.target.device) for layer, flat in self._flat_keys.items()}
            sides = ({layer: t[:, :, i].transpose(1, 2) for layer, t in found.items()} for i in (0, 1))
            return self.batch(batch), Past(*sides)
        rest, past = self._run(batch.ids.to(self.target.device), keys=True)
        return self.batch(batch) if self.cached else self._whole(rest), past

    def _index(self, batch: Batch) -> Tensor:  # -> [B, S]
        steps = torch.arange(batch.ids.shape[1])
        own = self._starts[list(batch.indices)][:, None] + steps - self.shared
        index = torch.where(steps < self.shared, steps, own)
        return index.masked_fill(steps >= batch.lengths[:, None], len(self._flat) - 1)

    def _whole(self, rest: Tensor) -> Tensor:
        return torch.cat([self._first.expand(len(rest), -1, -1), rest], dim=1) if self.shared else rest

    def _run(self, ids: Tensor, *, keys: bool) -> tuple[Tensor, Past | None]:  # [B, S] -> [B, S - shared, F]
        """Features of what follows the shared beginning and, if asked for, the keys of all of it.

        Causal, so padding on the right changes nothing before it.
        """
        if not self.shared and not keys:
            return self.target.features(ids, self.taps), None
        if not self.shared:
            step = CollectStep(ids.shape[1], ids.device)
            return self.target.features_after(ids, step, self.taps), step.past
        rows = list(range(len(ids)))
        cache = RaggedCache(len(ids), ids.shape[1], self.target.device)
        for row in rows:
            cache.copy_row(self._prefix, 0, row)
        step = cache.begin(rows, ids.shape[1] - self.shared)
        features = self.target.features_after(ids[:, self.shared :], step, self.taps)
        return features, Past(cache.keys, cache.values)

    def _fill(self, trajectories: Sequence[Trajectory], tokens: int, between: Callable[[], None]) -> None:
        """Run every trajectory once.  Rows of what is kept: the shared beginning, each trajectory's rest, and zeros at
        which all padding points."""
        lengths = [len(t) - self.shared for t in trajectories]
        self._starts = torch.tensor([self.shared, *lengths]).cumsum(0)[:-1]
        self._flat = torch.zeros(tokens, self.width if self.cached else 0, dtype=self.target.dtype)
        if self.shared and self.cached:
            self._flat[: self.shared] = self._first.cpu()
        for layer, flat in self._flat_keys.items() if self.shared else ():
            self._keep(flat, 0, Past(self._prefix.keys, self._prefix.values), layer, 0, 0, self.shared)
        with tqdm(total=len(lengths), desc="target features", unit="seq", mininterval=2) as bar:
            for indices in _groups(lengths):
                between()
                ids = collate(trajectories, indices).ids.to(self.target.device)
                features, past = self._run(ids, keys=self.keys_cached)
                for row, index in enumerate(indices):
                    start, length = int(self._starts[index]), lengths[index]
                    if self.cached:
                        self._flat[start : start + length] = features[row, :length].cpu()
                    for layer, flat in self._flat_keys.items():
                        self._keep(flat, start, past, layer, row, self.shared, length)
                bar.update(len(indices))

    @staticmethod
    def _keep(flat: Tensor, start: int, past: Past, layer: int, row: int, first: int, length: int) -> None:
        for side, tensors in enumerate((past.keys, past.values)):
            cells = tensors[layer][row, :, first : first + length]  # [kv_heads, length, head_dim]
            flat[start : start + length, side] = cells.transpose(0, 1).cpu()


def common_prefix(trajectories: Sequence[Trajectory]) -> int:
    """Tokens that all trajectories begin with, never a whole one; 0 below `SHARED_AT_LEAST`."""
    if len(trajectories) < 2:
        return 0
    first, most = trajectories[0].ids, min(len(t) for t in trajectories) - 1
    for other in trajectories[1:]:
        ids = other.ids
        most = next((i for i in range(most) if ids[i] != first[i]), most)
    return most if most >= SHARED_AT_LEAST else 0


def _groups(lengths: Sequence[int]) -> list[list[int]]:
    """Indices in order of length, cut where padded tokens would pass `TOKENS_A_FORWARD`."""
    groups: list[list[int]] = [[]]
    for index in sorted(range(len(lengths)), key=lambda i: (lengths[i], i)):
        if groups[-1] and (len(groups[-1]) + 1) * lengths[index] > TOKENS_A_FORWARD:
            groups.append([])
        groups[-1].append(index)
    return [group for group in groups if group]
