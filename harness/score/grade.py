"""One entry to all graders: a task and a response in, a score and a verdict out. Never raises for any
response.

Knows which grader a reference asks for (`reference["kind"]`). Does not know records or methods.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from harness.data.tasks import Task
from harness.pocket import grade as pocket
from harness.score.algebra import GraderError
from harness.score.answers import equal, final_answer, latex_verdict
from harness.score.code import future_first, program_of
from harness.score.execute import run_program

_DIGIT = re.compile(r"\d")

#: not_run: an answer that is code, where code may not be run.
Verdict = Literal["right", "wrong", "no_answer", "not_run"]


@dataclass(frozen=True)
class Limits:
    """What a program may use (seconds of CPU), and whether programs are run at all."""

    run_code: bool = True
    seconds: float = 10.0
    memory_mb: int = 1024


@dataclass(frozen=True)
class Grade:
    """score: 1.0, 0.0, or None where nothing is graded (a dialogue; code that may not be run, verdict "not_run")."""

    score: float | None = None
    verdict: Verdict | None = None

    @classmethod
    def of(cls, verdict: Verdict | None) -> Grade:
        score = None if verdict in (None, "not_run") else float(verdict == "right")
        return cls(score, verdict)


def grade(task: Task, text: str, turn: int = 0, limits: Limits | None = None) -> Grade:
    """Grade one response to `task`. Raises GraderError only for a reference whose kind no grader knows, or a grader
    that does not run at all."""
    limits = limits or Limits()
    kind = task.reference.get("kind", "none")
    if kind == "none":
        return Grade()
    if kind in ("python", "code") and not limits.run_code:
        return Grade.of("not_run")
    if kind == "number":
        return _grade_number(task.reference["answer"], text)
    if kind == "math":
        return Grade.of(latex_verdict(text, task.reference["answer"]))
    if kind == "python":
        return _grade_python(task.reference, text, limits)
    if kind in ("answer", "code"):
        return Grade.of(pocket.grade(task.reference, text))
    known = "none, number, math, python, answer, code"
    raise GraderError(f"{task.id}: no grader for reference kind {kind!r}; known: {known}")


def _grade_number(answer: str, text: str) -> Grade:
    found = final_answer(text)
    if found is None:
        return Grade.of("no_answer")
    return Grade.of("right" if equal(found, answer) else "wrong")


def _grade_python(reference: dict[str, Any], text: str, limits: Limits) -> Grade:
    program = program_of(text, reference["prompt"], reference["entry_point"], reference["stop_strings"])
    if program is None:
        return Grade.of("no_answer")
    checked = future_first(f"{reference.get('setup', '')}\n{program}\n{reference['test']}\n")
    outcome = run_program(checked, limits.seconds, limits.memory_mb)
    return Grade.of("right" if outcome.status == "passed" else "wrong")


def gold_response(task: Task) -> str | None:
    """A first response that must be graded right; None where the task holds none."""
    kind = task.reference.get("kind", "none")
    if kind == "number":
        return f"The answer follows.\n#### {task.reference['answer']}"
    if kind == "math":
        return f"The answer follows: $\\boxed{{{task.reference['answer']}}}$."
    if kind == "python":
        return f"```python\n{task.reference['prompt']}{task.reference['solution']}\n```"
    return task.gold[0] if task.gold else None


def broken_response(task: Task) -> str | None:
    """A first response of the right form that must be graded wrong; None where the task holds no gold one."""
    if task.reference.get("kind", "none") == "python":
        return f"```python\ndef {task.reference['entry_point']}(*args):\n    raise NotImplementedError\n```"
    gold = gold_response(task)
    if gold and not _DIGIT.search(gold):  # LaTeX alone: a word, a letter of a choice, an expression in x
        return "The answer follows: $\\boxed{\\text{none of these}}$."
    # every digit: the last one alone may be a decimal that the answer rounds away, or of an entry no test reads
    return gold and _DIGIT.sub(lambda match: str((int(match.group()) + 1) % 10), gold)


def self_test(tasks: Iterable[Task], limits: Limits | None = None, most: int = 8) -> int:
    """Grade gold and broken responses of up to `most` tasks; the number of tasks tested.

    Raises GraderError at the first gold response that is not right or broken one that is.
    """
    tested = 0
    for task in list(tasks)[:most]:
        for response, expected in ((gold_response(task), 1.0), (broken_response(task), 0.0)):
            if response is None:
                continue
            found = grade(task, response, limits=limits)
            if found.score is not None and found.score != expected:
                raise GraderError(
                    f"grader self-test failed for {task.id}: expected score {expected}, got {found.score} "
                    f"({found.verdict}) for {response[-120:]!r}; scores of this run would mean nothing"
                )
        tested += 1
    return tested
