"""Drafters on disk: `config.json` and `model.safetensors` in one folder, tensor names as in the released DFlash weights.

It knows files and names.  Nothing is guessed: each missing, unknown, misshaped or non-finite entry is named.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from methods.contract import TargetBinding
from methods.drafter import BlockDrafter


class CheckpointError(ValueError):
    """A checkpoint that is damaged, or was made for something else."""


def save_drafter(folder: str | Path, drafter: BlockDrafter) -> None:
    """Write `drafter` into `folder` (made if absent)."""
    raise NotImplementedError


def load_drafter(folder: str | Path, binding: TargetBinding, expected: Mapping[str, Any] | None = None, *,
                 dtype: torch.dtype | None = None, device: torch.device | str = "cpu") -> BlockDrafter:
    """Read a drafter.

    expected: config fields that must have exactly these values (``target_fingerprint``, ``template_hash``,
    ``thinking``, ...).  dtype: of the loaded weights, as stored if None.  Raises `CheckpointError` naming the fault.
    """
    raise NotImplementedError
