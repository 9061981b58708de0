"""AdamW over float32 masters, with warm-up, cosine decay and a clipped global norm.

It knows parameters and gradients; it does not know what made them.  Parameters in bfloat16 keep a float32
copy that is what the optimiser moves; the copy is rounded into the parameter after each step.  (Updates of
1e-4 relative size vanish in bfloat16's eight bits.)  float32 and float64 parameters are their own masters.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn


def learning_rate(step: int, steps: int, peak: float, warmup_ratio: float) -> float:
    """Rate of optimiser step `step` (0-based) of `steps`: linear up to `peak`, then a cosine that would reach
    0 at `steps`.

    A pure function of the step, so a resumed run cannot restart it.
    """
    warmup = round(steps * warmup_ratio)
    if step < warmup:
        return peak * (step + 1) / warmup
    return peak * 0.5 * (1 + math.cos(math.pi * (step - warmup) / max(1, steps - warmup)))


class MasterAdamW:
    """One optimiser for a module's trainable parameters.  Matrices decay, vectors (norms) do not."""

    def __init__(self, module: nn.Module, weight_decay: float, clip: float) -> None:
        named = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
        if not named:
            raise ValueError(f"{type(module).__name__} has no trainable parameter; there is nothing to train")
        self.names = [name for name, _ in named]
        self.parameters = [p for _, p in named]
        self.masters = [p if p.dtype.itemsize >= 4 else nn.Parameter(p.detach().float()) for p in self.parameters]
        self.clip = clip
        matrices = [m for m in self.masters if m.ndim >= 2]
        vectors = [m for m in self.masters if m.ndim < 2]
        groups = [
            {"params": matrices, "weight_decay": weight_decay},
            {"params": vectors, "weight_decay": 0.0},
        ]
        self.adamw = torch.optim.AdamW([g for g in groups if g["params"]], lr=0.0, fused=True)

    def step(self, rate: float) -> Tensor:
        """Clip, update at `rate`, and clear the gradients.  Returns the gradient norm before clipping (a scalar).

        Raises FloatingPointError, with no weight and no moment moved, if that norm is not finite.
        """
        for parameter, master in zip(self.parameters, self.masters, strict=True):
            if master is not parameter:
                master.grad = None if parameter.grad is None else parameter.grad.float()
        norm = nn.utils.clip_grad_norm_(self.masters, self.clip)
        if not torch.isfinite(norm):
            raise FloatingPointError(f"the norm of the gradient is {float(norm)}")
        for group in self.adamw.param_groups:
            group["lr"] = rate
        self.adamw.step()
        # The fused step leaves the versions alone, by which tables made of weights know that they are stale.
        torch.autograd.graph.increment_version(self.masters)
        with torch.no_grad():
            for parameter, master in zip(self.parameters, self.masters, strict=True):
                if master is not parameter:
                    parameter.copy_(master)
        self.clear()
        return norm

    def clear(self) -> None:
        for parameter, master in zip(self.parameters, self.masters, strict=True):
            parameter.grad = master.grad = None

    def state(self) -> dict[str, Any]:
        """Masters by parameter name, and AdamW's moments."""
        masters = {name: m.detach().clone() for name, m in zip(self.names, self.masters, strict=True)}
        return {"masters": masters, "adamw": self.adamw.state_dict()}

    def restore(self, state: dict[str, Any]) -> None:
        if list(state["masters"]) != self.names:
            raise ValueError(f"the saved state holds parameters {list(state['masters'])}, the drafter has {self.names}")
        with torch.no_grad():
            for name, parameter, master in zip(self.names, self.parameters, self.masters, strict=True):
                master.copy_(state["masters"][name])
                parameter.copy_(master)
        self.adamw.load_state_dict(state["adamw"])
