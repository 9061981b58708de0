"""Every break of tests/breaks.py is caught by the test it names.

pytest -m slow tests/test_breaks.py
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.breaks import BREAKS

ROOT = Path(__file__).resolve().parent.parent
pytestmark = pytest.mark.slow


def run(tests: list[str], broken: str | None) -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if k != "HARNESS_BREAK"}
    if broken:
        environment["HARNESS_BREAK"] = broken
    command = [sys.executable, "-m", "pytest", "-x", "-p", "no:cacheprovider", *tests]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)


@pytest.mark.parametrize("name", BREAKS)
def test_the_break_is_caught(name):
    result = run([BREAKS[name].caught_by], name)
    assert result.returncode == 1, f"{name} went unnoticed\n{result.stdout[-2000:]}\n{result.stderr[-1000:]}"
    assert "failed" in result.stdout or "FAILED" in result.stdout


def test_the_same_tests_pass_on_sound_code():
    result = run(sorted({b.caught_by for b in BREAKS.values()}), None)
    assert result.returncode == 0, result.stdout[-2000:]
