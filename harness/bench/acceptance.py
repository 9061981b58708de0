"""Scripted acceptance: how many proposals each round is made to accept where random weights would accept none.

It knows distributions over 0..K accepted proposals: recorded, given, or of a law with a mean.  It does not know who
accepts, nor what a round costs.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from harness.records import read_records
from harness.report.inputs import PLAIN

#: How far given chances may miss a sum of one: they are typed with a few digits.
ROUNDING = 1e-3


@dataclass(frozen=True)
class Acceptance:
    """chances: [K+1] that a round accepts 0, 1, ... K proposals, of sum 1.  said: where they come from, in words."""

    chances: tuple[float, ...]
    said: str

    @property
    def mean(self) -> float:
        """Accepted proposals of a round; it commits one token more, the target's own."""
        return sum(count * chance for count, chance in enumerate(self.chances))

    def script(self, rounds: int, rows: int, seed: int) -> Tensor:  # -> [rounds, rows] int64
        """Accepted counts of every round and row, drawn independently; the same for the same seed."""
        draw = torch.Generator().manual_seed(seed)
        chances = torch.tensor(self.chances, dtype=torch.float64)
        return torch.multinomial(chances, rounds * rows, replacement=True, generator=draw).view(rounds, rows)


def read_acceptance(text: str, proposals: int) -> Acceptance:
    """What ``--acceptance`` says, for rounds of `proposals` (K).

    A file name is one of records (`harness.records`); numbers with commas are the chances of 0, 1, 2, ... accepted; one
    number is the mean of the law by which each proposal in turn is accepted with one and the same chance.  Raises
    ``ValueError`` that names the value and the mend, ``FileNotFoundError`` for a file that is not there.
    """
    if Path(text).suffix == ".jsonl" or Path(text).is_file():
        return recorded(Path(text), proposals)
    try:
        numbers = [float(word) for word in text.split(",") if word.strip()]
    except ValueError:
        raise ValueError(
            f"--acceptance is {text!r}: neither a file of records nor numbers; give a .jsonl of the pipeline, chances "
            "such as 0.3,0.3,0.4, or a mean"
        ) from None
    if "," not in text and len(numbers) == 1:
        return geometric(numbers[0], proposals)
    return given(numbers, proposals)


def recorded(path: Path, proposals: int) -> Acceptance:
    """The shares of accepted counts over all rounds of a file of records, as they were before stops and budgets."""
    records = read_records(path)
    if any(record.get("method") == PLAIN for record in records):
        raise ValueError(f"--acceptance {path}: records of {PLAIN}, which proposes nothing; give those of a drafter")
    counts = Counter(count for record in records for count in record.get("accepted", ()))
    if not counts:
        raise ValueError(f"--acceptance {path}: {len(records)} records without a round; give records of a drafter")
    if max(counts) > proposals:
        raise ValueError(
            f"--acceptance {path}: a round accepted {max(counts)} proposals, and one makes {proposals} here; give "
            "records of a drafter with as short a block"
        )
    total = counts.total()
    name = "/".join(path.parts[-2:])
    return _named([counts[n] / total for n in range(proposals + 1)], f"recorded in {name}, {total} rounds")


def given(chances: Sequence[float], proposals: int) -> Acceptance:
    """Chances of 0, 1, 2, ... accepted; those that are left out are 0."""
    if not chances:
        raise ValueError("--acceptance gives an empty distribution; name at least the chance of accepting nothing")
    wrong = next((c for c in chances if not (math.isfinite(c) and c >= 0)), None)
    if wrong is not None:
        raise ValueError(f"--acceptance has a chance of {wrong:g}; chances are numbers from 0 to 1")
    if len(chances) > proposals + 1:
        raise ValueError(
            f"--acceptance gives {len(chances)} chances, for 0 to {len(chances) - 1} accepted, and a round makes "
            f"{proposals} proposals here; give {proposals + 1} at most"
        )
    total = sum(chances)
    if abs(total - 1) > ROUNDING:
        raise ValueError(f"--acceptance gives chances of sum {total:g}; they must sum to 1")
    filled = [*chances, *[0.0] * (proposals + 1 - len(chances))]
    return _named([chance / total for chance in filled], "given chances")


def geometric(mean: float, proposals: int) -> Acceptance:
    """The truncated geometric law of this mean: each proposal in turn is accepted with the same chance, up to K."""
    if not 0 <= mean <= proposals:
        raise ValueError(
            f"--acceptance is a mean of {mean:g}; a round makes {proposals} proposals here, so take 0 to {proposals}"
        )
    low, high = 0.0, 1.0  # the mean is the sum of chance ** k for k = 1..K, which rises with the chance
    for _ in range(60):
        chance = (low + high) / 2
        low, high = (chance, high) if sum(chance**k for k in range(1, proposals + 1)) < mean else (low, chance)
    chance = high
    runs = [chance**count * (1 - chance) for count in range(proposals)] + [chance**proposals]
    return _named(runs, f"geometric law, each proposal with chance {chance:.3f}")


def _named(chances: Sequence[float], origin: str) -> Acceptance:
    made = Acceptance(tuple(chances), origin)
    return Acceptance(made.chances, f"scripted acceptance: {origin}, mean {made.mean:.2f} of {len(chances) - 1}")
