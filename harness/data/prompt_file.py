"""A file of training prompts of one's own: a JSON object a line, each with its prompt or its turns.

Knows the format of a line and how to say what is wrong with one. Does not know what is asked of the prompts.
"""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

from harness.data.files import DataError, is_unicode
from harness.data.tasks import Task

log = logging.getLogger(__name__)

FORM = (
    'write {"prompt": text} or {"turns": [text, ...]}, each text neither blank nor with half a character, and with a '
    'distinct "id" if any'
)


def prompt_file(path: Path, count: int) -> list[Task]:
    """The first `count` prompts of a JSON-line file: ``{"prompt": text}`` or ``{"turns": [text, ...]}``,
    ``id`` optional. Blank lines are passed over.

    Raises `DataError` with file and line for a line that is neither or repeats an id, wherever it stands, and
    for a missing or empty file.
    """
    if not path.is_file():
        raise DataError(f"prompt file {path} does not exist; correct its path under trajectories")
    tasks: dict[str, Task] = {}
    lines: dict[str, int] = {}
    for number, line in enumerate(path.read_bytes().split(b"\n"), start=1):
        if not line.strip():
            continue
        task = _task(line, path, number)
        if task.id in tasks:
            raise DataError(f"{path}, line {number}: id {task.id!r} is that of line {lines[task.id]} too; {FORM}")
        tasks[task.id], lines[task.id] = task, number
    if not tasks:
        raise DataError(f"prompt file {path} is empty; there is nothing to train on")
    if len(tasks) < count:
        log.warning("%s holds %d prompts, trajectories asks for %d", path, len(tasks), count)
    return list(tasks.values())[:count]


def _task(line: bytes, path: Path, number: int) -> Task:
    place = f"{path}, line {number}"
    try:
        row = json.loads(line)
    except ValueError as error:  # no JSON, or no UTF-8
        raise DataError(f"{place}: not a JSON object ({error}); {FORM}") from error
    if not isinstance(row, dict):
        raise DataError(f"{place}: {_short(row)} is no JSON object; {FORM}")
    key = "prompt" if row.get("turns") is None else "turns"
    turns = row.get(key) if key == "turns" else [row.get(key)]
    if not isinstance(turns, list) or not turns or not all(map(_can_be_asked, turns)):
        raise DataError(f"{place}: {key} is {_short(row.get(key))}; {FORM}")
    name = row.get("id", f"{path.stem}/{number:06d}")
    if not isinstance(name, str | int):
        raise DataError(f"{place}: id is {_short(name)}; {FORM}")
    return Task(str(name), path.stem, tuple(turns), plain=tuple(turns) if len(turns) == 1 else ())


def _can_be_asked(turn: Any) -> bool:
    return isinstance(turn, str) and bool(turn.strip()) and is_unicode(turn)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
