"""Open questions that nothing grades: MT-Bench's two turns, Alpaca's one, and instructions for training.

Knows the wording of prompts: a chat model gets the user's words alone, a base model a transcript that goes on turn by
turn. Does not know what an answer should be.
"""

from __future__ import annotations

import os

from harness.data.files import DataError, load_rows, sample
from harness.data.tasks import Task

#: A base model writes both speakers; at the next one its answer is over.
STOP_STRINGS = ("\nUser:", "\nAssistant:")
HEADER = "Conversations between a user and an assistant, whose answers are correct, clear and to the point.\n\n"
#: One conversation of two turns, so that both are seen to be answered and to end; without it, a small base model often
#: repeats the question.
EXAMPLE = (
    "User: Why do leaves change their colour in autumn?\n"
    "Assistant: When days get short, trees stop making chlorophyll, the pigment that makes leaves green. Yellow and "
    "orange pigments, which were there all the time, then become visible, and some trees make red ones as well.\n"
    "User: Say that in one sentence that a small child understands.\n"
    "Assistant: The green goes to sleep for the winter, and then we can see the yellow, orange and red that were "
    "hiding under it.\n\n"
)
INSTRUCTION_FILES = ("self_instruct_seed", "llms_from_scratch", "dolly_sample")


def tasks(
    source: str, count: int | None, seed: int, shots: int | None = None, data_dir: str | os.PathLike | None = None
) -> list[Task]:
    """`count` tasks (all if None) of "mt_bench", "alpaca" or, for training, "instructions": a seeded sample in order.

    shots: None for the transcript's one example, 0 for none; a chat model never sees it. Raises DataError for more
    shots or prompts than there are.
    """
    if shots:
        raise DataError(f"{source} has shots {shots}, but its transcript has one example only; leave shots out, or 0")
    example = shots is None
    split = "train" if source == "instructions" else "test"
    names = [f"instructions/{name}" for name in INSTRUCTION_FILES] if split == "train" else [f"{source}/test"]
    rows = [row for name in names for row in load_rows(name, data_dir)]
    chosen = sample(list(range(len(rows))), count, f"{source}/{split}/{seed}")
    return [conversation(f"{source}/{split}/{i:04d}", source, rows[i]["turns"], example) for i in chosen]


def conversation(name: str, suite: str, turns: list[str], example: bool = True) -> Task:
    """An ungraded task of what a user says; example: whether a base model's transcript begins with one."""
    plain = [f"User: {turn.strip()}\nAssistant:" for turn in turns]
    return Task(
        id=name,
        suite=suite,
        turns=tuple(turns),
        reference={"kind": "none"},
        plain=tuple(plain[:1] + [f"\n{text}" for text in plain[1:]]),
        few_shot=HEADER + (EXAMPLE if example else ""),
        stop_strings=STOP_STRINGS,
    )
