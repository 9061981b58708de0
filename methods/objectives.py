"""How much each predicted position counts in the loss.  Knows offsets from the anchor; no model, no labels.

The trainer multiplies these weights with its own validity mask and divides the weighted sum by the sum of
weights.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Decay:
    """``exp(-(k - 1) / gamma)`` for the token at distance ``k >= 1`` from the anchor (DFlash, appendix A.1).

    Counting distance, not slots, makes it one rule for both alignments.  gamma: 7 for block 16, 4 for block 8.
    """

    gamma: float

    def __post_init__(self) -> None:
        if not (self.gamma > 0 and math.isfinite(self.gamma)):
            raise ValueError(f"gamma is {self.gamma}; the decay needs a positive finite number")

    def weights(self, offsets: Tensor, losses: Tensor | None = None, hits: Tensor | None = None) -> Tensor:
        """Weights of the positions at `offsets` [L], broadcastable to [..., L].

        losses, hits: [..., L] detached cross entropies and whether the argmax is right, for objectives that
        look at what the drafter can do already; this one does not.
        """
        return torch.exp(-(offsets.to(torch.float32) - 1) / self.gamma)


OBJECTIVES: dict[str, Callable[[float], Decay]] = {"decay": Decay}


def objective(name: str, gamma: float) -> Decay:
    """The objective called `name`.  Raises ``ValueError`` listing the known ones."""
    if name not in OBJECTIVES:
        raise ValueError(f"unknown objective {name!r}; known objectives: {', '.join(sorted(OBJECTIVES))}")
    return OBJECTIVES[name](gamma)
