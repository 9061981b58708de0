"""Conversations that others collected, as training prompts: what the user said in each, and which can be asked.

Knows the columns of such data sets (ShareGPT, chat messages) and where they are read from. Does not know a target:
whether a prompt fits one, it is told. Rows that cannot be asked are left out and counted, for nobody can mend them; a
data set that is not what it was said to be is refused.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from tqdm import tqdm

from harness.data import dialogue
from harness.data.files import DataError, is_unicode
from harness.data.suites import essence, wordings
from harness.data.tasks import Task
from harness.prompt_sections import DatasetConfig
from harness.settings import project_path

COLUMNS = ("conversations", "messages", "turns", "prompt")
USERS = frozenset({"human", "user"})
MODELS = frozenset({"gpt", "assistant", "model", "chatgpt", "bing", "bard"})
#: What a conversation was told before it began; the target is asked without it.
INSTRUCTIONS = "system"


@dataclass(frozen=True)
class Gathered:
    """Prompts to train on, and of how many rows they were chosen and why others were not."""

    tasks: list[Task]
    counts: dict[str, int]


def gather(
    name: str,
    dataset: DatasetConfig,
    count: int,
    seed: int,
    *,
    evaluation: Iterable[Task] = (),
    fits: Callable[[Task], bool] = lambda _: True,
) -> Gathered:
    """The first `count` usable rows of a data set in an order drawn by `seed`; more of them keep those there are.

    Left out: rows without words of a user, with speakers beside user and model, with half a character (which no
    tokenizer takes), that begin as an earlier row does, in which a question of `evaluation` is asked, or for which
    `fits` is false.  Words of a user that follow one another are one turn; a conversation ends before a blank one, and
    behind `dataset.max_turns`.
    Raises DataError if the data set cannot be read, is another one, or a row has none of the columns.
    """
    rows = read(dataset)
    order = list(range(len(rows)))
    Random(f"{name}/{seed}").shuffle(order)
    asked = {words for task in evaluation for words in wordings(task)}
    tasks: list[Task] = []
    counts: Counter[str] = Counter()
    begun: set[str] = set()
    with tqdm(total=min(count, len(rows)), desc=f"prompts of {name}", unit="prompt", mininterval=2) as bar:
        for number in order:
            if len(tasks) == count:
                break
            turns = user_turns(rows[number], dataset, number)[: dataset.max_turns]
            words = [essence(turn) for turn in turns]
            task = dialogue.conversation(f"{name}/{number:06d}", name, turns) if turns else None
            fault = (
                "no words of a user alone with a model"
                if task is None
                else "no Unicode text"
                if not all(map(is_unicode, turns))
                else "begins like another"
                if words[0] in begun
                else "an evaluation prompt"
                if asked.intersection(words)
                else ""
                if fits(task)
                else "too long"
            )
            begun.update(words[:1])
            if fault:
                counts[fault] += 1
                continue
            tasks.append(task)
            bar.update()
    return Gathered(tasks, {"rows": len(rows), "asked": len(tasks), **dict(sorted(counts.items()))})


def user_turns(row: Any, dataset: DatasetConfig, number: int) -> list[str]:
    """What the user says in a row, turn by turn; empty if the row cannot be asked."""
    place = f"{dataset.source}, row {number}"
    if not isinstance(row, dict):
        raise DataError(f"{place}: {str(row)[:60]!r} is no JSON object; correct source, file or split")
    columns = COLUMNS if dataset.column is None else (dataset.column,)
    column = next((one for one in columns if row.get(one) is not None), None)
    if column is None:
        if any(one in row for one in columns):
            return []  # a column of that data set, empty here
        raise DataError(f"{place} has the columns {', '.join(row)}, none of them {', '.join(columns)}; set column")
    value = row[column]
    said = [value] if isinstance(value, str) else value
    if not isinstance(said, list):
        raise DataError(f"{place}: {column} is {str(value)[:60]!r}, neither text nor a list; set column")
    if all(isinstance(one, str) for one in said):
        return _until_blank(said)
    return _until_blank(_asked(said))


def _asked(messages: list[Any]) -> list[str]:
    """The user's words, those that follow one another together; empty if somebody else takes part."""
    turns: list[str] = []
    before = None
    for message in messages:
        speaker, text = _speaker_and_text(message)
        if speaker == INSTRUCTIONS:
            continue
        if not isinstance(text, str) or speaker not in USERS | MODELS:
            return []
        if speaker in USERS:
            turns = [*turns[:-1], f"{turns[-1]}\n\n{text}"] if before in USERS else [*turns, text]
        before = speaker
    return turns


def _speaker_and_text(message: Any) -> tuple[Any, Any]:
    if not isinstance(message, dict):
        return None, None
    speaker = message.get("from", message.get("role"))
    return (speaker.lower() if isinstance(speaker, str) else None), message.get("value", message.get("content"))


def _until_blank(turns: list[str]) -> list[str]:
    return turns[: next((i for i, turn in enumerate(turns) if not turn.strip()), len(turns))]


def read(dataset: DatasetConfig) -> Any:
    """The rows of a data set, as a sequence.  Raises DataError with the place and the mend."""
    if dataset.is_file:
        return _rows_of(project_path(dataset.source), dataset)
    if dataset.file is not None:
        return _rows_of(_fetched(dataset), dataset)
    from datasets import load_dataset

    try:
        return load_dataset(dataset.source, dataset.config, split=dataset.split, revision=dataset.revision)
    except Exception as error:  # of the hub, the transport underneath, or a format
        raise DataError(_unread(dataset, dataset.split, error)) from error


def _fetched(dataset: DatasetConfig) -> Path:
    from huggingface_hub import hf_hub_download

    try:
        return Path(hf_hub_download(dataset.source, dataset.file, repo_type="dataset", revision=dataset.revision))
    except Exception as error:
        raise DataError(_unread(dataset, dataset.file, error)) from error


def _unread(dataset: DatasetConfig, part: str, error: Exception) -> str:
    first = str(error).splitlines()[0] if str(error) else type(error).__name__
    return (
        f"{dataset.source} ({part}, revision {dataset.revision}) could not be read from the hub ({first[:200]}); "
        "connect, or copy its file here and name that as the source of the data set"
    )


def _rows_of(path: Path, dataset: DatasetConfig) -> list[Any]:
    if not path.is_file():
        raise DataError(f"{path} does not exist; correct the source of the data set under trajectories.datasets")
    if dataset.sha256 is not None:
        with path.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
        if found != dataset.sha256:
            raise DataError(
                f"{path} has sha256 {found}, the configuration says {dataset.sha256}; it was damaged or is another "
                "version: fetch it again, or correct sha256"
            )
    try:
        with path.open("rb") as file:
            rows = json.load(file) if _begins_list(path) else list(_lines(file))
    except (ValueError, RecursionError) as error:  # no JSON, no UTF-8, or brackets without end
        raise DataError(f"{path} is neither a JSON list nor a JSON object a line ({error})") from error
    if not rows:
        raise DataError(f"{path} is empty; there is nothing to train on")
    return rows


def _begins_list(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(4096).lstrip(b"\xef\xbb\xbf \t\r\n")[:1] == b"["


def _lines(file: Iterable[bytes]) -> Iterator[Any]:
    for number, line in enumerate(file, start=1):
        if line.strip():
            try:
                yield json.loads(line)
            except ValueError as error:
                raise ValueError(f"line {number}: {error}") from error
