"""Snakemake's command line, many times over: a process that has imported it is forked for every command, which saves
each of them a second of imports.  Nothing else differs; of the project a fork has imported nothing yet."""

import json
import subprocess
import sys
from pathlib import Path

SERVER = """
import json, os, sys
import pandas, snakemake.cli
sys.path.insert(0, os.getcwd())  # as python -m does
for line in sys.stdin:
    out, arguments = json.loads(line)
    child = os.fork()
    if not child:
        said = os.open(out, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(said, 1), os.dup2(said, 2), os.close(0)
        snakemake.cli.main(arguments)  # ends in sys.exit
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


class ForkedSnakemake:
    """Runs Snakemake in one folder.  A context manager: the process that waits ends with it."""

    def __init__(self, root: Path, out: Path) -> None:
        self.root, self.out = root, out

    def __enter__(self) -> "ForkedSnakemake":
        command = [sys.executable, "-c", SERVER]
        pipe = subprocess.PIPE
        self.server = subprocess.Popen(command, cwd=self.root, stdin=pipe, stdout=pipe, text=True)
        return self

    def __exit__(self, *_) -> None:
        self.server.stdin.close()
        self.server.wait(timeout=60)
        self.server.stdout.close()

    def __call__(self, *arguments: str) -> tuple[int, str]:
        """The exit status, and everything it said."""
        print(json.dumps([str(self.out), arguments]), file=self.server.stdin, flush=True)
        status = int(self.server.stdout.readline())
        return status, self.out.read_text()
