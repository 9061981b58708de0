"""The learning curve: its rows, its file, and whether it has become flat.  It knows numbers, not how they
were made.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness.train.loss import Tally
from harness.train.state import write_bytes


@dataclass
class Curve:
    """Rows of ``learning_curve.csv``.

    step; learning_rate; loss: weighted training cross-entropy since the row before; heldout_ce: the same on
    held-out trajectories, always with the decay weights, so that it compares across objectives;
    accept_random_anchor: committed tokens a block at the training batches' random anchors (an optimistic
    figure, never compared with decoding);
    base_accept_random_anchor: the same if a sequential head's base branch drafted alone, a column only where one is;
    accept_walk: held-out greedy trajectories walked as the decoder would; blocks: supervised blocks so far;
    loss_round_q, accept_round_q: loss and committed tokens a block in the q-th reject-conditioned round, whose anchors
    are those the rounds before led to; the columns without a round are of the first, from plain masks;
    seconds of training so far; accuracy_k: held-out share of right argmaxes at distance k.
    """

    rows: list[dict[str, Any]] = field(default_factory=list)

    @property
    def step(self) -> int:
        return self.rows[-1]["step"] if self.rows else 0

    def add(
        self, step: int, rate: float, train: Sequence[Tally], heldout: Tally, walked: float, seconds: float, blocks: int
    ) -> None:
        self.rows.append(
            {
                "step": step,
                "learning_rate": rate,
                "loss": train[0].loss,
                "heldout_ce": heldout.loss,
                "accept_random_anchor": train[0].accepted,
                "accept_walk": walked,
                "blocks": blocks,
                "seconds": round(seconds, 1),
            }
            | ({"base_accept_random_anchor": train[0].base_accepted} if train[0].base_committed else {})
            | {f"loss_round_{q}": tally.loss for q, tally in enumerate(train[1:], start=1)}
            | {f"accept_round_{q}": tally.accepted for q, tally in enumerate(train[1:], start=1)}
            | {f"accuracy_{k}": value for k, value in enumerate(heldout.accuracy, start=1)}
        )

    def flat(self, percent: float) -> bool:
        """Held-out CE improved by less than `percent` over the last quarter of the steps so far, and `accept_walk`,
        where it is measured, gained less than that over the last third.

        A curve may stand still before it climbs (a drafter of two layers learns to look things up only after a
        thousand steps and more), so a flat curve proves a plateau only to whoever has seen a longer one.
        """
        better = relative_gain(self.rows, "heldout_ce", 0.75)
        if math.isnan(better) or -better * 100 >= percent:
            return False
        longer = self.walk_gain()
        return math.isnan(longer) or longer * 100 < percent

    def walk_gain(self) -> float:
        """Relative gain of accept_walk since the evaluation before the last third; nan if the curve is too short."""
        return relative_gain(self.rows, "accept_walk", 2 / 3)

    def write(self, path: Path) -> None:
        text = io.StringIO()
        writer = csv.DictWriter(text, fieldnames=list(self.rows[0]) if self.rows else ["step"], lineterminator="\n")
        writer.writeheader()
        writer.writerows({k: f"{v:.6g}" if isinstance(v, float) else v for k, v in row.items()} for row in self.rows)
        write_bytes(path, text.getvalue().encode())


def relative_gain(rows: Sequence[dict[str, Any]], name: str, share: float) -> float:
    """Relative change of `name` from the last row at or before `share` of the last step to the last row."""
    if not rows:
        return math.nan
    before = [row for row in rows if row["step"] <= share * rows[-1]["step"]]
    return rows[-1][name] / before[-1][name] - 1 if before and before[-1][name] else math.nan
