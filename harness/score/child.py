"""Run by `execute.py` in a process of its own: starts the program in another, waits for its end or its time, kills
whatever it left behind, and reports.

Knows nothing of graders. It is started with an isolated interpreter and imports the standard library only. On Linux it
is the reaper of all its descendants: one that starts a session of its own, or lets its parent die, comes back to it.
"""

import ctypes
import json
import os
import resource
import signal
import sys
import time
import types

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
#: Seconds to wait for what was killed: it has to be reaped, which takes no time unless it multiplies.
SWEEP_SECONDS = 10.0
MOST_REPORTED = 4096


def prctl(option: int, value: int) -> None:
    """A Linux process setting; elsewhere nothing happens."""
    try:
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)
    except (OSError, AttributeError):
        pass


def limit(what: int, value: int, more: int = 0) -> None:
    """Lower a resource limit, its hard one to `more` beyond; a platform that refuses keeps its own."""
    try:
        hard = resource.getrlimit(what)[1]
        top = value + more if hard == resource.RLIM_INFINITY else min(value + more, hard)
        resource.setrlimit(what, (min(value, top), top))
    except (ValueError, OSError):
        pass


def run(job: dict, report: int) -> None:
    """The program itself, in a session of its own; never returns."""
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.setsid()
    limit(resource.RLIMIT_CPU, job["cpu"], more=1)  # the soft limit's signal tells it apart; the hard one kills
    limit(resource.RLIMIT_AS, job["memory"])
    limit(resource.RLIMIT_FSIZE, job["file"])
    limit(resource.RLIMIT_CORE, 0)
    null = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):  # a program's own output goes nowhere, however much it is
        os.dup2(null, stream)
    # Listed as a module is: a data class with annotations as text looks itself up there, and so do others.
    module = sys.modules["program"] = types.ModuleType("program")
    try:
        exec(compile(job["program"], "program", "exec"), module.__dict__)
        word = "passed"
    except BaseException as error:  # sys.exit before the last test is a failure too
        word = f"{type(error).__name__}: {str(error)[:200]}"
    # the token tells a program that ran to its end from one that left early with status 0
    os.write(report, (job["token"] + word).encode("utf-8", "replace"))
    os._exit(0)


def wait(program: int, seconds: float) -> int | None:
    """Exit status of the program, or None if its time was over first."""
    end, pause = time.monotonic() + seconds, 0.001
    while True:
        found, status = os.waitpid(program, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > end:
            return None
        time.sleep(pause)
        pause = min(2 * pause, 0.02)


def sweep(program: int) -> bool:
    """Kill all descendants until none is left; False if some still are when patience ends."""
    end = time.monotonic() + SWEEP_SECONDS
    while time.monotonic() < end:
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return True
        for process in descendants() or [program]:
            try:
                os.kill(process, signal.SIGKILL)
            except ProcessLookupError:
                pass
        time.sleep(0.001)
    return False


def descendants() -> list[int]:
    """Process ids below this one; none where there is no /proc."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc") if os.path.isdir("/proc") else ():
        try:
            with open(f"/proc/{int(name)}/stat", encoding="utf-8", errors="replace") as file:
                parent = int(file.read().rpartition(")")[2].split()[1])
        except (ValueError, OSError, IndexError):
            continue  # no process, or one that has just ended
        children.setdefault(parent, []).append(int(name))
    found, todo = [], [os.getpid()]
    while todo:
        below = children.get(todo.pop(), [])
        found += below
        todo += below
    return found


def stop(*_) -> None:
    raise SystemExit(1)


def main() -> None:
    signal.signal(signal.SIGTERM, stop)
    prctl(PR_SET_PDEATHSIG, signal.SIGTERM)  # end with the grader, after sweeping
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    job = json.loads(sys.stdin.buffer.read())
    if os.getppid() != job["parent"]:
        return  # it died before we asked to be told
    ours, report = os.pipe()
    os.set_blocking(ours, False)
    program = os.fork()
    if program == 0:
        os.close(ours)
        run(job, report)
    os.close(report)
    status, clean = None, False
    try:
        status = wait(program, job["seconds"])
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # being asked twice is no reason to leave half of them
        clean = sweep(program)
    try:
        said = os.read(ours, MOST_REPORTED).decode("utf-8", "replace")
    except BlockingIOError:  # somebody survived and holds the other end
        said = ""
    sys.stdout.write(json.dumps({"status": status, "said": said, "clean": clean}))
    sys.stdout.flush()


if __name__ == "__main__":
    main()
