"""Programs that try to run on, to leave something behind or to use up the machine, and what must become of each.

Knows their text and how to see that nothing of them is left. A grader that holds these holds what a model writes by
accident; none of this makes it a sandbox.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

from harness.score.execute import Status, run_program

#: A child of every kind writes its process id into NOTE and sleeps; the program ends once that is done.
LEAVE = """\
import os, subprocess, sys, time
def noted():
    end = time.monotonic() + 5
    while not os.path.exists(NOTE) and time.monotonic() < end:
        time.sleep(0.01)
def note(pid):
    with open(NOTE + "~", "w") as file:
        file.write(str(pid))
    os.rename(NOTE + "~", NOTE)
def daemon(last):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            note(os.getpid())
            last()
        os._exit(0)
    noted()
"""


@dataclass(frozen=True)
class Hostile:
    """expected: how its run must end. leaves: whether it starts a process that would outlive it."""

    name: str
    program: str
    expected: Status
    leaves: bool = False


HOSTILE = (
    Hostile("runs for ever", "while True: pass", "timeout"),
    Hostile("waits for ever", "import time\nwhile True: time.sleep(60)", "timeout"),
    Hostile(
        "runs for ever and ignores its signals",
        "import signal\nfor s in set(signal.Signals) - {9, 19}:\n    signal.signal(s, signal.SIG_IGN)\nwhile True: 0",
        "failed",
    ),
    Hostile("stops itself", "import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)", "timeout"),
    Hostile("leaves with status 0 at once", "import os\nos._exit(0)", "failed"),
    Hostile("exits with status 0", "import sys\nsys.exit(0)", "failed"),
    Hostile("crashes in C", "import ctypes\nctypes.string_at(0)", "failed"),
    Hostile("recurses without end", "def f():\n    f()\nf()", "failed"),
    Hostile("takes 10 GB of memory", "taken = bytearray(10 * 2**30)", "failed"),
    Hostile("writes a file of 10 GB", "with open('f', 'wb') as f:\n    while True: f.write(bytes(2**20))", "failed"),
    Hostile(
        "floods its output",
        "import os, sys\nfor _ in range(500):\n    print('x' * 10**5)\n    os.write(2, b'y' * 10**5)",
        "passed",
    ),
    Hostile("floods without end", "import os\nwhile True: os.write(1, bytes(2**20))", "timeout"),
    Hostile("leaves a child", LEAVE + "note(subprocess.Popen(['sleep', '600']).pid)", "passed", True),
    Hostile(
        "leaves a child in its own session",
        LEAVE + "note(subprocess.Popen(['sleep', '600'], start_new_session=True).pid)",
        "passed",
        True,
    ),
    Hostile("leaves a daemon", LEAVE + "daemon(lambda: time.sleep(600))", "passed", True),
    Hostile(
        "leaves a daemon without its environment",
        LEAVE + "daemon(lambda: os.execve('/bin/sleep', ['sleep', '600'], {}))",
        "passed",
        True,
    ),
    Hostile(
        "leaves a daemon and kills its keeper",
        LEAVE + "daemon(lambda: time.sleep(600))\nos.kill(os.getppid(), 9)\ntime.sleep(600)",
        "failed",
        True,
    ),
    Hostile(
        "leaves a daemon and runs for ever", LEAVE + "daemon(lambda: time.sleep(600))\nwhile 1: 0", "timeout", True
    ),
)


def faults(hostile: Hostile) -> Iterator[str]:
    """Run it and say what went wrong; nothing if it was held."""
    wall = 5.0 if hostile.expected == "timeout" else 60.0  # a busy machine may take its time to fail
    with tempfile.TemporaryDirectory(prefix="hostile-") as folder:
        note = Path(folder) / "pid"
        begun = time.time()
        outcome = run_program(f"NOTE = {str(note)!r}\n{hostile.program}", 2.0, wall=wall)
        if outcome.status != hostile.expected:
            yield f"{hostile.name}: {outcome.status} ({outcome.detail}), not {hostile.expected}"
        if hostile.leaves and not note.is_file():
            yield f"{hostile.name}: it started no process, so nothing was shown"
        if note.is_file() and _alive(int(note.read_text()), begun):
            yield f"{hostile.name}: process {note.read_text()} is still alive"


def _alive(pid: int, begun: float) -> bool:
    """Whether a process that began after `begun` still runs; one that nobody has waited for yet does not."""
    try:
        process = psutil.Process(pid)
        return process.create_time() >= begun - 1 and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
