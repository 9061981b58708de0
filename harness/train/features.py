"""Target features of trajectories: computed once and kept in memory if they fit a budget, else computed per step.

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

log = logging.getLogger(__name__)

#: Padded tokens of one target forward while features are cached: large enough to be efficient, small in memory.
TOKENS_A_FORWARD = 4096
#: A common beginning shorter than this is not worth a cache of its own.
SHARED_AT_LEAST = 64


class FeatureStore:
    """Features of trajectories by index.  `cached` says whether they were kept, in the target's dtype, unrounded.

    shared: tokens that all trajectories begin with, 0 if too few to bother.
    """

    def __init__(
        self,
        target: Target,
        taps: tuple[int, ...],
        trajectories: Sequence[Trajectory],
        budget_gb: float,
        between: Callable[[], None] = lambda: None,
    ) -> None:
        """`between` is called between forward passes; it may raise to stop (a signal, a dead parent)."""
        self.target, self.taps = target, taps
        self.shared = common_prefix(trajectories)
        self.width = len(taps) * target.hidden_size
        if self.shared:
            self._prefix = RaggedCache(1, self.shared, target.device)
            ids = torch.tensor([trajectories[0].ids[: self.shared]], device=target.device)
            self._first = target.forward(ids, self._prefix, [0], taps=taps, logits="none").taps[0]  # [shared, F]
            self._prefix.commit(0, self.shared)
        tokens = self.shared + sum(len(t) - self.shared for t in trajectories)
        self.gigabytes = (tokens + 1) * self.width * target.dtype.itemsize / 2**30
        self.cached = self.gigabytes <= budget_gb
        log.info(
            "features: %d tokens (%d shared) x %d, %.2f GB: %s",
            tokens,
            self.shared,
            self.width,
            self.gigabytes,
            "computed once" if self.cached else f"more than {budget_gb:.2f} GB, computed again at every step",
        )
        if self.cached and trajectories:
            self._fill(trajectories, between)

    def batch(self, batch: Batch) -> Tensor:
        """Features of a batch, [B, S, F], on the target's device; finite but meaningless past each sequence's end."""
        if not self.cached:
            rest = self._rest(batch.ids.to(self.target.device))
            return torch.cat([self._first.expand(len(rest), -1, -1), rest], dim=1) if self.shared else rest
        steps = torch.arange(batch.ids.shape[1])
        own = self._starts[list(batch.indices)][:, None] + steps - self.shared
        index = torch.where(steps < self.shared, steps, own)
        index = index.masked_fill(steps >= batch.lengths[:, None], len(self._flat) - 1)
        return self._flat[index].to(self.target.device)

    def _rest(self, ids: Tensor) -> Tensor:  # [B, S] -> [B, S - shared, F]
        """Features of what follows the shared beginning.  Causal, so padding on the right changes nothing before it."""
        if not self.shared:
            return self.target.features(ids, self.taps)
        rows = range(len(ids))
        cache = RaggedCache(len(ids), ids.shape[1], self.target.device)
        for row in rows:
            cache.copy_row(self._prefix, 0, row)
        return self.target.forward(ids[:, self.shared :], cache, rows, taps=self.taps, logits="none").taps

    def _fill(self, trajectories: Sequence[Trajectory], between: Callable[[], None]) -> None:
        lengths = [len(t) - self.shared for t in trajectories]
        self._starts = torch.tensor([self.shared, *lengths]).cumsum(0)[:-1]
        # Rows: the shared beginning, each trajectory's rest, and zeros at which all padding points.
        self._flat = torch.zeros(self.shared + sum(lengths) + 1, self.width, dtype=self.target.dtype)
        if self.shared:
            self._flat[: self.shared] = self._first.cpu()
        with tqdm(total=len(lengths), desc="target features", unit="seq", mininterval=2) as bar:
            for indices in _groups(lengths):
                between()
                features = self._rest(collate(trajectories, indices).ids.to(self.target.device)).cpu()
                for row, index in enumerate(indices):
                    start = int(self._starts[index])
                    self._flat[start : start + lengths[index]] = features[row, : lengths[index]]
                bar.update(len(indices))


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
