"""How long a call takes: warm-up, blocks of calls with one synchronisation at each end, candidates interleaved.

It knows clocks and devices.  It does not know what is called, nor how its time falls to its parts (`harness.clocks`).
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch

from harness.clocks import turns, wait

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


def in_turn(names: Sequence[str], repeats: int) -> Iterator[str]:
    """All names `repeats` times, another one first each time, so that a machine that slows down slows all of them."""
    for repeat in range(repeats):
        yield from turns(names, repeat)


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
