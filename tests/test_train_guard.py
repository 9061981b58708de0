"""Locks, signals, and dying with the parent: each with real processes."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from harness.train.guard import Lifeline, RunLocked, Stopped, locked
from harness.train.state import load, save, write_bytes

ROOT = Path(__file__).resolve().parent.parent

# A child that ticks until its lifeline stops it, then says so in a file.
CHILD = """
import sys, time
from pathlib import Path
from harness.train.guard import Lifeline, Stopped, locked
folder = Path(sys.argv[1])
with locked(folder, patience=0.2), Lifeline() as life:
    if "--no-kernel" in sys.argv:
        import ctypes
        ctypes.CDLL(None).prctl(1, 0, 0, 0, 0)  # as on a system without the parent-death signal
    (folder / "running").touch()
    try:
        while True:
            life.check()
            time.sleep(0.02)
    except Stopped as stopped:
        (folder / "stopped").write_text(stopped.reason)
        raise
"""


def wait_for(path, seconds=30.0):
    end = time.monotonic() + seconds
    while not path.exists():
        assert time.monotonic() < end, f"{path.name} did not appear"
        time.sleep(0.02)
    return path


@pytest.fixture
def child(tmp_path):
    """Starts children (optionally below a shell) and leaves none behind."""
    script = tmp_path / "child.py"
    script.write_text(CHILD)
    started = []

    def start(folder, *flags, shell=False):
        folder.mkdir(exist_ok=True)
        words = [sys.executable, str(script), str(folder), *flags]
        if shell:  # a second command keeps the shell from becoming the child
            words = ["sh", "-c", " ".join(f"'{w}'" for w in words) + "; true"]
        process = subprocess.Popen(words, cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)})
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
        process.wait()


def test_a_folder_has_one_owner_and_a_killed_owner_leaves_no_lock(tmp_path, child):
    folder = tmp_path / "run"
    process = child(folder)
    wait_for(folder / "running")
    with pytest.raises(RunLocked, match="held by another process"), locked(folder, patience=0.1):
        pass
    process.kill()
    process.wait()
    with locked(folder, patience=5):
        pass


def test_sigterm_is_noticed_between_steps_and_ends_with_its_code(tmp_path, child):
    process = child(tmp_path / "run")
    wait_for(tmp_path / "run" / "running")
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 128 + signal.SIGTERM
    assert (tmp_path / "run" / "stopped").read_text() == "SIGTERM"


@pytest.mark.parametrize("flags", [(), ("--no-kernel",)], ids=["kernel-signal", "looking"])
@pytest.mark.parametrize("shell", [False, True], ids=["parent", "shell-between"])
def test_a_trainer_ends_when_the_process_that_started_it_is_killed(tmp_path, flags, shell):
    """A middle process starts the child, directly or through a shell, and is killed outright."""
    folder = tmp_path / "run"
    folder.mkdir()
    (tmp_path / "child.py").write_text(CHILD)
    words = [sys.executable, str(tmp_path / "child.py"), str(folder), *flags]
    line = " ".join(f"'{w}'" for w in words) + "; true"
    middle = subprocess.Popen(
        [sys.executable, "-c", f"import subprocess; subprocess.run({line!r} if {shell} else {words!r}, shell={shell})"],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    wait_for(folder / "running")
    middle.kill()
    middle.wait()
    wait_for(folder / "stopped")
    with locked(folder, patience=30):
        pass


def test_signal_handlers_are_given_back(tmp_path):
    before = signal.getsignal(signal.SIGINT)
    with Lifeline() as life:
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(Stopped) as stopped:
            life.check()
    assert stopped.value.code == 128 + signal.SIGINT and signal.getsignal(signal.SIGINT) is before


def test_a_failed_write_leaves_the_old_file_and_no_remains(tmp_path):
    path = tmp_path / "f"
    write_bytes(path, b"old")
    with pytest.raises(TypeError):
        write_bytes(path, "not bytes")
    save(tmp_path / "state.pt", {"identity": {"a": 1}, "x": 1})
    with pytest.raises(Exception, match="pickle|lambda"):
        save(tmp_path / "state.pt", {"identity": {"a": 1}, "x": lambda: None})
    assert path.read_bytes() == b"old" and load(tmp_path / "state.pt", {"a": 1})["x"] == 1
    assert sorted(p.name for p in tmp_path.iterdir()) == ["f", "state.pt"]
