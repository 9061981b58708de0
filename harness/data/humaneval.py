"""HumanEval: complete a Python function, as a chat message and as the bare prompt for base models.

Knows the wording of prompts and what ends a completion. Does not run code.
"""

from __future__ import annotations

import os

from harness.data.files import load_rows, sample
from harness.data.tasks import Task

INSTRUCTION = (
    "Write a solution to the following problem and make sure that it passes the tests. "
    "Answer with the whole function in one fenced code block."
)
#: Anything that starts again at the left margin ends the function body.
STOP_STRINGS = (
    "\nclass ",
    "\ndef ",
    "\n#",
    "\n@",
    "\nif ",
    "\nprint(",
    "\nassert ",
    "\nimport ",
    "\nfrom ",
    '\n"""',
    "\n```",
)


def tasks(count: int | None, seed: int, data_dir: str | os.PathLike | None) -> list[Task]:
    """`count` tasks (all 164 if None), a seeded sample in row order."""
    rows = load_rows("humaneval/test", data_dir)
    return [_task(i, rows[i]) for i in sample(list(range(len(rows))), count, f"humaneval/test/{seed}")]


def _task(index: int, row: dict) -> Task:
    return Task(
        id=f"humaneval/test/{index:04d}",
        suite="humaneval",
        turns=(f"{INSTRUCTION}\n```python\n{row['prompt'].rstrip()}\n```",),
        reference={
            "kind": "python",
            "prompt": row["prompt"],
            "entry_point": row["entry_point"],
            "test": f"{row['test']}\ncheck({row['entry_point']})",
            "solution": row["canonical_solution"],
            "stop_strings": STOP_STRINGS,
            "question": row["prompt"],
        },
        plain=(row["prompt"],),
        stop_strings=STOP_STRINGS,
    )
