"""GSM8K: grade-school word problems, as a chat message and as few-shot text for base models.

Knows the wording of prompts. Does not grade. Shots are drawn by seed from the training split; training
prompts are the training split without the shots.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from random import Random

from harness.data.files import DataError, load_rows, sample
from harness.data.tasks import Task

INSTRUCTION = "Please reason step by step, and put your final answer within \\boxed{}."
STOP_STRINGS = ("\nQuestion:", "\n\n")
#: Worked examples for a target without a chat template, where the configuration leaves the number open: enough to
#: show the form, few because they stand before every training sequence.
USUAL_SHOTS = 3
_FINAL = re.compile(r"####\s*(\S[^\n]*)")


def gold_answer(answer: str) -> str:
    """The number after `#### ` that ends each reference solution."""
    found = _FINAL.findall(answer)
    if not found:
        raise DataError(f"a GSM8K answer has no '#### ' line: {answer[-80:]!r}")
    return found[-1].strip()


def shot_indices(count: int, seed: int, rows: Sequence[dict]) -> list[int]:
    """Rows of the training split that serve as shots: drawn from its shorter half, so that the prefix stays short."""
    by_length = sorted(range(len(rows)), key=lambda i: (len(rows[i]["question"]) + len(rows[i]["answer"]), i))
    return Random(f"gsm8k-shots/{seed}").sample(sorted(by_length[: (len(rows) + 1) // 2]), count)


def tasks(
    split: str,
    count: int | None,
    seed: int,
    shots: int | None = None,
    data_dir: str | os.PathLike | None = None,
) -> list[Task]:
    """`count` tasks of a split (all if None), a seeded sample in row order; `split` is "test" or "train".

    shots: worked examples; None: `USUAL_SHOTS` in the plain form and none in a chat message. The training
    split leaves the shots out. Raises DataError if more prompts are asked for than there are.
    """
    in_chat, shots = bool(shots), USUAL_SHOTS if shots is None else shots
    train = load_rows("gsm8k/train", data_dir) if shots or split == "train" else []
    chosen = shot_indices(shots, seed, train) if shots else []
    few_shot = "".join(f"{_question(train[i])} {train[i]['answer'].strip()}\n\n" for i in chosen)
    rows = train if split == "train" else load_rows(f"gsm8k/{split}", data_dir)
    taken = set(chosen) if split == "train" else set()
    free = [i for i in range(len(rows)) if i not in taken]
    return [_task(split, i, rows[i], few_shot, in_chat) for i in sample(free, count, f"gsm8k/{split}/{seed}")]


def _question(row: dict) -> str:
    return f"Question: {row['question'].strip()}\nAnswer:"


def _task(split: str, index: int, row: dict, few_shot: str, in_chat: bool) -> Task:
    return Task(
        id=f"gsm8k/{split}/{index:04d}",
        suite="gsm8k",
        turns=(f"{few_shot if in_chat else ''}{row['question']}\n{INSTRUCTION}",),
        reference={"kind": "number", "answer": gold_answer(row["answer"]), "question": row["question"]},
        plain=(_question(row),),
        few_shot=few_shot,
        stop_strings=STOP_STRINGS,
    )
