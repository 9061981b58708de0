"""Whether answers written in LaTeX mean the same, by math-verify in a process of its own.

Algebra with what a model wrote may take for ever, and neither a thread nor a computation in C can be stopped; a process
can. It is kept between comparisons, since its start takes seconds and a comparison hundredths, and killed with every
comparison that takes too long. Knows no suites. Nothing here raises for any text.
"""

from __future__ import annotations

import atexit
import contextlib
import inspect
import json
import os
import select
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Literal

import psutil

from harness.score import algebra_child

CHILD = Path(inspect.getfile(algebra_child))
#: Seconds of CPU for one comparison: on a busy machine a right answer must not become wrong.
SECONDS = 10.0
#: Seconds of wall time for one comparison, which computes and waits for nothing, and for the process to get ready.
WALL_SECONDS, START_SECONDS = 120.0, 120.0
MEMORY_MB = 2048
#: A response's answer stands near its end; longer texts would only cost time.
LONGEST_TEXT = 2000

Found = Literal["equal", "unequal", "nothing"]


class GraderError(RuntimeError):
    """A grader cannot be used, or failed its self-test: its scores would mean nothing. The message says why."""


class _Gone(Exception):
    """The process ended on its own."""


class _Worker:
    """The process, with the lines that go to and fro."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-I", str(CHILD)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={"PATH": os.defpath, "PYTHONHASHSEED": "0"},
            start_new_session=True,
        )
        setup = {"path": sys.path, "memory": MEMORY_MB * 2**20, "parent": os.getpid()}
        try:
            said = self.ask(setup, START_SECONDS, START_SECONDS)
        except _Gone:
            said = None
        if said != "ready":
            self.end()
            raise GraderError(
                f"math-verify did not start within {START_SECONDS:g} s; is `python -c 'import math_verify'` all right?"
            )

    def ask(self, question: dict, cpu: float, wall: float) -> str | None:
        """The line that answers, or None if none came within so many seconds of CPU and of wall time.

        Raises `_Gone` if the process ends before it has answered.
        """
        try:
            before = self._spent()
            self.process.stdin.write(json.dumps(question).encode() + b"\n")
            self.process.stdin.flush()
            end, line = time.monotonic() + wall, b""
            while not line.endswith(b"\n"):
                if select.select([self.process.stdout], [], [], 0.2)[0]:
                    part = os.read(self.process.stdout.fileno(), 65536)
                    if not part:
                        raise _Gone
                    line += part
                elif time.monotonic() > end or self._spent() - before > cpu:
                    return None
        except (OSError, psutil.Error) as error:
            raise _Gone from error
        return line.decode().strip()

    def _spent(self) -> float:
        used = psutil.Process(self.process.pid).cpu_times()
        return used.user + used.system

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        with contextlib.suppress(OSError):  # closing writes what a dead process has not read
            self.process.stdin.close()
        self.process.stdout.close()


class Algebra:
    """Comparisons, one at a time. The process is started when first needed, and again after one that was killed."""

    def __init__(self) -> None:
        self._worker: _Worker | None = None
        self._owner = 0
        self._lock = threading.Lock()

    def compare(self, gold: str, answer: str, seconds: float | None = None) -> Found:
        """Whether the answer in `answer` (LaTeX between $ or in `\\boxed{}`, or a text that ends with it) means what
        `gold` (LaTeX without dollars) means; "nothing" if none is found in it.

        A comparison that takes more than `seconds` of CPU (default `SECONDS`), or that its process does not survive, is
        "unequal". Raises GraderError if math-verify cannot be started.
        """
        question = {"gold": f"${gold}$", "answer": answer[-LONGEST_TEXT:]}
        with self._lock:
            found = self._asked(question, SECONDS if seconds is None else seconds)
        if not found["answer"]:
            return "nothing"
        return "equal" if found["equal"] else "unequal"

    def _asked(self, question: dict, seconds: float) -> dict:
        """The reply of a process; of a second one if the first ends over it, which may have been no fault of its."""
        for _ in range(2):
            try:
                reply = self._ready().ask(question, seconds, WALL_SECONDS)
            except _Gone:
                self._end()
                continue
            if reply is not None:
                return json.loads(reply)
            self._end()
            break
        return {"answer": True, "equal": False}

    def _ready(self) -> _Worker:
        # A fork shares the pipes of the process, which answers only one of them; a dead one answers nobody.
        if self._worker is not None and (self._owner != os.getpid() or self._worker.process.poll() is not None):
            self._end()
        if self._worker is None:
            self._worker, self._owner = _Worker(), os.getpid()
        return self._worker

    def _end(self) -> None:
        if self._worker is not None and self._owner == os.getpid():
            self._worker.end()
        self._worker = None

    def close(self) -> None:
        with self._lock:
            self._end()


ALGEBRA = Algebra()
atexit.register(ALGEBRA.close)
