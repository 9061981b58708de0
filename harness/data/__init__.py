"""Prompts: where they come from and how they become token ids. Knows no drafter, no decoder loop and no
grade.
"""

from harness.data.files import DataError
from harness.data.suites import refuse_overlap, suite_prompts, training_tasks
from harness.data.tasks import (
    StopStrings,
    Task,
    TaskError,
    build_prompts,
    first_messages,
    next_turn,
    plain_text,
    prompt_ids,
    prompt_of,
    refuse_overlong,
    shared_prefix,
    stop_strings,
    stops_of,
)

__all__ = [
    "DataError",
    "StopStrings",
    "Task",
    "TaskError",
    "build_prompts",
    "first_messages",
    "next_turn",
    "plain_text",
    "prompt_ids",
    "prompt_of",
    "refuse_overlong",
    "refuse_overlap",
    "shared_prefix",
    "stop_strings",
    "stops_of",
    "suite_prompts",
    "training_tasks",
]
