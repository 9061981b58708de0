"""Where a number came from: code, versions, machine.

It knows how to ask git, the installed packages and the machine, and to do without any of them.  It does not
know what the numbers are.  `provenance` is the whole record that goes beside an artefact,
`provenance_short` the few columns that stand in every row of a table, `origin` what goes beside decoded or
trained files: the same with the target and the drafter that were loaded.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import subprocess
import sys
from collections.abc import Iterable
from datetime import UTC, datetime
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from typing import Any

from harness.stage import ROOT, digest

PACKAGES = (
    "torch",
    "transformers",
    "tokenizers",
    "triton",
    "numpy",
    "safetensors",
    "datasets",
    "lm-eval",
    "snakemake",
)
SHORT = ("git_sha", "dirty", "device", "threads", "torch", "transformers", "triton")


def provenance(**more: Any) -> dict[str, Any]:
    """Everything worth knowing about this process and its machine; None where it cannot be known.

    more: facts only the caller has, such as the dtype.
    """
    import torch

    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    sha, dirty = _git_state()
    return {
        "git_sha": sha,
        "dirty": dirty,
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": [Path(sys.executable).name, *sys.orig_argv[1:]],
        "python": platform.python_version(),
        **{name.replace("-", "_"): version(name) for name in PACKAGES},
        "platform": f"{platform.system()} {platform.machine()}",
        "processor": processor(),
        "cores": os.cpu_count(),
        "memory_gb": _memory_gb(),
        "gpu": gpu,
        "cuda": torch.version.cuda,
        "gpus_visible": os.environ.get("CUDA_VISIBLE_DEVICES"),
        "device": gpu or processor(),
        "threads": torch.get_num_threads(),
        **more,
    }


def provenance_short(**more: Any) -> dict[str, Any]:
    """The columns of a table row: git_sha (12 digits), dirty, device, threads, versions, and `more`."""
    whole = provenance()
    short = {name: whole[name] for name in SHORT}
    return {**short, "git_sha": (short["git_sha"] or "unknown")[:12], **more}


def origin(*, fingerprint: str, dtype: str, drafter: Path | None = None, **more: Any) -> dict[str, Any]:
    """What made an artefact: `provenance()` with the model that was loaded.

    fingerprint: `Target.fingerprint`.  dtype: the target's, as configured.  drafter: checkpoint folder, None for a
    method without one or a target alone.  more: whatever else the caller knows (accept, method).
    Call it when the models are loaded: a commit made during a long run is not the one that is running.
    Raises FileNotFoundError for a checkpoint folder without configuration or weights.
    """
    digest = checkpoint_digest(drafter) if drafter else None
    return provenance(target_fingerprint=fingerprint, dtype=dtype, drafter_sha256=digest, **more)


def checkpoint_digest(folder: Path) -> str:
    """SHA-256 of a drafter: its configuration and its weights, nothing else of its folder."""
    total = hashlib.sha256()
    for name in ("config.json", "model.safetensors"):
        total.update((folder / name).read_bytes())
    return total.hexdigest()


def origin_path(artefact: Path) -> Path:
    """Where the origin of a file stands: beside it, `x.origin.json` for `x.jsonl`."""
    return artefact.with_suffix(".origin.json")


def write_origin(artefact: Path, content: dict[str, Any]) -> None:
    """Write the origin of `artefact`; before the artefact itself, so that none stands beside an older origin."""
    path = origin_path(artefact)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    temporary.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    temporary.replace(path)


def source_digest(stage: str, methods: Iterable[str] = ()) -> str:
    """Digest of the code behind a stage; see `harness.stage`."""
    return digest(stage, methods)


def version(package: str) -> str | None:
    """Installed version of a package, None if it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


@lru_cache
def processor() -> str:
    """The processor's own name where the system tells it, else its architecture."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    named = (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    return next(named, None) or platform.processor() or platform.machine() or "unknown"


def _memory_gb() -> float | None:
    try:
        return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1)
    except (ValueError, OSError, AttributeError):
        return None


@lru_cache
def _git_state() -> tuple[str | None, bool | None]:
    """(commit, whether tracked files differ from it); (None, None) outside a repository or without git."""
    sha = _git("rev-parse", "HEAD")
    if sha is None or _git("rev-parse", "--show-toplevel") != str(ROOT):
        return None, None  # no repository, or one that merely contains an installed copy
    status = _git("status", "--porcelain", "--untracked-files=no")
    return sha, None if status is None else bool(status)


def _git(*arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, timeout=20, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
