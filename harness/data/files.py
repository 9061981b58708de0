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
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

DATA_DIR_VARIABLE = "HARNESS_DATA_DIR"


class DataError(ValueError):
    """A data file is missing, damaged, or not the pinned one. The message names the place and the mend."""


@dataclass(frozen=True)
class Source:
    """One pinned split. `sha256` is of the local file's bytes, `rows_sha256` of its rows, whatever their file.

    hub_id: None where no hub holds these rows in this form; then `origin` says where they come from.
    hub_columns: the hub's name of a field, where it has another one.
    """

    file: str
    rows: int
    sha256: str
    rows_sha256: str
    fields: tuple[str, ...]
    hub_id: str | None = None
    hub_config: str | None = None
    hub_split: str = "test"
    hub_revision: str | None = None
    hub_columns: Mapping[str, str] = field(default_factory=dict)
    origin: str = ""


_GSM8K = {"fields": ("question", "answer"), "hub_id": "openai/gsm8k", "hub_config": "main"}
_GSM8K["hub_revision"] = "740312add88f781978c0658806c59bc2815b9866"
#: Both files hold all splits; task ids tell them apart (`harness/data/mbpp.py`).
_MBPP = {
    "hub_id": "google-research-datasets/mbpp",
    "hub_split": "prompt+test+validation+train",
    "hub_revision": "4bb6404fdc6cacfda99d4ac4205087b89d32030c",
}
_MBPP_SANITIZED = Source(
    file="mbpp/sanitized.jsonl",
    rows=427,
    sha256="7a76be064e2b9ca27ccb80896caadb253ff911343acc61eb4870968e2ec88350",
    rows_sha256="67e43ebf29f3950377598276f0abfe307a59a93787c2f5af53a1bb7d396e9211",
    fields=("task_id", "prompt", "code", "test_imports", "test_list"),
    hub_config="sanitized",
    **_MBPP,
)
_MBPP_FULL = Source(
    file="mbpp/full.jsonl",
    rows=974,
    sha256="ccf64ceae9c5403bf50a044cb6d505bfd2a2963ee58338ba268fd65beab92a9f",
    rows_sha256="53a49566d04f044f4894a99f9aed1fb4294efc289c6417359218dc4c21b4448e",
    fields=("task_id", "text", "code", "test_list"),
    hub_config="full",
    **_MBPP,
)

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
    "math500/test": Source(
        file="math500/test.jsonl",
        rows=500,
        sha256="35dc41080a3680858b27fa7e0533d2d547825316fc5dafe5d316f4ccc5a06132",
        rows_sha256="e2a9f92a7aadc7e270406e018848b3ea20095478a9b49dc54eb5d52fa4e0e39b",
        fields=("problem", "solution", "answer", "subject", "level", "unique_id"),
        hub_id="HuggingFaceH4/MATH-500",
        hub_config="default",
        hub_revision="6e4ed1a2a79af7d8630a6b768ec859cb5af4d3be",
    ),
    # Keys begin with the source that reads them, since code digests go by it; so one file may have two.
    "mbpp/sanitized": _MBPP_SANITIZED,
    "mbpp/full": _MBPP_FULL,
    "mbpp_bare/sanitized": _MBPP_SANITIZED,
    "mbpp_bare/full": _MBPP_FULL,
    "mt_bench/test": Source(
        file="mt_bench/question.jsonl",
        rows=80,
        sha256="119565adbab82227089cefdb44c8d7e2cf04dc0a0ec233634c82e7d4e2a944f7",
        rows_sha256="74e7acf195da2648a02d9d94f910abbdcbec10f4023315801107b85b5ccd3694",
        fields=("category", "turns"),
        hub_id="HuggingFaceH4/mt_bench_prompts",
        hub_split="train",
        hub_revision="e3a795c5e9a82ee40611c416b8a7786c73198991",
        hub_columns={"turns": "prompt"},
    ),
    # CC-BY-NC-4.0: for non-commercial research only, and never part of a release.
    "alpaca/test": Source(
        file="alpaca/question.jsonl",
        rows=80,
        sha256="c188e11f0a080653d408f007f60a66341c58432103bf5115936edc8474dc694d",
        rows_sha256="682b63eafe9ff34b483c69ae1ced96967fb9205f37621c41382349ab7799da96",
        fields=("question_id", "turns"),
        origin="the 80 Stanford Alpaca instructions of EAGLE's alpaca suite (CC-BY-NC-4.0)",
    ),
    "instructions/self_instruct_seed": Source(
        file="prompts/self_instruct_seed.jsonl",
        rows=173,
        sha256="315ccc3ad0baebbf5bfa04025c97e6e0bb4f1119f9255fbf2ac08b19e424a117",
        rows_sha256="aa10793e557389af62c4df91fba8a4695d015fa6add7f2a4e62ce67d27fa2e8c",
        fields=("id", "turns"),
        origin="seed tasks of Self-Instruct (Apache-2.0)",
    ),
    "instructions/llms_from_scratch": Source(
        file="prompts/llms_from_scratch.jsonl",
        rows=1074,
        sha256="7a74f6ea60f2e3837dd67fbbfeb96450fb951d5fe24a0daa093f5bdf1fdea02a",
        rows_sha256="057465123680d1c54d459c70ef8ab7a129be7985fb78f08d9afcb1a9a3143a0f",
        fields=("id", "turns"),
        origin="instructions of rasbt/LLMs-from-scratch (Apache-2.0)",
    ),
    "instructions/dolly_sample": Source(
        file="prompts/dolly_sample.jsonl",
        rows=151,
        sha256="bafd392f45bdd32b39c4bec24dcf0a4c6ae153699833f5162c64c5cb6d6844ba",
        rows_sha256="cdd122de659a5ddcd8ca5b4f45f70294b2c1e4935deabc1d3631bc7acc778d48",
        fields=("id", "turns"),
        origin="a sample of databricks-dolly-15k (CC-BY-SA-3.0)",
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
            f"{', '.join(dict.fromkeys(s.file for s in SOURCES.values()))}, or leave it out to use the hub"
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


def sample(ids: list[int], count: int | None, seed: str) -> list[int]:
    """A seeded sample of sorted ids, in order; never simply the first ones, which need not be typical."""
    if count is None:
        return sorted(ids)
    if not 1 <= count <= len(ids):
        raise DataError(f"{count} prompts asked for, there are {len(ids)} ({seed}); ask for 1 to {len(ids)}")
    return sorted(Random(seed).sample(sorted(ids), count))


def rows_digest(rows: list[dict], fields: tuple[str, ...]) -> str:
    """SHA-256 over the pinned fields of all rows in order: equal for a local file and the same rows from a hub."""
    digest = hashlib.sha256()
    for row in rows:
        digest.update(json.dumps([row[field] for field in fields], ensure_ascii=True).encode() + b"\n")
    return digest.hexdigest()


def is_unicode(text: str) -> bool:
    """Whether a text can be written: JSON may hold half of a pair of surrogates, as text that was cut there does."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _read_file(path: Path, source: Source) -> list[dict]:
    if not path.is_file():
        what = f"{source.hub_id} ({source.hub_split})" if source.hub_id else source.origin
        raise DataError(f"data file {path} is missing; copy {what} there as JSONL")
    raw = path.read_bytes()
    found = hashlib.sha256(raw).hexdigest()
    if found != source.sha256:
        raise DataError(
            f"data file {path} ({len(raw)} bytes) has sha256 {found}, pinned is {source.sha256}; "
            "it was damaged or is another version: fetch it again"
        )
    return [_pick(json.loads(line), source.fields, path) for line in raw.decode("utf-8").split("\n") if line.strip()]


def _read_hub(source: Source) -> list[dict]:
    if source.hub_id is None:
        raise DataError(
            f"{source.file} ({source.origin}) is on no hub in this form; set data_dir or {DATA_DIR_VARIABLE} to a "
            "folder that holds it"
        )
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
    theirs = {name: source.hub_columns.get(name, name) for name in source.fields}
    picked = (_pick(dict(row), tuple(theirs.values()), source.hub_id) for row in table)
    rows = [{name: row[column] for name, column in theirs.items()} for row in picked]
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
