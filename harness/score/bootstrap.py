"""Intervals: of ratios of sums and of paired differences, over prompts and over seeds.

Knows arrays of sums. Does not know what was summed. Every draw has a fixed key made of the suite and the
numbers of seeds and prompts, so two methods on the same prompts are resampled alike (that is what pairs them)
and a report is reproducible.

Two parts are added. **Prompts** are resampled, the same for every seed: a hard prompt is hard under all of
them. **Seeds** are too few to resample (of two, no draw lies outside the two): the figure under each seed alone
varies about their mean by Student's t with S - 1 degrees of freedom, exact for normal deviations. Two seeds
hence give a very wide interval, as they should. One seed says nothing about others; its interval is over
prompts only.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np

KEY = 20260609


@dataclass(frozen=True)
class Interval:
    """An estimate with the limits of its interval; by_seed: the estimate under each seed alone."""

    value: float
    low: float
    high: float
    by_seed: tuple[float, ...] = ()

    def within(self, least: float, most: float) -> Interval:
        """The same with limits that the figure can take: no share lies above 1, however few the seeds."""
        low, high = (min(max(limit, least), most) for limit in (self.low, self.high))
        return replace(self, low=low, high=high)


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

    @property
    def by_seed(self) -> np.ndarray:  # -> [S]
        """The ratio of totals under each seed alone; NaN for one without data."""
        return _divide(self.above.sum(axis=1), self.below.sum(axis=1))

    def only(self, seeds: Sequence[int], prompts: Sequence[str]) -> Sums:
        """The same for some of the seeds and prompts, in the order given."""
        at = np.ix_([self.seeds.index(seed) for seed in seeds], [self.prompts.index(name) for name in prompts])
        return Sums(self.suite, tuple(seeds), tuple(prompts), self.above[at], self.below[at])


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
    """The ratio of totals, all seeds together, under `resamples` draws of prompts."""
    prompts = len(part.prompts)
    generator = np.random.default_rng((KEY, prompts, zlib.crc32(part.suite.encode())))
    weights = generator.multinomial(prompts, np.full(prompts, 1 / prompts), size=resamples).astype(np.float64)
    return _divide(weights @ part.above.sum(axis=0), weights @ part.below.sum(axis=0))


def seed_deviations(by_seed: np.ndarray, resamples: int) -> np.ndarray:  # [S] -> [R]
    """How far the mean over the seeds may lie from that over all seeds there could be; 0 for one seed."""
    count = len(by_seed)
    if count < 2:
        return np.zeros(resamples)
    return by_seed.std(ddof=1) / np.sqrt(count) * _students_t(count - 1, resamples)


@lru_cache
def _students_t(freedom: int, resamples: int) -> np.ndarray:  # -> [R]
    """Student's t by its quantiles, in random order: plain draws are too few for the tails that decide."""
    generator = np.random.default_rng((KEY, freedom))
    many = generator.standard_t(freedom, 400_000)
    return generator.permutation(np.quantile(many, (np.arange(resamples) + 0.5) / resamples))


def interval(value: float, draws: np.ndarray, by_seed: np.ndarray, confidence: float) -> Interval:
    """Percentile interval of draws over prompts, widened by what the seeds say; NaN where no draw is defined."""
    usable = (draws + seed_deviations(by_seed[np.isfinite(by_seed)], len(draws)))[np.isfinite(draws)]
    seeds = tuple(map(float, by_seed))
    if not len(usable):
        return Interval(value, float("nan"), float("nan"), seeds)
    low, high = np.quantile(usable, [(1 - confidence) / 2, (1 + confidence) / 2])
    return Interval(value, float(low), float(high), seeds)


def ratio_interval(part: Sums, resamples: int, confidence: float) -> Interval:
    """The ratio of totals with its interval."""
    return mean_interval([part], resamples, confidence)


def mean_interval(parts: Sequence[Sums], resamples: int, confidence: float) -> Interval:
    """The plain mean of several suites' ratios; a seed is one drafter in all of them, prompts are drawn by suite."""
    seeds = _shared([part.seeds for part in parts])
    by_seed = np.mean([part.only(seeds, part.prompts).by_seed for part in parts], axis=0)
    value = float(np.mean([part.value for part in parts]))
    return interval(value, _mean_draws(parts, resamples), by_seed, confidence)


def paired(parts: Sequence[Sums], baselines: Sequence[Sums]) -> tuple[list[Sums], list[Sums]]:
    """Both sides with what they have in common: the seeds of all suites, the prompts of each; the rest is left out.

    Raises ValueError where a pair of suites has no prompt, or no seed, in common.
    """
    seeds = _shared([part.seeds for part in (*parts, *baselines)])
    if not seeds:
        raise ValueError("the two methods have no seed in common; decode both with the same seeds")
    ours, theirs = [], []
    for part, base in zip(parts, baselines, strict=True):
        prompts = _shared([part.prompts, base.prompts])
        if not prompts:
            raise ValueError(
                f"suite {part.suite}: the two methods have no prompt in common; decode both on the same prompts"
            )
        ours.append(part.only(seeds, prompts))
        theirs.append(base.only(seeds, prompts))
    return ours, theirs


def gain_interval(parts: Sequence[Sums], baselines: Sequence[Sums], resamples: int, confidence: float) -> Interval:
    """Relative gain of the mean over suites, paired by prompt id and by seed; what only one of the two has is left out.

    Raises ValueError where a pair of suites has no prompt, or no seed, in common.
    """
    ours, theirs = paired(parts, baselines)
    above, below = (np.mean([part.value for part in side]) for side in (ours, theirs))
    draws = _divide(_mean_draws(ours, resamples), _mean_draws(theirs, resamples)) - 1
    by_seed = _divide(*(np.mean([part.by_seed for part in side], axis=0) for side in (ours, theirs))) - 1
    return interval(float(_divide(above, below)) - 1, draws, by_seed, confidence)


def _mean_draws(parts: Sequence[Sums], resamples: int) -> np.ndarray:  # -> [R]
    return np.mean([replicates(part, resamples) for part in parts], axis=0)


def _shared(names: Sequence[Iterable[Any]]) -> list[Any]:
    return sorted(set.intersection(*map(set, names)))


def _divide(above: Any, below: Any) -> Any:
    above, below = np.asarray(above, dtype=np.float64), np.asarray(below, dtype=np.float64)
    return np.divide(above, below, out=np.full(np.broadcast(above, below).shape, np.nan), where=below != 0)
