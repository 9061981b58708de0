"""One trainer per folder, that ends with its parent and saves before it does.

It knows processes, signals and lock files; it does not know what is trained.  A killed pipeline must leave no
orphan that keeps writing beside its successor: the kernel signals us when our parent dies (Linux), and
between steps we also look whether our parent, or a shell's parent where a shell stands between, is still the
one that started us.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

import psutil
from filelock import FileLock, Timeout

log = logging.getLogger(__name__)

_PR_SET_PDEATHSIG = 1
_SHELLS = ("sh", "bash", "dash", "zsh", "ksh", "busybox")


class Stopped(SystemExit):
    """Raised between steps once a signal came or the parent is gone; its code is the shell's 128 + signal."""

    def __init__(self, signum: int, reason: str) -> None:
        super().__init__(128 + signum)
        self.reason = reason


class RunLocked(RuntimeError):
    """Another process holds the run folder."""


@contextlib.contextmanager
def locked(folder: Path, patience: float = 30.0) -> Iterator[None]:
    """Hold `folder` alone.  Waits `patience` seconds (a predecessor may be saving), then raises `RunLocked`.

    The lock is the kernel's, so a process killed outright leaves none behind.
    """
    folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder / "lock")
    try:
        lock.acquire(timeout=patience)
    except Timeout:
        raise RunLocked(
            f"{folder} is held by another process (after {patience:g} s); wait for it or stop it first"
        ) from None
    try:
        yield
    finally:
        lock.release()


class Lifeline:
    """Between steps call `check()`: it raises `Stopped` after SIGTERM or SIGINT, or once the parent died."""

    def __init__(self) -> None:
        self.signum = 0
        self._ancestors = _watched_ancestors()
        self._previous: dict[int, object] = {}

    def __enter__(self) -> Lifeline:
        for signum in (signal.SIGTERM, signal.SIGINT):
            self._previous[signum] = signal.signal(signum, self._note)
        _signal_on_parent_death(signal.SIGTERM)
        return self

    def __exit__(self, *_: object) -> None:
        for signum, handler in self._previous.items():
            signal.signal(signum, handler)

    def check(self) -> None:
        if self.signum:
            raise Stopped(self.signum, signal.Signals(self.signum).name)
        for child, parent in self._ancestors:
            if _parent_of(child) != parent:
                raise Stopped(signal.SIGTERM, f"parent process {parent} is gone")

    def _note(self, signum: int, _frame: FrameType | None) -> None:
        if self.signum:  # a second one: the user means it
            raise Stopped(signum, f"{signal.Signals(signum).name} again")
        self.signum = signum
        log.warning("%s: saving after this step, then stopping", signal.Signals(signum).name)


def _watched_ancestors() -> list[tuple[int, int]]:
    """(process, its parent) pairs that must stay as they are: us, and a non-interactive shell that started
    us."""
    me, parent = os.getpid(), os.getppid()
    watched = [(me, parent)]
    if _is_command_shell(parent):
        grandparent = _parent_of(parent)
        if grandparent:
            watched.append((parent, grandparent))
    return watched


def _parent_of(pid: int) -> int | None:
    """Parent of a process, or None if it is gone."""
    if pid == os.getpid():
        return os.getppid()
    try:
        return psutil.Process(pid).ppid()
    except psutil.Error:
        return None


def _is_command_shell(pid: int) -> bool:
    """Whether `pid` is a shell that runs a command line (sh -c), not one that somebody types into."""
    try:
        words = psutil.Process(pid).cmdline()
    except psutil.Error:
        return False
    name = os.path.basename(words[0]) if words else ""
    return name in _SHELLS and any(word.startswith("-") and word.endswith("c") for word in words[1:4])


def _signal_on_parent_death(signum: int) -> None:
    """Until this process ends: it is a property of the process, and the launcher may have set it already."""
    if sys.platform != "linux":
        return  # `check` still looks at the parent
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, int(signum), 0, 0, 0)
