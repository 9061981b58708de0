"""Runs a Python program that a model wrote: a process of its own, limits on wall time, CPU, memory and files, and
nothing of it alive afterwards.

This protects a benchmark run from endless loops, full memory and left-over children, those in sessions of their own
included (Linux). The number of processes and of files is not limited. It is **not a security sandbox**: the program has
the user's rights. Untrusted code belongs in a container, or is not run at all (`run_code` of the configuration).
"""

from __future__ import annotations

import inspect
import json
import math
import os
import secrets
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import psutil

from harness.score import child

Status = Literal["passed", "failed", "timeout"]
CHILD = Path(inspect.getfile(child))
FILE_LIMIT = 16 * 2**20
#: Wall time, in times the CPU time.
WALL = 6.0
#: Seconds beyond the program's own for the process around it, which a busy machine may start late.
GRACE = 60.0
#: In the environment of every process of one run, by which left-overs are known if their keeper was killed.
MARK = "HARNESS_PROGRAM"


@dataclass(frozen=True)
class Outcome:
    """passed: ran to its end; failed: raised, left early or hit a limit; timeout: CPU or wall time was over."""

    status: Status
    detail: str = ""


def run_program(program: str, seconds: float = 10.0, memory_mb: int = 1024, wall: float | None = None) -> Outcome:
    """Run `program` to its end or its limits, then kill all it has started. Raises for no program.

    seconds: of CPU, rounded up: on a busy machine right code must not become wrong. wall: seconds of wall time, for
    what waits or stops itself; None: `WALL` times as many.
    """
    wall = WALL * seconds if wall is None else wall
    job = {
        "program": program,
        "seconds": wall,
        "cpu": math.ceil(seconds),
        "memory": memory_mb * 2**20,
        "file": FILE_LIMIT,
        "token": secrets.token_hex(16),
        "parent": os.getpid(),
    }
    mark = secrets.token_hex(16)
    with tempfile.TemporaryDirectory(prefix="run-program-", ignore_cleanup_errors=True) as folder:
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(CHILD)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=folder,
            env={"PATH": os.defpath, "HOME": folder, "TMPDIR": folder, "PYTHONHASHSEED": "0", MARK: mark},
            start_new_session=True,
        )
        out = b""
        try:
            out, _ = process.communicate(json.dumps(job).encode(), timeout=wall + GRACE)
        except subprocess.TimeoutExpired:
            pass
        finally:
            _end(process)
            found = _read(out)
            if not found.get("clean"):
                _kill_marked(mark)
    return _outcome(found, job, process.returncode)


def _read(out: bytes) -> dict:
    """What the keeper reported; nothing if it was killed."""
    try:
        found = json.loads(out)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _outcome(found: dict, job: dict, returncode: int) -> Outcome:
    if not found:
        return Outcome("failed", f"its keeper was killed (status {returncode})")
    said, token = found["said"], job["token"]
    if said.startswith(token):
        word = said[len(token) :]
        return Outcome("passed") if word == "passed" else Outcome("failed", word)
    if found["status"] is None:
        return Outcome("timeout", f"not done after {job['seconds']:g} s")
    if found["status"] == -signal.SIGXCPU:
        return Outcome("timeout", f"not done after {job['cpu']} s of CPU")
    return Outcome("failed", f"ended early with status {found['status']}")


def _end(process: subprocess.Popen) -> None:
    """End the keeper: asked first, since it sweeps, then killed."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(child.SWEEP_SECONDS + 1)
        except subprocess.TimeoutExpired:
            pass
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass
    process.wait()
    for pipe in (process.stdin, process.stdout):
        try:
            if pipe:
                pipe.close()
        except OSError:
            pass


def _kill_marked(mark: str) -> None:
    """Kill every process that carries the mark of one run."""
    for _ in range(10):
        found = []
        for process in psutil.process_iter():
            try:
                if process.environ().get(MARK) == mark and process.status() != psutil.STATUS_ZOMBIE:
                    process.kill()
                    found.append(process)
            except (psutil.Error, OSError):
                continue  # another user's, or it has just ended
        if not found:
            return
        psutil.wait_procs(found, timeout=1.0)
