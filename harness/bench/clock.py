"""How long a call takes, and how its time falls to its parts: blocks of calls, candidates interleaved.

A block has one synchronisation at each end.  Parts are timed by a `Timeline`, which waits for nothing in between.  It
knows clocks and devices.  It does not know what is called.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise

import torch

from harness.decode import Clock

Call = Callable[[], object]
#: A block of calls lasts about this long, so that neither the clock's grain nor one interruption counts.
BLOCK_SECONDS = 0.02
#: Calls of a block, however short one is.
MOST_CALLS = 2000


@dataclass(frozen=True)
class Timing:
    """Of one call, in the unit of the blocks' times: the median over blocks, the fastest and the slowest of them."""

    median: float
    fastest: float
    slowest: float

    @classmethod
    def of(cls, blocks: Iterable[float]) -> Timing:
        times = list(blocks)
        return cls(statistics.median(times), min(times), max(times))


class Timeline(Clock):
    """Stopwatches by name, of which one runs at a time.

    Entering a phase stops the watch of the phase around it, leaving it sets that one going again: each watch runs only
    while its own work is done, and none is what another leaves over.  Between phases no watch runs.  On a GPU the marks
    are events of the current stream, so time is the device's own and the host is never kept waiting; on a CPU they
    are readings of the clock.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.restart()

    def restart(self) -> None:
        """All watches back to zero, none running."""
        self._marks: list[tuple[float | torch.cuda.Event, str | None]] = []
        self._running: str | None = None

    def switch(self, name: str | None) -> None:
        """Stop the watch that runs, and set the one called `name` going; None: none."""
        self._marks.append((self._mark(), name))
        self._running = name

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        around = self._running
        self.switch(name)
        try:
            yield
        finally:
            self.switch(around)

    def milliseconds(self) -> dict[str, float]:
        """What each watch shows, in order of first start; waits for the device."""
        wait(self.device)
        shown: dict[str, float] = {}
        for (start, name), (end, _) in pairwise(self._marks):
            if name is not None:
                shown[name] = shown.get(name, 0.0) + self._between(start, end)
        return shown

    def _mark(self) -> float | torch.cuda.Event:
        if self.device.type != "cuda":
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self.device))
        return event

    @staticmethod
    def _between(start: float | torch.cuda.Event, end: float | torch.cuda.Event) -> float:
        return 1e3 * (end - start) if isinstance(start, float) else start.elapsed_time(end)


def in_turn(names: Sequence[str], repeats: int) -> Iterator[str]:
    """All names `repeats` times, another one first each time, so that a machine that slows down slows all of them."""
    for repeat in range(repeats):
        shift = repeat % len(names)
        yield from (*names[shift:], *names[:shift])


def compare(calls: Mapping[str, Call], device: torch.device, repeats: int = 7) -> dict[str, Timing]:
    """Microseconds of every call, in `repeats` rounds, each round a block of every call in turn, so that a machine that
    slows down slows all of them down."""
    counts = {}
    for name, call in calls.items():
        call()  # compilation and allocation are counted nowhere
        seconds = block(call, 1, device)
        counts[name] = max(1, min(MOST_CALLS, int(BLOCK_SECONDS / max(seconds, 1e-7))))
        block(call, counts[name], device)
    taken: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(repeats):
        for name, call in calls.items():
            taken[name].append(1e6 * block(call, counts[name], device) / counts[name])
    return {name: Timing.of(times) for name, times in taken.items()}


def block(call: Call, count: int, device: torch.device) -> float:
    """Seconds of `count` calls, with one synchronisation before and one after."""
    wait(device)
    start = time.perf_counter()
    for _ in range(count):
        call()
    wait(device)
    return time.perf_counter() - start


def wait(device: torch.device) -> None:
    """Until the device has done all it was asked."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def graphed(call: Call, device: torch.device) -> Call:
    """The call recorded as a CUDA graph, to be replayed.  Its tensors must stay where they are."""
    stream = torch.cuda.Stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):
        for _ in range(3):
            call()
    torch.cuda.current_stream(device).wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph.replay
