"""Clocks for the phases of a decoding round: what a round takes whole, and what each part of it takes by itself.

They know when a phase begins and ends, and whose turn it is; they do not know what is done in it.
`harness.decode.Decoder` offers phases, `methods.runner.BlockDraftRunner` further ones inside them.  While an inner
phase runs, the outer one stands still, so every part is timed by its own two ends, none as what is left of another.

On a GPU the ends are events on its stream, read when a response is over: a phase there is the time from one to the
other on the device, waiting for the host included, and nothing waits for the sake of being timed.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from harness.decode import Clock


def wait(device: torch.device) -> None:
    """Until the device has done all it was asked."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def turns(names: Sequence[str], index: int) -> list[str]:
    """All names, another one first at each index, so that none is always the one that follows a warm cache."""
    shift = index % len(names)
    return [*names[shift:], *names[:shift]]


class PhaseClock(Clock):
    """Adds up seconds by phase, and from the first phase entered to the last one left."""

    def __init__(self, device: torch.device | str = "cpu") -> None:
        self.on_gpu = torch.device(device).type == "cuda"
        self.restart()

    def restart(self) -> None:
        """Forget everything: the next phase entered is the first."""
        self._open: list[str] = []
        self._since: Any = None
        self._spans: list[tuple[str, Any, Any]] = []
        self._ends: list[Any] = []

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        now = self._stamp()
        if self._open:
            self._spans.append((self._open[-1], self._since, now))
        self._open.append(name)
        self._ends = self._ends[:1] or [now]
        self._since = now
        try:
            yield
        finally:
            now = self._stamp()
            self._spans.append((self._open.pop(), self._since, now))
            self._ends = [self._ends[0], now]
            self._since = now  # from here the outer phase goes on, if there is one

    @property
    def seconds(self) -> dict[str, float]:
        """By phase, inner ones not counted in outer ones."""
        self._wait()
        found: dict[str, float] = {}
        for name, start, end in self._spans:
            found[name] = found.get(name, 0.0) + self._between(start, end)
        return found

    @property
    def rounds_seconds(self) -> float:
        """From the first phase to the last, what lies between phases included."""
        self._wait()
        return self._between(*self._ends) if len(self._ends) == 2 else 0.0

    def _stamp(self) -> Any:
        if not self.on_gpu:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def _between(self, start: Any, end: Any) -> float:
        return start.elapsed_time(end) / 1000 if self.on_gpu else end - start

    def _wait(self) -> None:
        if self.on_gpu and self._ends:
            self._ends[-1].synchronize()


class RoundsClock(PhaseClock):
    """Only from the first phase entered to the last one left: what rounds take when nobody looks inside.

    An end is a stamp, which on a GPU waits for nothing either.
    """

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        self._ends = self._ends[:1] or [self._stamp()]
        try:
            yield
        finally:
            self._ends = [self._ends[0], self._stamp()]
