"""Grades one response against an item's reference: by comparing an answer, or by running code.

Knows the two kinds of reference. Never raises on what a response contains. `no_answer` means that nothing
gradable was found (no answer mark, or text that is no Python); `wrong` means that something was found and
it fails.

Reference, kind "answer": `form` ("answer" or "boxed"), `answer` (two digits). Kind "code": `head` (text
that stands before the response), `setup` (helpers that stand after it), `tests` (expressions that must be
true). Kind "none": unscored.

How code is run, and what that does not protect from, is `harness.score.execute`'s affair.
"""

from __future__ import annotations

import ast
import re
from typing import Literal

from harness.score.execute import run_program

Grade = Literal["right", "wrong", "no_answer"]

CPU_SECONDS = 5.0
MEMORY_MB = 512
LONGEST = 60
FORMS = {"answer": re.compile(r"answer\s*=\s*(-?\d+)"), "boxed": re.compile(r"\\boxed\{\s*(-?\d+)\s*\}")}


def extract(reference: dict, response: str) -> str | None:
    """The gradable part of a response: the last marked number, or the whole program; None if there is
    none."""
    if reference["kind"] == "answer":
        found = FORMS[reference["form"]].findall(response)
        return found[-1] if found else None
    if reference["kind"] == "code":
        program = reference["head"] + response
        try:
            body = ast.parse(program).body
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return None
        return f"{program}\n{reference['setup']}" if response.strip() and body else None
    raise ValueError(f"reference of kind {reference['kind']!r} cannot be graded; valid: 'answer', 'code'")


def run_code(program: str, tests: list[str], seconds: float = CPU_SECONDS, wall: float | None = None) -> bool:
    """True if the program runs and every test expression is true, within the limits. Never raises."""
    checks = "\n".join(f"assert ({test})" for test in tests)
    return run_program(f"{program}\n{checks}\n", seconds=seconds, memory_mb=MEMORY_MB, wall=wall).status == "passed"


def grade(reference: dict, response: str) -> Grade:
    """Grades `response` (text after the generation prompt, special tokens removed).

    Raises ValueError only for a reference that cannot be graded (a fault of the caller, not of the
    response).
    """
    found = extract(reference, response)
    if found is None:
        return "no_answer"
    if reference["kind"] == "answer":
        # longer digit strings are no answers, and Python refuses to read them from 4,300 on
        return "right" if len(found) <= LONGEST and int(found) == int(reference["answer"]) else "wrong"
    return "right" if run_code(found, reference["tests"]) else "wrong"
