"""The relay's two operations at the shapes of a decoding round: fused kernels against eager and compiled torch.

    python -m harness.bench relay --out relay.csv

It knows which implementations there are and what one round hands them.  No number is reported for an implementation
that does not give the reference's values and gradients on the very tensors that are timed.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm

from harness.bench.clock import Call, compare, graphed
from harness.bench.table import csv_text, machine
from harness.model_source import DTYPES
from harness.train.state import write_bytes
from methods.contract import BlockLayout
from methods.kernels import relay_film, relay_gather
from methods.kernels.film import relay_film_reference
from methods.kernels.gather import relay_gather_reference

EPS = 1e-6
#: Hidden sizes of Qwen3-1.7B, 4B and 8B.
WIDTHS = (2048, 2560, 4096)
BATCHES = (1, 8, 32)
#: What is timed in.
KINDS = ("bfloat16", "float32")
#: Largest relative difference (of the largest value) from the float32 reference that rounding explains.
TOLERANCE = {torch.bfloat16: 2e-2, torch.float32: 1e-4}
COLUMNS = ("operation", "implementation", "pass", "width", "batch", "dtype", "us", "fastest", "slowest", "over_fused")


@dataclass(frozen=True)
class Case:
    """One operation at one shape: its inputs, and what must be finite of them."""

    operation: str
    width: int
    batch: int
    dtype: torch.dtype
    inputs: tuple[Any, ...]
    floats: tuple[int, ...]  # inputs that gradients are asked for


def cases(width: int, batch: int, dtype: torch.dtype, device: torch.device) -> list[Case]:
    """What `batch` rows of a round with 15 proposals hand to the two operations; rows reject at different places."""
    draw = torch.Generator(device="cpu").manual_seed(width + batch)
    layout = BlockLayout(block_size=16, alignment="same", num_proposals=15)

    def normal(*shape: int, scale: float = 1.0) -> Tensor:
        return (scale * torch.randn(*shape, generator=draw)).to(device, dtype)

    accepted = torch.randint(0, 12, (batch,), generator=draw)
    rows = layout.relay_rows(accepted, first_rejected=True, last_row=True, anchor_slot=False)
    offset = torch.arange(batch)[:, None] * (layout.num_proposals + 1)
    index = torch.where(rows >= 0, rows + offset, -1).to(device)
    source, weight = normal(batch * (layout.num_proposals + 1), width), 1 + normal(width, scale=0.1)
    states = relay_gather_reference(source, index, weight, EPS)
    gates = normal(batch, layout.block_size, 2 * width, scale=0.1)
    scale, shift = gates.chunk(2, dim=-1)
    film = (states, index >= 0, weight, normal(width, scale=0.1), scale, shift, normal(width), EPS)
    return [
        Case("gather", width, batch, dtype, (source, index, weight, EPS), (0, 2)),
        Case("film", width, batch, dtype, film, (0, 2, 3, 4, 5, 6)),
    ]


def implementations(case: Case, device: torch.device, compiled: bool) -> dict[str, Callable[..., Tensor]]:
    """By name; `fused` only where the kernels run compiled."""
    fused, reference = {
        "gather": (relay_gather, relay_gather_reference),
        "film": (relay_film, relay_film_reference),
    }[case.operation]
    found: dict[str, Callable[..., Tensor]] = {"fused": fused} if device.type == "cuda" else {}
    found["eager"] = reference
    if compiled:
        found["compiled"] = torch.compile(reference, fullgraph=True, dynamic=False)
    return found


def refuse_wrong(case: Case, name: str, run: Callable[..., Tensor]) -> None:
    """Raise ``ValueError`` unless values and gradients are those of the reference in float32."""
    reference = {"gather": relay_gather_reference, "film": relay_film_reference}[case.operation]
    wide = tuple(v.float() if isinstance(v, Tensor) and v.is_floating_point() else v for v in case.inputs)
    for what, ours, theirs in zip(
        ("values", *(f"gradient {i}" for i in case.floats)),
        _evaluated(case, run, case.inputs),
        _evaluated(case, reference, wide),
        strict=True,
    ):
        gap = (ours.float() - theirs).abs().max() / theirs.abs().max().clamp(min=1e-6)
        if not gap <= TOLERANCE[case.dtype]:
            raise ValueError(
                f"{name} {case.operation} at width {case.width}, batch {case.batch}, {case.dtype}: {what} differ from "
                f"the reference by {float(gap):.2g} of the largest, over {TOLERANCE[case.dtype]:g}; nothing is timed"
            )


def _evaluated(case: Case, run: Callable[..., Tensor], inputs: tuple[Any, ...]) -> list[Tensor]:
    leaves = [value.detach().clone().requires_grad_() if i in case.floats else value for i, value in enumerate(inputs)]
    out = run(*leaves)
    grads = torch.autograd.grad(out, [leaves[i] for i in case.floats], _direction(out, case.dtype))
    return [out.detach(), *grads]


def _direction(out: Tensor, dtype: torch.dtype) -> Tensor:
    """A gradient that is no constant, and the same for every implementation to the last bit of `dtype`."""
    count = torch.arange(out.numel(), device=out.device, dtype=torch.float32)
    return torch.cos(count).view_as(out).to(dtype).to(out.dtype)


def calls(case: Case, run: Callable[..., Tensor]) -> dict[str, Call]:
    """The forward pass as decoding makes it, and forward with backward as training does."""
    leaves = [value.detach().requires_grad_() if i in case.floats else value for i, value in enumerate(case.inputs)]
    wanted = [leaves[i] for i in case.floats]
    grad = _direction(run(*case.inputs), case.dtype)

    def forward() -> Tensor:
        with torch.no_grad():
            return run(*case.inputs)

    def both() -> tuple[Tensor, ...]:
        return torch.autograd.grad(run(*leaves), wanted, grad)

    return {"forward": forward, "forward+backward": both}


def measure(
    device: torch.device, widths: Sequence[int], batches: Sequence[int], dtypes: Sequence[torch.dtype], compiled: bool
) -> Iterator[dict[str, Any]]:
    """A row per operation, implementation, pass and shape."""
    shapes = [(w, b, d) for w in widths for b in batches for d in dtypes]
    for width, batch, dtype in tqdm(shapes, desc="relay", unit="shape", mininterval=2):
        for case in cases(width, batch, dtype, device):
            found = implementations(case, device, compiled)
            for name, run in found.items():
                refuse_wrong(case, name, run)
            made = {name: calls(case, run) for name, run in found.items()}
            for kind in ("forward", "forward+backward"):
                candidates = {name: by_pass[kind] for name, by_pass in made.items()}
                if device.type == "cuda" and kind == "forward":
                    candidates |= {f"{name}, graph": graphed(call, device) for name, call in candidates.items()}
                timings = compare(candidates, device)
                for name, timing in timings.items():
                    fused = timings.get("fused, graph" if name.endswith(", graph") else "fused")
                    yield {
                        "operation": case.operation,
                        "implementation": name,
                        "pass": kind,
                        "width": width,
                        "batch": batch,
                        "dtype": str(dtype).removeprefix("torch."),
                        "us": timing.median,
                        "fastest": timing.fastest,
                        "slowest": timing.slowest,
                        "over_fused": None if fused is None else timing.median / fused.median,
                    }


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m harness.bench relay", description=__doc__.split("\n")[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--widths", type=int, nargs="+", default=list(WIDTHS))
    parser.add_argument("--batches", type=int, nargs="+", default=list(BATCHES))
    parser.add_argument("--dtypes", choices=KINDS, nargs="+", default=list(KINDS))
    parser.add_argument("--no-compile", action="store_true", help="leave torch.compile out (it wants a C++ compiler)")
    parser.add_argument("--out", type=Path, help="CSV file; default: standard output")
    arguments = parser.parse_args(argv)
    try:
        device = torch.device(arguments.device)
        kinds = [DTYPES[name] for name in arguments.dtypes]
        rows = list(measure(device, arguments.widths, arguments.batches, kinds, not arguments.no_compile))
    except (ValueError, RuntimeError) as error:
        parser.exit(2, f"{str(error).splitlines()[0]}\n")
    written = csv_text(rows, COLUMNS, machine(device))
    if arguments.out:
        write_bytes(arguments.out, written.encode())
    else:
        print(written, end="")
