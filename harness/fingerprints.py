"""What the plan writes down so that Snakemake sees a change: settings as text, contents of files, names it can read.

It knows files and plain values.  It does not know which of them a stage depends on (`harness.plan`).
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from harness.config import Config, ConfigError
from harness.stage import ROOT

#: Files of a local target up to this size are hashed; larger ones are told apart by size and time of change.
HASHED_BYTES = 64 * 2**20


def check_file_names(config: Config) -> None:
    """Raise ConfigError for names of files that Snakemake would read as patterns, or make twice."""
    for key in ("output_dir", "figures_dir", "work_dir"):
        folder = getattr(config, key)
        if set(folder) & set("{}"):
            raise ConfigError(f"{key} is {folder!r}; Snakemake reads {{}} as a wildcard, so name a folder without them")
        if Path(folder).exists() and not Path(folder).is_dir():
            raise ConfigError(f"{key} is {folder!r}, which is a file; name a folder")
    formats = config.report.figure_formats
    if len(set(formats)) < len(formats):
        raise ConfigError(f"report.figure_formats is {formats}; each figure is drawn once a format, name each once")


def text(**values: Any) -> str:
    """Plain sorted values: the same settings are the same text, whatever the order they were written in."""
    return json.dumps(values, sort_keys=True)


def content_digest(path: Path | None) -> str | None:
    """What a local file or model folder holds, its card and report aside; None for a hub id, whose revision says it."""
    if path is None:
        return None
    hasher = hashlib.sha256()
    inside = (p for p in path.rglob("*") if p.is_file() and p.suffix != ".md" and p.name != "report.json")
    for file in sorted(inside) if path.is_dir() else [path]:
        hasher.update(f"{file.relative_to(path) if path.is_dir() else file.name}\0".encode())
        state = file.stat()
        big = state.st_size > HASHED_BYTES
        hasher.update(f"{state.st_size} {state.st_mtime_ns}".encode() if big else file.read_bytes())
    return hasher.hexdigest()[:16]


def reported_files() -> list[str]:
    """Numbers that papers print, committed with the project; inputs of the tables."""
    return [path.relative_to(ROOT).as_posix() for path in sorted((ROOT / "results/reported").glob("*.csv"))]


def gpu_rounds() -> list[str]:
    """Tables of rounds on a GPU, committed with the project; inputs of the breakdown's figure."""
    return [
        path.relative_to(ROOT).as_posix() for path in sorted((ROOT / "results/published/gpu").glob("*/round-*.csv"))
    ]
