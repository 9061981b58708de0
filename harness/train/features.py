"""Target features of the training set: computed once and kept in memory if they fit a budget, else computed
per step.

It knows the target's `features` and the shape of a batch.  It does not know what a drafter makes of them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm

from harness.train.corpus import Batch, Trajectory, collate

log = logging.getLogger(__name__)

#: Padded tokens of one target forward while the cache is filled: large enough to be efficient, small in
#: memory.
TOKENS_A_FORWARD = 4096


class FeatureStore:
    """Features of trajectories by index.  `cached` says whether they were kept.

    Cached features are the very numbers `Target.features` gave, in the target's dtype: nothing is rounded.
    """

    def __init__(
        self,
        target: Any,
        taps: tuple[int, ...],
        trajectories: Sequence[Trajectory],
        budget_gb: float,
        between: Callable[[], None] = lambda: None,
    ) -> None:
        """`between` is called between forward passes; it may raise to stop (a signal, a dead parent)."""
        self.target, self.taps = target, taps
        tokens = sum(len(t) for t in trajectories)
        self.width = len(taps) * target.hidden_size
        self.gigabytes = (tokens + 1) * self.width * target.dtype.itemsize / 2**30
        self.cached = self.gigabytes <= budget_gb
        log.info(
            "features: %d tokens x %d (%.2f GB) %s the budget of %.2f GB: %s",
            tokens,
            self.width,
            self.gigabytes,
            "fit" if self.cached else "exceed",
            budget_gb,
            "computed once" if self.cached else "computed again at every step",
        )
        if self.cached:
            self._fill(trajectories, between)

    def batch(self, batch: Batch) -> Tensor:
        """Features of a batch, [B, S, F]; zeros past each sequence's end where they are cached (nothing sees
        those).
        """
        if not self.cached:
            return self.target.features(batch.ids.to(self.target.device), self.taps)
        steps = torch.arange(batch.ids.shape[1])
        starts = self._starts[list(batch.indices)]
        index = torch.where(steps < batch.lengths[:, None], starts[:, None] + steps, len(self._flat) - 1)
        return self._flat[index].to(self.target.device)

    def _fill(self, trajectories: Sequence[Trajectory], between: Callable[[], None]) -> None:
        lengths = [len(t) for t in trajectories]
        self._starts = torch.tensor([0, *lengths]).cumsum(0)[:-1]
        # The last row stays zero: every padding cell points at it.
        self._flat = torch.zeros(sum(lengths) + 1, self.width, dtype=self.target.dtype)
        with tqdm(total=len(lengths), desc="target features", unit="seq", mininterval=2) as bar:
            for indices in _groups(lengths):
                between()
                batch = collate(trajectories, indices)
                features = self.target.features(batch.ids.to(self.target.device), self.taps).cpu()
                for row, index in enumerate(indices):
                    start = int(self._starts[index])
                    self._flat[start : start + lengths[index]] = features[row, : lengths[index]]
                bar.update(len(indices))


def _groups(lengths: Sequence[int]) -> list[list[int]]:
    """Indices in order of length, cut where padded tokens would pass `TOKENS_A_FORWARD`."""
    groups: list[list[int]] = [[]]
    for index in sorted(range(len(lengths)), key=lambda i: (lengths[i], i)):
        if groups[-1] and (len(groups[-1]) + 1) * lengths[index] > TOKENS_A_FORWARD:
            groups.append([])
        groups[-1].append(index)
    return [group for group in groups if group]
