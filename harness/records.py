"""Records: one JSON line per response, the raw material of every number in every table.

It knows the fields, how lines are appended so that an interrupted run loses at most one of them, and how a finished
file appears under its name all at once.  It does not know how a response was made or what is computed from it.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from harness.decode import DecodeSettings, Response


@dataclass(frozen=True)
class Record:
    """A response with what was asked, how it was decoded, step by step, and what it was worth.

    accepted / committed: per verify step, raw and after stops and budget; see `harness.decode.Response`.
    score: 1.0, 0.0, or None where the suite is not scored; verdict: "right", "wrong", "no_answer" or None.
    accept, proposals, stop_ids, stop_strings: what decided about tokens and ends; see `harness.decode.DecodeSettings`.
    seconds: mean wall time of the responses of this turn that this process has finished so far, this one included;
    informational, never a speed (see the timing rule).
    """

    target: str
    method: str
    suite: str
    temperature: float
    seed: int
    accept: str
    proposals: str
    stop_ids: list[int]
    stop_strings: list[str]
    prompt_id: str
    turn: int
    prompt_sha: str
    prompt_tokens: int
    output_ids: list[int]
    accepted: list[int]
    committed: list[int]
    stop: str
    text: str
    score: float | None
    verdict: str | None
    trace: dict[str, list[list[int]]] | None
    seconds: float

    @classmethod
    def of(cls, response: Response, settings: DecodeSettings, **rest: Any) -> Record:
        """Build a record from a response, the settings that made it, and the fields that neither knows."""
        return cls(
            temperature=settings.temperature,
            seed=settings.seed,
            accept=settings.accept,
            proposals=settings.proposals,
            stop_ids=list(settings.stop_ids),
            stop_strings=list(settings.stop_strings),
            prompt_id=response.prompt_id,
            turn=response.turn,
            prompt_sha=prompt_sha(response.prompt_ids),
            prompt_tokens=len(response.prompt_ids),
            output_ids=response.output_ids,
            accepted=response.accepted,
            committed=response.committed,
            stop=response.stop,
            trace=response.trace,
            **rest,
        )


def prompt_sha(ids: Sequence[int]) -> str:
    """Short hash of a prompt's token ids."""
    return hashlib.sha256(" ".join(map(str, ids)).encode()).hexdigest()[:16]


def append_record(path: Path, record: Record) -> None:
    """Add one line and hand it to the operating system before returning."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(asdict(record), ensure_ascii=False, separators=(",", ":")) + "\n")


def read_records(path: Path, repair: bool = False) -> list[dict[str, Any]]:
    """All records of a file.  `repair` cuts off a last line that a kill left unfinished; otherwise it is an error."""
    path = Path(path)
    if not path.exists():
        if repair:
            return []
        raise FileNotFoundError(f"no records at {path}; run the decode stage that makes them")
    records, good = [], 0
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if repair and not line.endswith(b"\n"):
                break  # whole or not, the next line would be appended to it
            try:
                records.append(json.loads(line))
            except json.JSONDecodeError as error:
                raise ValueError(f"{path}, line {number}: not a JSON record ({error}); delete the line") from error
            good = file.tell()
    if repair and good < path.stat().st_size:
        os.truncate(path, good)
    return records


def write_records(path: Path, records: Iterable[dict[str, Any]]) -> None:
    """Write a finished file under a temporary name and rename it: it exists whole or not at all."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with temporary.open("w", encoding="utf-8") as file:
        for record in records:
            file.write(json.dumps(record, ensure_ascii=False, separators=(",", ":")) + "\n")
    temporary.replace(path)
