"""Runs a Python program that a model wrote: own process group, limits on wall time, CPU, memory and files.

This protects a benchmark run from endless loops, full memory and left-over children. It is **not a security
sandbox**: the program has the user's rights. Untrusted code belongs in a container, or is not run at all
(`Limits.run_code`).
"""

from __future__ import annotations

import inspect
import json
import os
import secrets
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from harness.score import child

Status = Literal["passed", "failed", "timeout"]
CHILD = Path(inspect.getfile(child))
FILE_LIMIT = 16 * 2**20


@dataclass(frozen=True)
class Outcome:
    """passed: ran to its end; failed: raised, left early or hit a limit; timeout: wall time was over."""

    status: Status
    detail: str = ""


def run_program(program: str, seconds: float = 10.0, memory_mb: int = 1024) -> Outcome:
    """Run `program` to its end or its limits, then kill its process group. Raises for no program."""
    job = {
        "program": program,
        "cpu": int(seconds) + 1,
        "memory": memory_mb * 2**20,
        "file": FILE_LIMIT,
        "token": secrets.token_hex(16),
    }
    with tempfile.TemporaryDirectory(prefix="run-program-", ignore_cleanup_errors=True) as folder:
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(CHILD)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=folder,
            env={"PATH": os.defpath, "HOME": folder, "TMPDIR": folder, "PYTHONHASHSEED": "0"},
            start_new_session=True,
        )
        try:
            out, _ = process.communicate(json.dumps(job).encode(), timeout=seconds)
        except subprocess.TimeoutExpired:
            return Outcome("timeout", f"not done after {seconds:g} s")
        finally:
            _kill_group(process)
    if not out.startswith(job["token"].encode()):
        return Outcome("failed", f"ended early with status {process.returncode}")
    word = out[len(job["token"]) :].decode("utf-8", "replace")
    return Outcome("passed") if word == "passed" else Outcome("failed", word)


def _kill_group(process: subprocess.Popen) -> None:
    """Kill what is left of the group, the children of a program that has ended included."""
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
