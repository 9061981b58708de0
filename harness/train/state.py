"""What a run writes down so that a resumed one ends with the same bits: written whole, or not at all.

It knows files and digests; it does not know what is in a state beyond its `identity`.  States live in the
work folder, which is no output of any rule, so a re-run of the rule finds them.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

log = logging.getLogger(__name__)


def write_bytes(path: Path, data: bytes) -> None:
    """Write beside, flush to the disk, rename: `path` holds the old content or the new, never a part."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, 0o644)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def write_json(path: Path, value: Any) -> None:
    write_bytes(path, (json.dumps(value, indent=1, sort_keys=True) + "\n").encode())


def save(path: Path, state: dict[str, Any]) -> None:
    """`torch.save`, atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with partial.open("wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def refuse_damaged(path: Path, names: Iterable[str] = ()) -> None:
    """Raise ``ValueError`` if there is a state at `path` that cannot be read, lacks one of `names`, or holds a number
    that is not finite: no run saves one."""
    if not path.is_file():
        return
    try:
        state = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
        missing = [name for name in ("identity", *names) if name not in state.keys()]
        fault = f"it has no {', '.join(missing)}" if missing else _not_finite(state)
    except Exception as error:  # noqa: BLE001  a damaged archive raises whatever its damage meets first
        fault = repr(error)
    if fault:
        raise ValueError(
            f"the training state {path} is damaged ({fault}); move it away to train from the first step again"
        )


def _not_finite(value: Any, place: str = "") -> str | None:
    """Where the first number stands that is not finite, None if all are; `nan` rows of a curve are no fault."""
    if isinstance(value, torch.Tensor):
        sound = not value.is_floating_point() or bool(torch.isfinite(value).all())
        return None if sound else f"{place} is not finite"
    if isinstance(value, dict):
        parts = value.items()
    elif isinstance(value, (list, tuple)):
        parts = enumerate(value)
    else:
        return None
    return next((fault for name, part in parts if (fault := _not_finite(part, f"{place}/{name}"))), None)


def load(path: Path, identity: dict[str, Any]) -> dict[str, Any] | None:
    """The state at `path` if it belongs to this run; else None.

    A state of another run (other settings, data, target or code) is renamed, not deleted, and the difference
    is said: going on with it would make weights that no configuration describes.
    """
    if not path.is_file():
        return None
    state = torch.load(path, map_location="cpu", weights_only=True)
    before = state.get("identity", {})
    changed = sorted(k for k in before.keys() | identity.keys() if before.get(k) != identity.get(k))
    if not changed:
        return state
    aside = path.with_name(f"{path.stem}-{digest(before)[:8]}{path.suffix}")
    os.replace(path, aside)
    log.warning(
        "%s was made with other %s: starting over, the old state is now %s",
        path,
        ", ".join(changed),
        aside.name,
    )
    return None


def digest(value: Any) -> str:
    """Hash of plain data, independent of the order of keys."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()
