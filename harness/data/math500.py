"""MATH-500: competition problems whose answers are written in LaTeX, as a chat message and as few-shot text.

Knows the wording of prompts. Does not grade. The set has no training split, so the worked examples for base models
are written here; none of them is a problem of the set.
"""

from __future__ import annotations

import os

from harness.data.files import DataError, load_rows, sample
from harness.data.gsm8k import INSTRUCTION
from harness.data.tasks import Task

#: A solution may have several paragraphs, so an empty line ends nothing.
STOP_STRINGS = ("\nProblem:",)
EXAMPLES = (
    (
        "Solve for $x$: $3(x - 4) + 5 = 2x + 7.$",
        "The left side is $3x - 12 + 5 = 3x - 7.$ From $3x - 7 = 2x + 7$ we get $x = 14.$ The answer is $\\boxed{14}.$",
    ),
    (
        "A box holds 4 red, 3 blue and 2 green marbles. Two of them are drawn at random without replacement. What is "
        "the probability that both are red? Express your answer as a common fraction.",
        "There are $\\binom{9}{2} = 36$ pairs of marbles, and $\\binom{4}{2} = 6$ of them are red. The probability is "
        "$\\frac{6}{36}.$ The answer is $\\boxed{\\frac{1}{6}}.$",
    ),
    (
        "What is the remainder when $7^{10}$ is divided by 12?",
        "Since $7^2 = 49 = 4 \\cdot 12 + 1,$ $7^2$ leaves a remainder of 1, and so does $7^{10} = (7^2)^5.$ The answer "
        "is $\\boxed{1}.$",
    ),
    (
        "Find the distance between the points $(1,2)$ and $(5,8).$",
        "The points are 4 apart in one direction and 6 in the other, so the distance is $\\sqrt{4^2 + 6^2} = "
        "\\sqrt{52} = 2\\sqrt{13}.$ The answer is $\\boxed{2\\sqrt{13}}.$",
    ),
)


def tasks(
    count: int | None, seed: int, shots: int | None = None, data_dir: str | os.PathLike | None = None
) -> list[Task]:
    """`count` tasks (all 500 if None), a seeded sample in row order.

    shots: worked examples; None: all of `EXAMPLES` in the plain form and none in a chat message. Raises DataError for
    more shots or prompts than there are.
    """
    in_chat, shots = bool(shots), len(EXAMPLES) if shots is None else shots
    if shots > len(EXAMPLES):
        raise DataError(f"{shots} shots asked for, math500 has {len(EXAMPLES)} worked examples; lower shots")
    few_shot = "".join(f"{_question(problem)} {solution}\n\n" for problem, solution in EXAMPLES[:shots])
    rows = load_rows("math500/test", data_dir)
    chosen = sample(list(range(len(rows))), count, f"math500/test/{seed}")
    return [_task(i, rows[i], few_shot, in_chat) for i in chosen]


def _question(problem: str) -> str:
    return f"Problem: {problem.strip()}\nSolution:"


def _task(index: int, row: dict, few_shot: str, in_chat: bool) -> Task:
    return Task(
        id=f"math500/test/{index:04d}",
        suite="math500",
        turns=(f"{few_shot if in_chat else ''}{row['problem']}\n{INSTRUCTION}",),
        reference={"kind": "math", "answer": row["answer"], "question": row["problem"]},
        plain=(_question(row["problem"]),),
        few_shot=few_shot,
        stop_strings=STOP_STRINGS,
    )
