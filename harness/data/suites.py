"""From the name of a suite to its tasks: evaluation prompts, training prompts, and the check that they share
nothing.

Knows which loader serves which source. Does not know targets or token ids. A new benchmark is one loader and
one line in `SOURCES`; the results of others do not depend on it (`harness/stage.py`).
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from harness.data import dialogue, gsm8k, humaneval, math500, mbpp
from harness.data.files import DataError
from harness.data.tasks import Task
from harness.pocket import world
from harness.prompt_sections import TRAINING_SOURCES

DataDir = str | os.PathLike | None


def _no_shots(name: str, cfg: Any) -> None:
    if cfg.shots:
        raise DataError(f"suite {name!r} has shots {cfg.shots}, but {cfg.source} prompts take none; leave shots out")


def _pocket(name: str, cfg: Any, data_dir: DataDir) -> list[Task]:
    _no_shots(name, cfg)
    if name not in world.SUITES:
        raise DataError(f"the pocket world has no suite {name!r}; it has {', '.join(world.SUITES)}")
    return [_pocket_task(item) for item in world.items(name, "eval", cfg.prompts, cfg.sample_seed)]


def _gsm8k(name: str, cfg: Any, data_dir: DataDir) -> list[Task]:
    return gsm8k.tasks("test", cfg.prompts, cfg.sample_seed, cfg.shots, data_dir)


def _humaneval(name: str, cfg: Any, data_dir: DataDir) -> list[Task]:
    _no_shots(name, cfg)
    return humaneval.tasks(cfg.prompts, cfg.sample_seed, data_dir)


def _math500(name: str, cfg: Any, data_dir: DataDir) -> list[Task]:
    return math500.tasks(cfg.prompts, cfg.sample_seed, cfg.shots, data_dir)


def _mbpp(name: str, cfg: Any, data_dir: DataDir) -> list[Task]:
    return mbpp.tasks("test", cfg.prompts, cfg.sample_seed, cfg.shots, data_dir, cfg.source)


def _dialogue(name: str, cfg: Any, data_dir: DataDir) -> list[Task]:
    return dialogue.tasks(cfg.source, cfg.prompts, cfg.sample_seed, cfg.shots, data_dir)


SOURCES: dict[str, Callable[[str, Any, DataDir], list[Task]]] = {
    "pocket": _pocket,
    "gsm8k": _gsm8k,
    "humaneval": _humaneval,
    "math500": _math500,
    "mbpp": _mbpp,
    "mbpp_bare": _mbpp,
    "mt_bench": _dialogue,
    "alpaca": _dialogue,
}


def _pocket_training(source: str, count: int, seed: int, data_dir: DataDir, shots: int | None) -> list[Task]:
    names = list(world.SUITES) if source == "pocket" else [source]
    share = [count // len(names) + (i < count % len(names)) for i in range(len(names))]
    parts = [world.items(name, "train", n, seed) for name, n in zip(names, share, strict=True)]
    return [_pocket_task(item) for part in parts for item in part]


def _gsm8k_training(source: str, count: int, seed: int, data_dir: DataDir, shots: int | None) -> list[Task]:
    return gsm8k.tasks("train", count, seed, shots, data_dir)


def _mbpp_training(source: str, count: int, seed: int, data_dir: DataDir, shots: int | None) -> list[Task]:
    return mbpp.tasks("train", count, seed, shots, data_dir, source)


def _instructions_training(source: str, count: int, seed: int, data_dir: DataDir, shots: int | None) -> list[Task]:
    return dialogue.tasks(source, count, seed, shots, data_dir)


TRAINING: dict[str, Callable[[str, int, int, DataDir, int | None], list[Task]]] = {
    "pocket": _pocket_training,
    "gsm8k": _gsm8k_training,
    "mbpp": _mbpp_training,
    "mbpp_bare": _mbpp_training,
    "instructions": _instructions_training,
}


def suite_prompts(name: str, suite_cfg: Any, data_dir: DataDir = None) -> list[Task]:
    """The evaluation tasks of a suite: a seeded sample of `suite_cfg.prompts` prompts, none of them twice.

    suite_cfg: source, prompts, sample_seed, shots (worked examples; None leaves them to the suite).
    Raises DataError for an unknown source, a missing file, or more prompts than there are.
    """
    if suite_cfg.source not in SOURCES:
        raise DataError(f"suite {name!r} has source {suite_cfg.source!r}; valid sources: {', '.join(SOURCES)}")
    tasks = [replace(task, suite=name) for task in SOURCES[suite_cfg.source](name, suite_cfg, data_dir)]
    if not tasks:
        raise DataError(f"suite {name!r} has no prompts; set prompts to at least 1")
    return tasks


def training_tasks(
    source: str, count: int | None, seed: int, data_dir: DataDir = None, shots: int | None = None
) -> list[Task]:
    """Prompts whose responses the target writes for training. Never an evaluation prompt: the splits are disjoint.

    source: "pocket" (all its suites in turn), one pocket suite, "gsm8k" (its training split without the shots),
    "mbpp" and "mbpp_bare" (its validation and training splits), or "instructions". `seed` also draws the shots, so
    pass the evaluation suite's `sample_seed` and `shots` to train behind the same prefix. count: None for all there
    are, of a source that ends.
    """
    if source not in TRAINING_SOURCES:
        raise DataError(f"no training prompts for source {source!r}; valid: {', '.join(TRAINING_SOURCES)}")
    return TRAINING["pocket" if source.startswith("pocket_") else source](source, count, seed, data_dir, shots)


def refuse_overlap(training: Iterable[Task], evaluation: Sequence[Task]) -> None:
    """Raise DataError if a training prompt asks in any turn what an evaluation prompt asks first, in one of its
    wordings, case and punctuation aside."""
    asked = {key: task.id for task in evaluation for key in wordings(task)}
    said = [(task.id, key) for task in training for key in {essence(t) for t in (question_of(task), *task.turns)}]
    both = {name: asked[key] for name, key in said if key in asked}
    if both:
        shown = ", ".join(f"{a} = {b}" for a, b in list(both.items())[:5])
        raise DataError(
            f"{len(both)} training prompts are evaluation prompts ({shown}); take them out of the training set"
        )


def wordings(task: Task) -> set[str]:
    """What an evaluation prompt may read like in a training set: the question alone, as a chat message with the words
    around it, or as plain text."""
    return {essence(text) for text in (question_of(task), task.turns[0], *task.plain[:1])}


def question_of(task: Task) -> str:
    """What a task asks first, without the words around it."""
    return task.reference.get("question") or task.turns[0]


def essence(question: str) -> str:
    """A question without case, spacing and sentence marks; signs that carry meaning in arithmetic and code stay."""
    return re.sub(r"[\s.,!?;:'\"]+", " ", question.lower()).strip()


def _pocket_task(item: world.Item) -> Task:
    return Task(
        id=item.id,
        suite=item.suite,
        turns=tuple(item.turns),
        reference=dict(item.reference),
        gold=tuple(item.replies),
    )
