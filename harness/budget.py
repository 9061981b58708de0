"""What a configuration will cost, rule by rule, before anything is loaded: hours, memory of the device, disk.

Where a training of the same profile, target and method has left its marks, its own seconds a step are taken; all else
is arithmetic over products and bytes, at speeds that were measured on this machine a moment ago.  It knows shapes and
counts.  It does not know whether a run is possible (`harness.readiness`).
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch

from harness.config import Config
from harness.sections import TargetConfig
from harness.settings import ROOT, project_path
from harness.shapes import Shape
from harness.train.build import drafter_config
from methods.published_tensors import skeleton
from methods.recipes import recipe

#: Taken where nothing was measured, and said so in the table: the share of `max_new_tokens` that a mean response has,
#: tokens of a mean prompt, a drafter's acceptance length, and the share of a large product's speed that a step reaches.
RESPONSE_SHARE, PROMPT_TOKENS, ACCEPTED, UTILISATION = 0.3, 150, 3.5, 0.5
#: Small operations that one decoder layer issues, whatever its size.
OPERATIONS_A_LAYER = 25
#: Bytes of a token in a JSON line; of a parameter with its gradient, master and two moments.
JSON_BYTES, TRAINED_BYTES = 6, 18
ITEMSIZE = {"float32": 4, "bfloat16": 2, "float64": 8}


@dataclass(frozen=True)
class Speed:
    """Of one device: products (FLOP/s), memory (bytes/s), and seconds to issue one small operation."""

    flops: float
    bytes_per_s: float
    operation: float


@dataclass(frozen=True)
class Cost:
    """Of one rule for one target (and method).  disk_gb: of what stays.  note: where the hours come from."""

    rule: str
    what: str
    jobs: int
    hours: float
    memory_gb: float
    disk_gb: float
    note: str = "arithmetic"


@cache
def measure_speed(device: str, dtype: str) -> Speed:
    """About a second of products and copies of the size that a target of some billions of weights has."""
    place, kind = torch.device(device), getattr(torch, dtype)
    large = place.type == "cuda"
    side, block = (8192, 2**30) if large else (1024, 2**27)
    left, right = torch.randn(2, side, side, device=place).to(kind)
    small = torch.zeros(1, device=place)
    flops = 2 * side**3 / _best(lambda: left @ right, place)
    return Speed(flops, copy_speed(place, block), _best(lambda: small + 1, place, repeats=200))


def copy_speed(place: torch.device, size: int) -> float:
    """Bytes a second of the fastest of some copies of `size` bytes, each read and written and so counted twice.

    size: far more than the caches hold.
    """
    source = torch.ones(size // 4, device=place)  # of zeros, the system may hold a single page
    copy = torch.ones_like(source)
    return 2 * size / _best(lambda: copy.copy_(source), place)


def _best(call, place: torch.device, repeats: int = 5) -> float:
    call()
    times = []
    for _ in range(repeats):
        if place.type == "cuda":
            torch.cuda.synchronize(place)
        start = time.perf_counter()
        call()
        if place.type == "cuda":
            torch.cuda.synchronize(place)
        times.append(time.perf_counter() - start)
    return min(times)


def drafter_parameters(config: Config, shape: Shape, entrant: str) -> int:
    """Trainable parameters of an entrant's drafter, counted on one without storage."""
    own = config.settings_of(entrant).drafter
    method = config.entrant(entrant).recipe
    vocab = own.draft_vocab_size and min(own.draft_vocab_size, shape.vocab_size)
    made = drafter_config(own, shape.target, method, draft_vocab_size=vocab, mask=0)
    return sum(p.numel() for p in skeleton(made).parameters())


class Budget:
    """Costs of a configuration, target by target."""

    def __init__(self, config: Config, shapes: dict[str, Shape], speeds: dict[tuple[str, str], Speed], device: str):
        """shapes: by name of the target.  speeds: by (device, dtype).  device: where everything runs."""
        self.config, self.shapes, self.speeds, self.device = config, shapes, speeds, device
        self._counted: dict[tuple[str, str], int] = {}

    def costs(self) -> list[Cost]:
        found: list[Cost] = []
        for name in self.shapes:
            found.append(self.trajectories(name))
            trained = [entrant for entrant in self.trained() if not self.config.pretrained_for(name, entrant)]
            found += [self.training(name, entrant) for entrant in trained]
            found += [self.decoding(name, entrant) for entrant in self.config.entrants]
        return found

    def trained(self) -> list[str]:
        """Entrants with a drafter of their own."""
        names = dict.fromkeys(self.config.entrant(name).weights for name in self.config.entrants)
        return [name for name in names if recipe(self.config.entrant(name).recipe).drafts]

    # -- rules ---------------------------------------------------------------------------------------------------

    def trajectories(self, name: str) -> Cost:
        settings, shape = self.config.trajectories, self.shapes[name]
        source = self.config.targets[name].in_training
        tokens = sum(settings.shares.values()) * self._response(settings.max_new_tokens)
        rows = min(settings.batch_size, sum(settings.shares.values()))
        seconds = tokens / rows * self._pass(shape, source, rows) + self._flops(
            2 * shape.body * sum(settings.shares.values()) * PROMPT_TOKENS, source
        )
        memory = self._weights(shape, source) + rows * (PROMPT_TOKENS + settings.max_new_tokens) * shape.cache_bytes(
            ITEMSIZE[source.dtype]
        )
        disk = JSON_BYTES * (tokens + sum(settings.shares.values()) * PROMPT_TOKENS)
        return Cost("trajectories", name, 1, seconds / 3600, memory / 2**30, disk / 2**30)

    def training(self, name: str, entrant: str) -> Cost:
        """One drafter per seed."""
        config, shape = self.config.settings_of(entrant), self.shapes[name]
        train, source, parameters = config.train, config.targets[name].in_training, self._parameters(name, entrant)
        itemsize = ITEMSIZE[source.dtype]
        step, note = self._step(name, entrant)
        slots = train.batch_sequences * train.anchors * config.drafter.block_size
        activations = slots * config.drafter.num_layers * (8 * shape.hidden_size + 4 * shape.intermediate_size)
        features = train.batch_sequences * self._length(config) * self._taps(config) * shape.hidden_size
        logits = 12 * min(train.head_chunk, slots) * (config.drafter.draft_vocab_size or shape.vocab_size)
        memory = (
            self._weights(shape, source) + TRAINED_BYTES * parameters + logits + itemsize * (activations + features)
        )
        seeds = len(config.seeds)
        hours, disk = seeds * train.steps * step / 3600, seeds * parameters * (itemsize + 12)
        return Cost("train", f"{name} {entrant}", seeds, hours, memory / 2**30, disk / 2**30, note)

    def _step(self, name: str, entrant: str) -> tuple[float, str]:
        """Seconds of a step and how they are known: measured, measured for another entrant of the recipe and scaled by
        arithmetic, or arithmetic alone."""
        own = self._arithmetic(name, entrant)
        lender = self.config.entrant(entrant).recipe
        for other in dict.fromkeys((entrant, lender)):
            found = measured_step(self.config, name, other)
            if found is not None:
                scaled = other != entrant
                ratio = own / self._arithmetic(name, other) if scaled else 1.0
                return ratio * found[0], f"{'scaled from' if scaled else 'measured:'} {found[1]}"
        return own, "arithmetic"

    def _arithmetic(self, name: str, entrant: str) -> float:
        """Seconds of a step: target features (if they are too many to keep), the rounds, and between them the target on
        the proposals."""
        config, shape = self.config.settings_of(entrant), self.shapes[name]
        train, source = config.train, config.targets[name].in_training
        relay, itemsize = recipe(config.entrant(entrant).recipe).relay != "none", ITEMSIZE[source.dtype]
        tokens = sum(config.trajectories.shares.values()) * self._length(config)
        kept = tokens * self._taps(config) * shape.hidden_size * itemsize <= train.feature_cache_gb * 2**30
        kept &= not relay or tokens * shape.cache_bytes(itemsize) <= train.key_cache_gb * 2**30
        operations = 0.0 if kept else 2 * shape.body * train.batch_sequences * self._length(config)
        chains = train.anchors if train.chains is None else min(train.anchors, train.chains)
        vocab = config.drafter.draft_vocab_size or shape.vocab_size
        parameters, rounds = self._parameters(name, entrant), train.rounds_with(relay)
        for index in range(rounds + 1):
            rows = train.batch_sequences * (train.anchors if index == 0 else chains) * config.drafter.block_size
            operations += (6 * parameters + 4 * vocab * shape.hidden_size) * rows
            if relay and index < rounds:
                verified = train.batch_sequences * chains * config.drafter.block_size
                operations += 2 * shape.body * verified
        layers = (config.drafter.num_layers * 3 + shape.num_hidden_layers * relay) * (rounds + 1)
        return self._flops(operations, source) + layers * OPERATIONS_A_LAYER * self._speed(source).operation

    def decoding(self, name: str, entrant: str) -> Cost:
        """All suites, temperatures and seeds of one entrant."""
        config, shape, source = self.config, self.shapes[name], self.config.targets[name]
        drafts = recipe(config.entrant(entrant).recipe).drafts
        own = config.settings_of(entrant).drafter
        proposals = (own.num_proposals or own.block_size - 1) if drafts else 0
        parameters = self._parameters(name, entrant) if drafts else 0
        rows = config.decode.batch_size
        round_ = self._pass(shape, source, rows * (proposals + 1))
        round_ += self._flops(2 * (parameters + shape.head * drafts) * rows * (proposals + 1), source)
        seconds = disk = 0.0
        for suite in config.suites.values():
            tokens = suite.prompts * self._response(suite.max_new_tokens)
            rounds = tokens / (ACCEPTED if drafts else 1)
            seconds += rounds / min(rows, suite.prompts) * round_
            seconds += self._flops(2 * shape.body * suite.prompts * PROMPT_TOKENS, source)
            traced = 2 * (proposals + 1) * rounds if config.decode.trace and drafts else 0
            disk += JSON_BYTES * (tokens + suite.prompts * PROMPT_TOKENS + traced)
        most = max((suite.max_new_tokens for suite in config.suites.values()), default=0)
        memory = self._weights(shape, source) + parameters * ITEMSIZE[source.dtype]
        memory += rows * (PROMPT_TOKENS + most) * shape.cache_bytes(ITEMSIZE[source.dtype])
        jobs = len(config.temperatures) * len(config.seeds)
        return Cost("decode", f"{name} {entrant}", jobs, jobs * seconds / 3600, memory / 2**30, jobs * disk / 2**30)

    # -- parts ---------------------------------------------------------------------------------------------------

    def _parameters(self, name: str, entrant: str) -> int:
        weights = self.config.entrant(entrant).weights
        if (name, weights) not in self._counted:
            self._counted[name, weights] = drafter_parameters(self.config, self.shapes[name], weights)
        return self._counted[name, weights]

    def _length(self, config: Config) -> float:
        """Tokens of a mean training sequence."""
        return min(config.train.max_length, PROMPT_TOKENS + self._response(config.trajectories.max_new_tokens))

    @staticmethod
    def _taps(config: Config) -> int:
        return max(5, config.drafter.num_layers) if config.drafter.taps is None else len(config.drafter.taps)

    def _response(self, most: int) -> float:
        return max(1.0, RESPONSE_SHARE * most)

    def _speed(self, source: TargetConfig) -> Speed:
        return self.speeds[self.device, source.dtype]

    def _weights(self, shape: Shape, source: TargetConfig) -> float:
        return shape.parameters * ITEMSIZE[source.dtype]

    def _flops(self, operations: float, source: TargetConfig) -> float:
        return operations / (UTILISATION * self._speed(source).flops)

    def _pass(self, shape: Shape, source: TargetConfig, rows: int) -> float:
        """Seconds of one forward pass over `rows` tokens: products or weights, whichever is slower, and calls."""
        speed = self._speed(source)
        products = self._flops(2 * (shape.body + shape.head) * rows, source)
        read = (shape.body + shape.head) * ITEMSIZE[source.dtype] / speed.bytes_per_s
        return max(products, read) + shape.num_hidden_layers * OPERATIONS_A_LAYER * speed.operation


def measured_step(config: Config, target: str, entrant: str) -> tuple[float, str] | None:
    """Seconds a step of the latest finished training of this profile, target and method, and where that was read."""
    places = [project_path(config.output_dir) / "drafters" / target]
    places.append(ROOT / "results" / "published" / config.profile / "drafters")
    for place in places:
        found = sorted(place.glob(f"{entrant}-seed*/done.json"))
        for path in found:
            seconds = _seconds_a_step(path)
            if seconds is not None:
                return seconds, _shown(path)
    return None


def _seconds_a_step(path: Path) -> float | None:
    try:
        facts = json.loads(path.read_text(encoding="utf-8"))
        value = facts["seconds"] / facts["steps"]
    except (OSError, ValueError, KeyError, TypeError, ZeroDivisionError):
        return None
    return value if math.isfinite(value) and value > 0 else None


def _shown(path: Path) -> str:
    return path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else str(path)


def totals(costs: Iterable[Cost]) -> tuple[float, float, float]:
    """Hours and disk of all, memory of the largest."""
    rows = list(costs)
    return sum(c.hours for c in rows), max((c.memory_gb for c in rows), default=0.0), sum(c.disk_gb for c in rows)
