"""Start a stage as the pipeline must: with a GPU of its own, its threads set, and ending with its parent.

    python -m harness.launch --threads 2 harness.train --config pocket ...

It knows processes, locks and devices; it knows no stage.  It becomes the stage (``exec``), so what it has
set up (the lock on the GPU, the signal at the parent's death) holds for exactly as long as the stage lives,
however it ends.
"""

from __future__ import annotations

import argparse
import ctypes
import fcntl
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

_PR_SET_PDEATHSIG = 1


def gpu_ids() -> list[str]:
    """GPUs this process may use: those of CUDA_VISIBLE_DEVICES, else all that the driver lists."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return [name.strip() for name in visible.split(",") if name.strip() not in ("", "-1")]
    try:
        listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=30, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    return [str(index) for index in range(sum(line.startswith("GPU ") for line in listed.splitlines()))]


def claim_gpu(gpus: list[str], folder: Path, patience: float | None = None) -> tuple[str, int]:
    """Wait until one of `gpus` is free, and hold it: (its id, the open descriptor of its lock).

    A count of GPUs does not say which one is taken; a lock per GPU does.  It is the kernel's, tied to an
    open file that the stage inherits, so it cannot be left behind.  Raises TimeoutError after `patience`
    seconds, if given.
    """
    folder.mkdir(parents=True, exist_ok=True)
    start = time.monotonic()
    while True:
        for name in gpus:
            descriptor = os.open(folder / f"gpu-{name.replace('/', '_')}.lock", os.O_RDWR | os.O_CREAT, 0o666)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                os.close(descriptor)
                continue
            os.set_inheritable(descriptor, True)
            return name, descriptor
        if patience is not None and time.monotonic() - start > patience:
            raise TimeoutError(f"none of the GPUs {', '.join(gpus)} became free within {patience:g} s")
        time.sleep(1.0)


def die_with_parent(parent: int) -> None:
    """Ask the kernel for SIGTERM when `parent` ends (Linux; survives exec).  Exits if it already has."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)
    if os.getppid() != parent:
        raise SystemExit(128 + signal.SIGTERM)


def main(argv: list[str] | None = None) -> None:
    parent = os.getppid()
    parser = argparse.ArgumentParser(prog="python -m harness.launch", description=__doc__.split("\n")[0])
    parser.add_argument("--threads", type=int, default=0, help="CPU threads for the stage; 0 leaves them alone")
    parser.add_argument("module", help="the stage, e.g. harness.train")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="its arguments")
    given = parser.parse_args(argv)
    die_with_parent(parent)
    if given.threads:
        os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = str(given.threads)
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    if "OMP_WAIT_POLICY" not in os.environ:
        # Threads that wait for each other may spin for some 50 microseconds, the gap between two small operations.
        # The default of several milliseconds burns a core, and where another process wants one it stalls both:
        # measured on two busy cores, a decode of 7 s took 31 to 60 s.
        os.environ.setdefault("GOMP_SPINCOUNT", "2000")
    gpus = gpu_ids()
    if gpus:
        locks = Path(tempfile.gettempdir()) / f"blockdraft-gpus-{os.getuid()}"
        os.environ["CUDA_VISIBLE_DEVICES"], _ = claim_gpu(gpus, locks)
    os.execv(sys.executable, [sys.executable, "-m", given.module, *given.arguments])


if __name__ == "__main__":
    main()
