"""Intervals: a bootstrap over seeds, then prompts, of ratios of sums; and paired differences by prompt id.

Knows arrays of sums. Does not know what was summed. Every draw has a fixed key made of the suite and the
numbers of seeds and prompts, so two methods on the same prompts are resampled alike (that is what pairs them)
and a report is reproducible.

Prompts are drawn once per replicate and shared by the seeds drawn: the same prompts are used under every
seed, so a hard prompt is hard under all of them, and drawing anew for each seed would make intervals too
narrow.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

KEY = 20260609


@dataclass(frozen=True)
class Interval:
    """An estimate with the limits of its percentile interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Sums:
    """Numerators and denominators by seed and prompt, float64 [S, P]; a cell without data is 0 / 0."""

    suite: str
    seeds: tuple[int, ...]
    prompts: tuple[str, ...]
    above: np.ndarray
    below: np.ndarray

    @property
    def value(self) -> float:
        """The ratio of totals."""
        return float(_divide(self.above.sum(), self.below.sum()))

    def only(self, prompts: Sequence[str]) -> Sums:
        """The same for some of the prompts, in the order given."""
        at = [self.prompts.index(name) for name in prompts]
        return Sums(self.suite, self.seeds, tuple(prompts), self.above[:, at], self.below[:, at])


def sums(
    suite: str,
    records: Iterable[Mapping[str, Any]],
    above: Callable[[Mapping[str, Any]], float],
    below: Callable[[Mapping[str, Any]], float],
) -> Sums:
    """Add up records by seed and prompt id (both turns of a dialogue are one prompt)."""
    rows = list(records)
    seeds = tuple(sorted({record["seed"] for record in rows}))
    prompts = tuple(sorted({record["prompt_id"] for record in rows}))
    row, column = {s: i for i, s in enumerate(seeds)}, {p: i for i, p in enumerate(prompts)}
    table = np.zeros((2, len(seeds), len(prompts)))
    for record in rows:
        cell = row[record["seed"]], column[record["prompt_id"]]
        table[0][cell] += above(record)
        table[1][cell] += below(record)
    return Sums(suite, seeds, prompts, table[0], table[1])


def replicates(part: Sums, resamples: int) -> np.ndarray:  # -> [R]
    """The ratio of totals under `resamples` draws of seeds and prompts."""
    seeds, prompts = len(part.seeds), len(part.prompts)
    # the draw of seeds does not depend on the suite: suites averaged together share their drafters
    of_seeds = _weights(seeds, resamples, (KEY, seeds))
    of_prompts = _weights(prompts, resamples, (KEY, prompts, zlib.crc32(part.suite.encode())))
    above = ((of_seeds @ part.above) * of_prompts).sum(axis=1)
    below = ((of_seeds @ part.below) * of_prompts).sum(axis=1)
    return _divide(above, below)


def interval(value: float, draws: np.ndarray, confidence: float) -> Interval:
    """Percentile interval; NaN where no replicate is defined."""
    usable = draws[np.isfinite(draws)]
    if not len(usable):
        return Interval(value, float("nan"), float("nan"))
    low, high = np.quantile(usable, [(1 - confidence) / 2, (1 + confidence) / 2])
    return Interval(value, float(low), float(high))


def ratio_interval(part: Sums, resamples: int, confidence: float) -> Interval:
    """The ratio of totals with its interval."""
    return interval(part.value, replicates(part, resamples), confidence)


def mean_interval(parts: Sequence[Sums], resamples: int, confidence: float) -> Interval:
    """The plain mean of several suites' ratios; seeds are drawn together, prompts suite by suite."""
    draws = np.mean([replicates(part, resamples) for part in parts], axis=0)
    return interval(float(np.mean([part.value for part in parts])), draws, confidence)


def gain_interval(parts: Sequence[Sums], baselines: Sequence[Sums], resamples: int, confidence: float) -> Interval:
    """Relative gain of the mean over suites, paired by prompt id (and by seed where both have the same
    seeds).

    Raises ValueError where a pair of suites has no prompt in common.
    """
    ours, theirs, values = [], [], []
    for part, base in zip(parts, baselines, strict=True):
        shared = sorted(set(part.prompts) & set(base.prompts))
        if not shared:
            raise ValueError(
                f"suite {part.suite}: the two methods have no prompt in common; decode both on the same prompts"
            )
        part, base = part.only(shared), base.only(shared)
        ours.append(replicates(part, resamples))
        theirs.append(replicates(base, resamples))
        values.append((part.value, base.value))
    mine, other = (float(np.mean(column)) for column in zip(*values, strict=True))
    draws = _divide(np.mean(ours, axis=0), np.mean(theirs, axis=0)) - 1
    return interval(float(_divide(mine, other)) - 1, draws, confidence)


def _weights(count: int, resamples: int, key: tuple[int, ...]) -> np.ndarray:  # -> [R, count]
    """How often each of `count` things occurs in each draw of `count` with replacement."""
    generator = np.random.default_rng(key)
    return generator.multinomial(count, np.full(count, 1 / count), size=resamples).astype(np.float64)


def _divide(above: Any, below: Any) -> Any:
    above, below = np.asarray(above, dtype=np.float64), np.asarray(below, dtype=np.float64)
    return np.divide(above, below, out=np.full(np.broadcast(above, below).shape, np.nan), where=below != 0)
