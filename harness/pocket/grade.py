"""Grades one response against an item's reference: by comparing an answer, or by running code.

Knows the two kinds of reference. Never raises on what a response contains. `no_answer` means that nothing
gradable was found (no answer mark, or text that is no Python); `wrong` means that something was found and
it fails.

Reference, kind "answer": `form` ("answer" or "boxed"), `answer` (two digits). Kind "code": `head` (text
that stands before the response), `setup` (helpers that stand after it), `tests` (expressions that must be
true). Kind "none": unscored.

Code runs in a process group of its own with limits on wall time, CPU time and memory, in an empty folder,
without the project's packages. This stops accidents, not attacks: a model's code is untrusted, run
foreign models in a container.
"""

from __future__ import annotations

import ast
import os
import re
import secrets
import signal
import subprocess
import sys
import tempfile
from typing import Literal

Grade = Literal["right", "wrong", "no_answer"]

WALL_SECONDS = 5.0
CPU_SECONDS = 3
MEMORY_BYTES = 512 * 2**20
FORMS = {"answer": re.compile(r"answer\s*=\s*(-?\d+)"), "boxed": re.compile(r"\\boxed\{\s*(-?\d+)\s*\}")}

_RUNNER = """
import resource, sys
resource.setrlimit(resource.RLIMIT_CPU, ({cpu}, {cpu}))
resource.setrlimit(resource.RLIMIT_AS, ({memory}, {memory}))
resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
scope = {{}}
exec({code!r}, scope)
for test in {tests!r}:
    if not eval(test, scope):
        sys.exit(1)
sys.__stdout__.write({token!r})
sys.__stdout__.flush()
"""


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


def run_code(program: str, tests: list[str], wall: float = WALL_SECONDS) -> bool:
    """True if the program runs and every test expression is true, within the limits. Never raises."""
    token = secrets.token_hex(8)
    source = _RUNNER.format(cpu=CPU_SECONDS, memory=MEMORY_BYTES, code=program, tests=list(tests), token=token)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        try:
            child = subprocess.Popen(
                [sys.executable, "-I", "-S", "-"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                cwd=folder,
                env={"PATH": os.defpath},
                start_new_session=True,
            )
        except OSError:
            return False
        try:
            output, _ = child.communicate(source.encode(errors="replace"), timeout=wall)
            return child.returncode == 0 and output.endswith(token.encode())
        except (subprocess.TimeoutExpired, OSError, ValueError):
            return False
        finally:
            _end_group(child)


def _end_group(child: subprocess.Popen) -> None:
    """Ends the child and whatever it started (it leads a session, so its id is its group's)."""
    try:
        os.killpg(child.pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass
    child.wait()
    for pipe in (child.stdin, child.stdout):
        if pipe and not pipe.closed:
            pipe.close()


def grade(reference: dict, response: str) -> Grade:
    """Grades `response` (text after the generation prompt, special tokens removed).

    Raises ValueError only for a reference that cannot be graded (a fault of the caller, not of the
    response).
    """
    found = extract(reference, response)
    if found is None:
        return "no_answer"
    if reference["kind"] == "answer":
        return "right" if int(found) == int(reference["answer"]) else "wrong"
    return "right" if run_code(found, reference["tests"]) else "wrong"
