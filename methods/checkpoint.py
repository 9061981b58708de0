"""Drafters on disk: `config.json` and `model.safetensors`, tensors named as in released DFlash weights.

It knows files and names.  Nothing is guessed: each missing, unknown, misshaped or non-finite entry is named.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from methods.config import DrafterConfig
from methods.contract import TargetBinding
from methods.drafter import BlockDrafter

CONFIG, WEIGHTS = "config.json", "model.safetensors"


class CheckpointError(ValueError):
    """A checkpoint that is damaged, or was made for something else."""


def published_name(name: str) -> str:
    """A parameter's name on disk: released weights do not say which component a tensor belongs to."""
    component, _, rest = name.partition(".")
    return rest if component in ("fusion", "backbone", "head") else name


def save_drafter(folder: str | Path, drafter: BlockDrafter) -> None:
    """Write `drafter` into `folder` (made if absent), each file whole or not at all.  Refuses NaN and inf."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {published_name(k): v.detach().cpu().contiguous() for k, v in drafter.state_dict().items()}
    _check_finite(folder, tensors)
    part = folder / f"{WEIGHTS}.part"
    save_file(tensors, part, metadata={"format": "pt"})
    os.replace(part, folder / WEIGHTS)
    part = folder / f"{CONFIG}.part"
    part.write_text(json.dumps(drafter.config.to_dict(), indent=2) + "\n")
    os.replace(part, folder / CONFIG)


def load_drafter(
    folder: str | Path,
    binding: TargetBinding,
    expected: Mapping[str, Any] | None = None,
    *,
    dtype: torch.dtype | None = None,
    device: torch.device | str = "cpu",
) -> BlockDrafter:
    """Read a drafter.

    expected: config fields that must have exactly these values (``target_fingerprint``, ``template_hash``,
    ``thinking``, ...).  dtype: of the weights, as stored if None.  Raises `CheckpointError` naming the fault.
    """
    folder = Path(folder)
    config = read_config(folder)
    check_expected(folder, config, expected or {})
    try:
        tensors = load_file(folder / WEIGHTS)
    except (OSError, SafetensorError) as fault:
        raise CheckpointError(f"{folder / WEIGHTS} cannot be read: {fault}") from fault
    with torch.random.fork_rng(devices=[]):  # building draws initial weights; a load must not disturb a seed
        try:
            drafter = BlockDrafter(config, binding, draft_vocab=tensors.get("draft_vocab"))
        except ValueError as fault:
            raise CheckpointError(f"{folder}: {fault}") from fault
    state = drafter.state_dict()
    _check_tensors(folder, tensors, {published_name(name): value for name, value in state.items()})
    stored = next(t.dtype for t in tensors.values() if t.is_floating_point())
    drafter.to(dtype=dtype or stored, device=device)
    drafter.load_state_dict({name: tensors[published_name(name)] for name in state})
    return drafter


def read_config(folder: str | Path) -> DrafterConfig:
    """The config of the checkpoint in `folder`, checked key by key."""
    path = Path(folder) / CONFIG
    try:
        values = json.loads(path.read_text())
    except (OSError, json.JSONDecodeError) as fault:
        raise CheckpointError(f"{path} cannot be read: {fault}") from fault
    if not isinstance(values, dict):
        raise CheckpointError(f"{path} holds a {type(values).__name__}; a drafter config is an object")
    try:
        return DrafterConfig.from_dict(values)
    except ValueError as fault:
        raise CheckpointError(f"{path}: {fault}") from fault


def check_expected(folder: str | Path, config: DrafterConfig, expected: Mapping[str, Any]) -> None:
    """Refuse a drafter that was trained for something else, naming both values."""
    known = [field.name for field in fields(config)]
    for name, wanted in expected.items():
        if name not in known:
            raise CheckpointError(f"nothing can be expected of {name!r}; a drafter config has {known}")
        found = getattr(config, name)
        if found != (tuple(wanted) if isinstance(wanted, list) else wanted):
            raise CheckpointError(
                f"{name} is {found!r} in {Path(folder) / CONFIG} and {wanted!r} in this run; "
                "use the drafter with what it was trained for, or train another"
            )


def _check_tensors(folder: Path, found: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> None:
    path = folder / WEIGHTS
    missing, unknown = sorted(wanted.keys() - found.keys()), sorted(found.keys() - wanted.keys())
    if missing or unknown:
        raise CheckpointError(f"{path}: missing tensors: {missing}; unknown tensors: {unknown}")
    for name, value in wanted.items():
        if found[name].shape != value.shape:
            found_shape, wanted_shape = list(found[name].shape), list(value.shape)
            raise CheckpointError(f"{path}: {name} has shape {found_shape}; the config asks for {wanted_shape}")
        if found[name].is_floating_point() != value.is_floating_point():
            raise CheckpointError(f"{path}: {name} is {found[name].dtype}; it should be like {value.dtype}")
    _check_finite(folder, found)


def _check_finite(folder: Path, tensors: Mapping[str, Tensor]) -> None:
    for name, value in tensors.items():
        if value.is_floating_point() and not torch.isfinite(value).all():
            raise CheckpointError(f"{folder / WEIGHTS}: {name} holds NaN or inf")
