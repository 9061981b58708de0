"""What a decoding round costs, whole and slice by slice, at the real dimensions of a target and with random weights.

    python -m harness.bench round --shapes qwen3-8b --batches 1 8 --acceptance 4.5 --out round.csv

Random weights accept nothing, so acceptance is scripted (`harness.bench.acceptance`): every number here is of scripted
acceptance and says nothing about a method's own.  All methods take turns, block by block, on one target; each block of
rounds begins at the prefix.  A round whole is timed without a clock inside; its slices in blocks of their own, in turn
with the others, each by its own two ends (`harness.clocks`):

* draft: the block through the drafter's layers; head: from denoised slots to proposals; relay: what a relay adds, with
  the embeddings of anchor and mask, which count as draft where there is none;
* verify: the target's pass; accept, commit: the accept rule and the one transfer to the host, stops and lengths;
  observe: context features into the drafter's cache.

The sum of slices stands beside the round that no clock has touched, with the gap in percent: the clock's own time and
what stands between slices.  The floor of a verify pass is its weights, keys and values aside, at the speed of a copy.
It is none for weights that the caches hold, and a read alone can be faster than a copy.  It knows methods by their
recipes; graphs of CUDA are not recorded.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import torch
from tqdm import tqdm

from harness.bench.acceptance import Acceptance, read_acceptance
from harness.bench.clock import Timing, in_turn
from harness.bench.random_models import (
    build_drafter,
    build_target,
    bytes_needed,
    config_of,
    drafter_settings,
    refuse_too_large,
    shape_of,
    weights_read,
)
from harness.bench.scripted import LEAD, ScriptedDecoder, block_ms, positions_needed
from harness.bench.table import csv_text, machine, plain_text
from harness.budget import copy_speed
from harness.clocks import PhaseClock
from harness.model_source import DTYPES, find_device
from harness.sections import distinct
from harness.shapes import Shape
from harness.target import Target
from harness.train.state import write_bytes
from methods.config import DrafterConfig
from methods.drafter import BlockDrafter
from methods.recipes import recipe
from methods.runner import BlockDraftRunner

#: What is timed in.
KINDS = ("bfloat16", "float32")
METHODS = ("ar", "dflash", "dflow", "domino", "dflow_domino")
SLICES = ("draft", "head", "relay", "verify", "accept", "commit", "observe")
#: Bytes of a buffer that is copied to measure the memory's speed: many times what caches hold.
COPIED = {"cuda": 2**31, "cpu": 2**28}
#: ms: of a round.  accepted: mean proposals of the timed rounds.  slices: sum.  gap_percent: of it over ms.
#: relay_percent: of the slices' sum.  floor_ms: weights_gb at copy_gb_s.  mlp_width: of the relay's gates.
COLUMNS = (
    "acceptance",
    "shapes",
    "method",
    "batch",
    "accepted",
    "ms",
    "ms_fastest",
    "ms_slowest",
    *SLICES,
    "slices",
    "gap_percent",
    "relay_percent",
    "weights_gb",
    "copy_gb_s",
    "floor_ms",
    "verify_over_floor",
    "mlp_width",
    "proposals",
    "layers",
    "prefix",
    "rounds",
    "blocks",
)
SHOWN = ("method", "batch", "accepted", "ms", "ms_fastest", "ms_slowest", *SLICES, "slices", "gap_percent")
SHOWN_TOO = ("method", "batch", "relay_percent", "mlp_width", "verify", "floor_ms", "verify_over_floor")


def decoders(
    target: Target, drafters: Mapping[str, BlockDrafter | None], batch: int, prefix: int, script: torch.Tensor
) -> dict[str, ScriptedDecoder]:
    """A decoder a method over one target; plain decoding, whose drafter is None, accepts nothing.

    script: [rounds, batch] accepted counts, those before the timed ones included.
    """
    draw = torch.Generator().manual_seed(prefix)
    ids = torch.randint(target.vocab_size, (prefix,), generator=draw).tolist()
    found = {}
    for name, drafter in drafters.items():
        factory = None if drafter is None else lambda *size, made=drafter: BlockDraftRunner(made, *size)
        found[name] = ScriptedDecoder(target, factory, ids, script if drafter else torch.zeros_like(script))
    return found


def measure(made: Mapping[str, ScriptedDecoder], rounds: int, blocks: int) -> dict[str, dict[str, Any]]:
    """By method: `ms` of a round as a `Timing` over blocks, and `slices`, their milliseconds a round by name."""
    whole: dict[str, list[float]] = {name: [] for name in made}
    parts: dict[str, list[dict[str, float]]] = {name: [] for name in made}
    for decoder in made.values():
        block_ms(decoder, 1)  # allocation and compilation are counted nowhere
    for name in in_turn(list(made), blocks):
        whole[name].append(block_ms(made[name], rounds))
        clock = PhaseClock(made[name].target.device)
        block_ms(made[name], rounds, clock)
        parts[name].append({key: 1e3 * took / rounds for key, took in clock.seconds.items()})
    return {
        name: {
            "ms": Timing.of(whole[name]),
            "slices": {key: median(one.get(key, 0.0) for one in parts[name]) for key in parts[name][0]},
        }
        for name in made
    }


def row_of(found: Mapping[str, Any], read: int, copied: float) -> dict[str, Any]:
    """The columns that follow from one measurement.  read: bytes of weights of a verify pass; copied: bytes/s."""
    timing, slices = found["ms"], found["slices"]
    unknown = set(slices) - set(SLICES)
    if unknown:
        raise ValueError(f"a round has phases that no column shows: {', '.join(sorted(unknown))}; name them in SLICES")
    total, floor = sum(slices.values()), 1e3 * read / copied
    return {
        "ms": timing.median,
        "ms_fastest": timing.fastest,
        "ms_slowest": timing.slowest,
        **{name: slices.get(name) for name in SLICES},
        "slices": total,
        "gap_percent": 100 * (total / timing.median - 1),
        "relay_percent": 100 * slices["relay"] / total if "relay" in slices else None,
        "weights_gb": read / 1e9,
        "copy_gb_s": copied / 1e9,
        "floor_ms": floor,
        "verify_over_floor": slices["verify"] / floor,
    }


def run(
    shape: Shape,
    name: str,
    configs: Mapping[str, DrafterConfig | None],
    batches: Sequence[int],
    acceptance: Acceptance,
    *,
    dtype: torch.dtype,
    device: torch.device,
    prefix: int,
    rounds: int,
    blocks: int,
    seed: int = 0,
) -> list[dict[str, Any]]:
    """Rows of all batches and methods.  configs: of each method's drafter, None for plain decoding.

    Raises ``ValueError``, before anything is built, for rounds that leave the target's context and for models that
    memory will not hold.
    """
    scripts = {batch: acceptance.script(LEAD + rounds, batch, seed) for batch in batches}
    made = [config for config in configs.values() if config is not None]
    block = max((config.num_proposals + 1 for config in made), default=1)
    longest = prefix + block + max(positions_needed(script) for script in scripts.values())
    if longest > shape.max_position_embeddings:
        raise ValueError(
            f"--prefix {prefix} and --rounds {rounds} ask for {longest} positions, past the "
            f"{shape.max_position_embeddings} of {name}; lower either"
        )
    need = bytes_needed(shape, made, len(configs), max(batches), longest, dtype.itemsize)
    refuse_too_large(need, device, f"{name} in {str(dtype).removeprefix('torch.')} with {len(made)} drafters")
    size = COPIED[device.type]
    refuse_too_large(2 * size, device, "the copy that measures the memory's speed")
    copied = copy_speed(device, size)
    target = build_target(shape, name, dtype, device, seed)
    drafters = {
        method: None if config is None else build_drafter(config, target.binding, dtype, device, seed)
        for method, config in configs.items()
    }
    rows = []
    for batch in tqdm(batches, desc="rounds", unit="batch", mininterval=2):
        script = scripts[batch]
        found = measure(decoders(target, drafters, batch, prefix, script), rounds, blocks)
        for method, config in configs.items():
            relay = None if config is None else config.relay_options
            rows.append(
                {
                    "acceptance": acceptance.said,
                    "shapes": name,
                    "method": method,
                    "batch": batch,
                    "accepted": 0.0 if config is None else script[LEAD:].double().mean().item(),
                    **row_of(found[method], weights_read(target), copied),
                    "mlp_width": None if relay is None else relay.mlp_width,
                    "proposals": 0 if config is None else config.num_proposals,
                    "layers": 0 if config is None else config.num_layers,
                    "prefix": prefix,
                    "rounds": rounds,
                    "blocks": blocks,
                }
            )
    return rows


def header(rows: Sequence[Mapping[str, Any]], facts: Mapping[str, Any]) -> str:
    """What all rows have in common, in words."""
    first = rows[0]
    widths = ", ".join(sorted({str(row["mlp_width"]) for row in rows if row["mlp_width"] is not None})) or "none"
    changed = " with changes" if facts["dirty"] else ""
    return (
        f"{first['acceptance']}; random weights, so no number here is an acceptance of a method\n"
        f"shapes {first['shapes']}, {facts['dtype']}, relay MLP width {widths}, prefix {first['prefix']}; milliseconds "
        f"of a round: median of {first['blocks']} interleaved blocks of {first['rounds']}\n"
        f"{facts['device']}, {facts['threads']} threads, torch {facts['torch']}, commit {facts['git_sha']}{changed}\n"
        f"a verify pass reads {first['weights_gb']:.4g} GB of weights; a copy moves {first['copy_gb_s']:.4g} GB/s"
    )


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m harness.bench round", description=__doc__.split("\n")[0])
    parser.add_argument("--shapes", required=True, help="qwen3-0.6b, qwen3-1.7b, qwen3-4b, qwen3-8b or pocket")
    parser.add_argument("--methods", nargs="+", default=list(METHODS), help=f"recipes; default: {' '.join(METHODS)}")
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8], help="sequences decoded at a time")
    parser.add_argument("--acceptance", required=True, help="records (.jsonl), chances of 0,1,2,... or a mean")
    parser.add_argument("--prefix", type=int, default=512, help="tokens before each block of rounds")
    parser.add_argument("--rounds", type=int, default=20, help="timed rounds of a block")
    parser.add_argument("--blocks", type=int, default=5, help="blocks a method, with and without a clock inside")
    parser.add_argument("--dtype", choices=KINDS, help="default: bfloat16 on a GPU, float32 on a CPU")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N")
    parser.add_argument("--mlp-width", type=int, help="of the relay's gates; default: as the profile says")
    parser.add_argument("--seed", type=int, default=0, help="of the weights and of the script")
    parser.add_argument("--threads", type=int, default=0, help="CPU threads; 0 leaves torch's choice")
    parser.add_argument("--out", type=Path, help="also write the rows as CSV")
    arguments = parser.parse_args(argv)
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    try:
        rows, facts = _asked(arguments)
    except (ValueError, OSError, RuntimeError) as error:
        parser.exit(2, f"{str(error).splitlines()[0]}\n")
    print(header(rows, facts))
    print(plain_text(rows, SHOWN))
    print(plain_text(rows, SHOWN_TOO))
    if arguments.out:
        write_bytes(arguments.out, csv_text(rows, COLUMNS, facts).encode())


def _asked(arguments: argparse.Namespace) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The rows that the options ask for, and the facts of the machine."""
    for option in ("prefix", "rounds", "blocks", "mlp_width", "batches"):
        value = getattr(arguments, option)
        least = min(value) if isinstance(value, list) else value
        if least is not None and least < 1:
            raise ValueError(f"--{option.replace('_', '-')} is {least}; it must be at least 1")
    for option in ("methods", "batches"):
        try:
            distinct(getattr(arguments, option))
        except ValueError as error:
            raise ValueError(f"--{option} {error}") from None
    shape = shape_of(arguments.shapes)
    settings = drafter_settings(arguments.shapes, arguments.mlp_width)
    configs = {
        name: config_of(shape, arguments.shapes, settings, name) if recipe(name).drafts else None
        for name in arguments.methods
    }
    most = settings.num_proposals or settings.block_size - 1
    device = find_device(arguments.device, arguments.shapes)
    dtype = arguments.dtype or ("bfloat16" if device.type == "cuda" else "float32")
    facts = machine(device, dtype=dtype)  # before anything runs: a commit made meanwhile is not what runs
    rows = run(
        shape,
        arguments.shapes,
        configs,
        arguments.batches,
        read_acceptance(arguments.acceptance, most),
        dtype=DTYPES[dtype],
        device=device,
        prefix=arguments.prefix,
        rounds=arguments.rounds,
        blocks=arguments.blocks,
        seed=arguments.seed,
    )
    return rows, facts
