"""Comparisons of two entrants: the gain in acceptance length of the first over the second, by suite and on average,
and whether it follows what the verifier knew.

Knows pairing, and what stands beside a gain so that it can be believed or not: the rescue rate of the second, the
training time of both.  Does not know files, nor how a comparison is shown.

Everything in a row is over the seeds and prompts that both sides have, so that its gain is the ratio of its two
acceptance lengths.  `rescue_1_4` is the second's: what its rejected rows knew that its own drafts, on masks 1 to 4,
did not (`harness/gauge.py`).  If a relay works by what it carries, its gain is larger where this is.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from harness.gauge import drafted, knowledge
from harness.report.cells import BOUNDS, Settings, tau_sums, training_flags
from harness.report.inputs import AVERAGE, Inputs, Key
from harness.score import bootstrap

Pair = tuple[str, str]
#: A correlation of fewer suites than this is one whatever the numbers are.
LEAST_SUITES = 3


def compare(inputs: Inputs, pairs: Sequence[Pair], settings: Settings) -> tuple[list[dict[str, Any]], list[str]]:
    """Rows of comparisons.csv, by temperature, target and pair, suites before their average; and notes on what is
    left out.  The average is there only where all suites are: one over fewer would be read as one over all.
    """
    rows, notes = [], []
    for temperature in inputs.temperatures:
        for target in inputs.targets:
            for first, second in pairs:
                both = [
                    suite
                    for suite in inputs.suites
                    if all(Key(target, name, temperature, suite) in inputs.records for name in (first, second))
                ]
                found = _Pairing(inputs, settings, target, temperature, first, second)
                made = [row for suite in both if (row := found.row([suite], suite))]
                missing = [suite for suite in inputs.suites if suite not in {row["suite"] for row in made}]
                if made and not missing and (average := found.row(both, AVERAGE)):
                    made.append(average)
                rows += made
                notes += found.notes(missing, averaged=bool(made) and made[-1]["suite"] == AVERAGE)
    return rows, notes


@dataclass(frozen=True)
class _Pairing:
    """One pair of entrants on one target at one temperature."""

    inputs: Inputs
    settings: Settings
    target: str
    temperature: float
    first: str
    second: str

    def row(self, suites: Sequence[str], name: str) -> dict[str, Any] | None:
        """The comparison over the mean of `suites`; None without a seed that both sides have in all of them."""
        sides = [[tau_sums(self.inputs, self._key(side, s)) for s in suites] for side in (self.first, self.second)]
        if not set.intersection(*(set(part.seeds) for side in sides for part in side)):
            return None
        ours, theirs = bootstrap.paired(*sides)
        gain = bootstrap.gain_interval(*sides, self.settings.resamples, self.settings.confidence)
        gain = gain.within(*BOUNDS["gain"])
        rescue = [self._rescue(part) for part in theirs]
        return {
            "target": self.target,
            "temperature": self.temperature,
            "first": self.first,
            "second": self.second,
            "suite": name,
            "seeds": len(ours[0].seeds),
            "gain": gain.value,
            "gain_low": gain.low,
            "gain_high": gain.high,
            "gain_by_seed": gain.by_seed,
            "rescue_1_4": sum(rescue) / len(rescue),
            "tau_first": sum(part.value for part in ours) / len(ours),
            "tau_second": sum(part.value for part in theirs) / len(theirs),
            "train_minutes_first": train_minutes(self.inputs, self.target, self.first),
            "train_minutes_second": train_minutes(self.inputs, self.target, self.second),
            "flags": "; ".join(self._flags()),
        }

    def _key(self, entrant: str, suite: str) -> Key:
        return Key(self.target, entrant, self.temperature, suite)

    def _rescue(self, part: bootstrap.Sums) -> float:
        """Of the second side, over the seeds and prompts compared; NaN without a trace."""
        seeds, prompts = set(part.seeds), set(part.prompts)
        records = self.inputs.records[self._key(self.second, part.suite)]
        compared = [r for r in records if r["seed"] in seeds and r["prompt_id"] in prompts and drafted(r)]
        return knowledge(compared)["rescue_1_4"]

    def _flags(self) -> list[str]:
        sides = (self.first, self.second)
        return [f"{side} {flag}" for side in sides for flag in training_flags(self.inputs, self._key(side, AVERAGE))]

    def notes(self, missing: Sequence[str], averaged: bool) -> list[str]:
        """What is left out of this pair: suites, seeds, the average."""
        where = f"`{self.first}` over `{self.second}` on {self.target}, T = {self.temperature:g}"
        notes = []
        if len(missing) == len(self.inputs.suites):
            return [f"{where} is left out: they have no records of the same suite and seed."]
        if missing:
            notes.append(f"{where}: no average, for both have no records of {', '.join(missing)} with the same seed.")
        elif not averaged:
            notes.append(f"{where}: no average, for no seed is in all suites of both.")
        alone = {side: self._seeds(side) for side in (self.first, self.second)}
        for side, other in ((self.first, self.second), (self.second, self.first)):
            more = sorted(alone[side] - alone[other])
            if more:
                notes.append(f"{where}: left out, for only `{side}` has it: seed {', '.join(map(str, more))}.")
        return notes

    def _seeds(self, side: str) -> set[int]:
        keys = [self._key(side, suite) for suite in self.inputs.suites]
        return {record["seed"] for key in keys for record in self.inputs.records.get(key, ())}


def train_minutes(inputs: Inputs, target: str, entrant: str) -> float | None:
    """Mean over the seeds' drafters, in minutes; of an entrant with borrowed weights, what their lender took."""
    return _mean_mark(inputs, target, entrant, "seconds", 60)


def train_steps(inputs: Inputs, target: str, entrant: str) -> float | None:
    """Mean over the seeds' drafters, likewise."""
    return _mean_mark(inputs, target, entrant, "steps", 1)


def _mean_mark(inputs: Inputs, target: str, entrant: str, name: str, unit: float) -> float | None:
    marks = [mark[name] for mark in inputs.done.get((target, entrant), ()) if mark.get(name) is not None]
    return sum(marks) / len(marks) / unit if marks else None


def follows(rows: Sequence[Mapping[str, Any]]) -> tuple[float, float, int]:
    """How the gain goes with the rescue rate across suites: Pearson's and Spearman's correlation, and over how many
    suites.  NaN for fewer than three, or where one of the two is the same in all.

    rows: those of one target, temperature and pair.
    """
    points = [(row["rescue_1_4"], row["gain"]) for row in rows if row["suite"] != AVERAGE]
    points = [point for point in points if all(map(math.isfinite, point))]
    if len(points) < LEAST_SUITES:
        return math.nan, math.nan, len(points)
    rescue, gain = (np.array(values) for values in zip(*points, strict=True))
    return _pearson(rescue, gain), _pearson(_ranks(rescue), _ranks(gain)), len(points)


def _pearson(x: np.ndarray, y: np.ndarray) -> float:  # [N], [N]
    return float(np.corrcoef(x, y)[0, 1]) if np.ptp(x) and np.ptp(y) else math.nan


def _ranks(values: np.ndarray) -> np.ndarray:  # [N] -> [N]
    """Rank of each value; equal ones share the mean of theirs."""
    return pd.Series(values).rank().to_numpy()
