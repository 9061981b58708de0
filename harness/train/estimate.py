"""What a run will cost, said before it starts.  It knows clocks and peak memory; it does not know what a step
does.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Estimate:
    """Seconds of the worst and of an ordinary step (forward and backward), and peak memory so far, GB."""

    worst_seconds: float
    step_seconds: float
    peak_gb: float
    place: str

    def text(self, steps: int) -> str:
        total = steps * self.step_seconds
        span = f"{total / 60:.1f} min" if total < 7200 else f"{total / 3600:.1f} h"
        return (
            f"estimate: {self.step_seconds * 1e3:.0f} ms a step (largest batch "
            f"{self.worst_seconds * 1e3:.0f} ms), {steps} steps in "
            f"about {span} plus evaluations; peak memory on {self.place} "
            f"{self.peak_gb:.2f} GB, measured on the largest batch there is"
        )


def measure(worst: Callable[[], None], ordinary: list[Callable[[], None]], device: torch.device) -> Estimate:
    """Run the worst batch first (twice: the first pays for warm-up), then some ordinary ones.

    The callables do everything but the update, so measuring changes no weight.  A machine too small for the
    worst batch fails here, before any work.
    """
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    worst()
    worst_seconds = _seconds(worst, device)
    times = sorted(_seconds(call, device) for call in ordinary)
    return Estimate(worst_seconds, times[len(times) // 2] if times else worst_seconds, peak_gb(device), str(device))


def _seconds(call: Callable[[], None], device: torch.device) -> float:
    start = time.perf_counter()
    call()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - start


def peak_gb(device: torch.device) -> float:
    """Peak memory of this process on `device`, GB; nan where the system does not say."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**30
    try:
        import resource
    except ImportError:
        return float("nan")
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**30
