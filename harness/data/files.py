"""The pinned data files: where each comes from, how many rows it has, and how it is known to be the right
one.

Knows file layout, hub ids and hashes. Does not know what a prompt looks like. A folder (the configuration's
`data_dir` or the environment variable HARNESS_DATA_DIR) is read without touching the network; with no folder
the hub is used.
"""

from __future__ import annotations

import hashlib
import json
import os
import warnings
from dataclasses import dataclass
from pathlib import Path

DATA_DIR_VARIABLE = "HARNESS_DATA_DIR"


class DataError(ValueError):
    """A data file is missing, damaged, or not the pinned one. The message names the place and the mend."""


@dataclass(frozen=True)
class Source:
    """One pinned split. `sha256` is of the local file's bytes, `rows_sha256` of its rows, whatever their file."""

    file: str
    rows: int
    sha256: str
    rows_sha256: str
    fields: tuple[str, ...]
    hub_id: str
    hub_config: str
    hub_split: str
    hub_revision: str


_GSM8K = {"fields": ("question", "answer"), "hub_id": "openai/gsm8k", "hub_config": "main"}
_GSM8K["hub_revision"] = "740312add88f781978c0658806c59bc2815b9866"

SOURCES: dict[str, Source] = {
    "gsm8k/test": Source(
        file="gsm8k/test.jsonl",
        rows=1319,
        sha256="3730d312f6e3440559ace48831e51066acaca737f6eabec99bccb9e4b3c39d14",
        rows_sha256="5b736e25f3d1e6cdeef6b3d89e3dc71a7e3c20288f93f1bda635f6fbeb4f41b5",
        hub_split="test",
        **_GSM8K,
    ),
    "gsm8k/train": Source(
        file="gsm8k/train.jsonl",
        rows=7473,
        sha256="17f347dc51477c50d4efb83959dbb7c56297aba886e5544ee2aaed3024813465",
        rows_sha256="937e90ecc5698135a95d098621de3388f3b63bec4dbd8fc1b349adf8612890aa",
        hub_split="train",
        **_GSM8K,
    ),
    "humaneval/test": Source(
        file="humaneval/test.jsonl",
        rows=164,
        sha256="1d49078ba3e2b196b9344535bef34a43021f038fad9561d6ee7c53450609a6a2",
        rows_sha256="d9964c36d1e309e5d237f0d45bdb31915d6a77961df213c753c6fa58c3e994ac",
        fields=("task_id", "prompt", "entry_point", "canonical_solution", "test"),
        hub_id="openai/openai_humaneval",
        hub_config="openai_humaneval",
        hub_split="test",
        hub_revision="7dce6050a7d6d172f3cc5c32aa97f52fa1a2e544",
    ),
}


def data_folder(configured: str | os.PathLike | None) -> Path | None:
    """The folder to read, or None for the hub. The configuration comes before the environment variable."""
    chosen = configured or os.environ.get(DATA_DIR_VARIABLE)
    if not chosen:
        return None
    folder = Path(chosen).expanduser()
    if not folder.is_dir():
        origin = "data_dir of the configuration" if configured else DATA_DIR_VARIABLE
        raise DataError(
            f"data folder {folder} ({origin}) does not exist; point it at a folder that holds "
            f"{', '.join(s.file for s in SOURCES.values())}, or leave it out to use the hub"
        )
    return folder


def load_rows(name: str, data_dir: str | os.PathLike | None = None) -> list[dict]:
    """All rows of a pinned split, in file order, each reduced to the pinned fields.

    Raises DataError for an unknown split, a missing or damaged file, a wrong row count or hash.
    """
    if name not in SOURCES:
        raise DataError(f"unknown data split {name!r}; known: {', '.join(SOURCES)}")
    source = SOURCES[name]
    folder = data_folder(data_dir)
    rows = _read_file(folder / source.file, source) if folder else _read_hub(source)
    if len(rows) != source.rows:
        raise DataError(f"{name} has {len(rows)} rows, {source.rows} are pinned; fetch the file again")
    return rows


def rows_digest(rows: list[dict], fields: tuple[str, ...]) -> str:
    """SHA-256 over the pinned fields of all rows in order: equal for a local file and the same rows from a hub."""
    digest = hashlib.sha256()
    for row in rows:
        digest.update(json.dumps([row[field] for field in fields], ensure_ascii=True).encode() + b"\n")
    return digest.hexdigest()


def _read_file(path: Path, source: Source) -> list[dict]:
    if not path.is_file():
        raise DataError(f"data file {path} is missing; copy {source.hub_id} ({source.hub_split}) there as JSONL")
    raw = path.read_bytes()
    found = hashlib.sha256(raw).hexdigest()
    if found != source.sha256:
        raise DataError(
            f"data file {path} ({len(raw)} bytes) has sha256 {found}, pinned is {source.sha256}; "
            "it was damaged or is another version: fetch it again"
        )
    return [_pick(json.loads(line), source.fields, path) for line in raw.decode("utf-8").split("\n") if line.strip()]


def _read_hub(source: Source) -> list[dict]:
    try:
        from datasets import load_dataset
    except ImportError as error:
        raise DataError(
            f"no data folder is set and the package `datasets` is not installed; set data_dir or "
            f"{DATA_DIR_VARIABLE}, or install `datasets` to read {source.hub_id} from the hub"
        ) from error
    try:
        table = load_dataset(source.hub_id, source.hub_config, split=source.hub_split, revision=source.hub_revision)
    except Exception as error:
        raise DataError(
            f"{source.hub_id} ({source.hub_config}, {source.hub_split}, revision {source.hub_revision}) "
            "could not be read "
            f"from the hub: {error}; set data_dir or {DATA_DIR_VARIABLE} to a local copy"
        ) from error
    rows = [_pick(dict(row), source.fields, source.hub_id) for row in table]
    digest = rows_digest(rows, source.fields)
    if digest != source.rows_sha256:
        warnings.warn(
            f"rows of {source.hub_id} from the hub have digest {digest}, the pinned file has "
            f"{source.rows_sha256}; "
            "results may not be comparable with those from the local file",
            stacklevel=2,
        )
    return rows


def _pick(row: dict, fields: tuple[str, ...], place: object) -> dict:
    missing = [field for field in fields if field not in row]
    if missing:
        raise DataError(f"a row of {place} lacks {', '.join(missing)}; it has {', '.join(row)}")
    return {field: row[field] for field in fields}
