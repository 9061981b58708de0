"""Which prompts a target answers for training: chosen from their sources, none of them evaluated, none too long.

It knows how a configuration shares prompts out over sources, and how long a prompt may be.  It does not know how they
are answered (`harness.train.trajectories`).
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace

from harness.config import Config, project_path
from harness.data import (
    Task,
    TaskError,
    first_messages,
    prompt_ids,
    refuse_overlap,
    refuse_overlong,
    suite_prompts,
    training_tasks,
)
from harness.data.conversations import gather
from harness.data.prompt_file import prompt_file
from harness.prompt_sections import TrajectoriesConfig
from harness.target import Target
from harness.train.corpus import Trajectory

log = logging.getLogger(__name__)


def tasks_of(config: Config, target: Target, counts: dict[str, dict[str, int]] | None = None) -> list[Task]:
    """The training prompts of a configuration, none of which is an evaluation prompt of one of its suites.

    Where there are several sources, the suite of a task is the name of its source.  counts: filled, for every data set
    among them, with the number of its rows, of prompts, and of rows left out by reason.
    """
    settings, tasks = config.trajectories, []
    suites = {name: suite_prompts(name, suite, config.data_root) for name, suite in config.suites.items()}
    for source, count in settings.shares.items():
        if source in settings.datasets:
            found = _gathered(config, source, count, target, [t for asked in suites.values() for t in asked], counts)
        else:
            found = tasks_from(config, source, count, target.has_template)
        tasks += [replace(task, suite=source) for task in found] if settings.sources else found
    for asked in suites.values():
        refuse_overlap(tasks, asked)
    return tasks


def _gathered(
    config: Config,
    source: str,
    count: int,
    target: Target,
    evaluation: Sequence[Task],
    counts: dict[str, dict[str, int]] | None,
) -> list[Task]:
    """Prompts of a data set that this target can be asked."""
    settings = config.trajectories

    def fits(task: Task) -> bool:
        return not too_long(task, first_messages(task), target, settings)

    found = gather(source, settings.datasets[source], count, settings.seed, evaluation=evaluation, fits=fits)
    log.info("%s: %s", source, ", ".join(f"{number} {what}" for what, number in found.counts.items()))
    if len(found.tasks) < count:
        log.warning("%s has %d usable prompts, trajectories asks for %d", source, len(found.tasks), count)
    if counts is not None:
        counts[source] = found.counts
    return found.tasks


def tasks_from(config: Config, source: str, count: int, in_chat: bool) -> list[Task]:
    """`count` training prompts of one source that is no data set; in_chat: for a target with a chat template."""
    if source.endswith(".jsonl"):
        return prompt_file(project_path(source), count)
    # Where shots are drawn, the target is trained behind the very ones it will be measured behind.
    twin = config.twin(source)
    shots = None if twin is None else twin.shots
    drawn = twin is not None and (shots or not in_chat)
    seed = twin.sample_seed if drawn else config.trajectories.seed
    return training_tasks(source, count, seed, config.data_root, shots)


def longest(task: Task, target: Target, settings: TrajectoriesConfig) -> int | None:
    """Tokens that a prompt of `task` may have; None where it must simply fit the context, with all that follows it."""
    room = target.max_positions - settings.max_new_tokens
    if settings.max_prompt_tokens is not None:
        return min(settings.max_prompt_tokens, room)
    return room if task.suite in settings.datasets else None


def too_long(task: Task, messages: Sequence[dict[str, str]], target: Target, settings: TrajectoriesConfig) -> bool:
    """Whether the prompt that continues `messages` is longer than it may be."""
    most = longest(task, target, settings)
    return most is not None and len(prompt_ids(task, messages, target)) > most


def refuse_unaskable(task: Task, target: Target, settings: TrajectoriesConfig) -> None:
    """Raise TaskError unless `task` can be asked: to its end, or, where long dialogues end early, its first turn."""
    if longest(task, target, settings) is None:
        refuse_overlong(task, target, settings.max_new_tokens)
    elif too_long(task, first_messages(task), target, settings):
        most = longest(task, target, settings)
        raise TaskError(
            f"{task.id}: its prompt has more than {most} tokens, the most that trajectories.max_prompt_tokens "
            f"{settings.max_prompt_tokens} and the context of {target.name} allow; raise it, or take the prompt out"
        )


def refuse_unchosen(config: Config, tasks: Sequence[Task], lines: Sequence[Trajectory]) -> None:
    """Raise ValueError for trajectories of a data set that would not be written today: `tasks` leave out what is
    evaluated now, and these were chosen when it was not."""
    chosen = {task.id for task in tasks}
    names = tuple(f"{name}/" for name in config.trajectories.datasets)
    strange = sorted({line.prompt_id for line in lines if line.prompt_id.startswith(names)} - chosen)
    if strange:
        raise ValueError(
            f"{len(strange)} trajectories ({', '.join(strange[:5])}) answer prompts that are not chosen with these "
            "suites and settings, as an evaluation prompt would be; write the trajectories again: all others are kept"
        )
