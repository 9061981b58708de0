"""Code is run within limits and leaves nothing behind; answers in LaTeX are compared in a process that is replaced."""

from __future__ import annotations

import os
import time

import psutil
import pytest

from harness.data import Task
from harness.score import algebra, execute, hostile
from harness.score.algebra import Algebra, GraderError
from harness.score.answers import latex_verdict
from harness.score.execute import run_program
from harness.score.grade import grade
from harness.score.hostile import HOSTILE, faults

#: Seconds that no other process sleeps.
UNIQUE = f"4321.{os.getpid()}"
QUICK = [one for one in HOSTILE if one.expected != "timeout" and "for ever" not in one.name]


def test_a_program_that_leaves_early_has_not_passed():
    assert run_program("import sys; sys.exit(0)").status == "failed"
    assert run_program("import os; os._exit(0)").detail == "ended early with status 0"
    assert run_program("print('x' * 10)").status == "passed"


def test_a_program_is_a_module_that_can_be_looked_up():
    """A data class looks for its own module if its annotations are text."""
    head = "from __future__ import annotations\nfrom dataclasses import dataclass\nimport sys\n"
    found = run_program(f"{head}@dataclass\nclass A:\n    x: int\nassert A(1).x and sys.modules[__name__].A is A")
    assert found.status == "passed", found.detail


def test_wall_time_memory_and_file_limits_hold():
    start = time.monotonic()
    assert run_program("import time; time.sleep(60)", wall=0.5).detail == "not done after 0.5 s"
    assert time.monotonic() - start < 15
    assert run_program("while True: pass", seconds=0.5, wall=60).detail == "not done after 1 s of CPU"
    assert run_program("x = bytearray(2 * 10**9)", memory_mb=256).detail.startswith("MemoryError")
    assert run_program("open('f', 'wb').write(b'x' * 10**8)").status == "failed"


@pytest.mark.parametrize("one", QUICK, ids=lambda one: one.name.replace(" ", "-"))
def test_a_hostile_program_is_held(one):
    assert list(faults(one)) == []


@pytest.mark.slow
@pytest.mark.parametrize("one", [h for h in HOSTILE if h not in QUICK], ids=lambda one: one.name.replace(" ", "-"))
def test_a_hostile_program_is_stopped(one):
    assert list(faults(one)) == []


@pytest.fixture
def leaky(monkeypatch):
    """Runs that kill their keeper outright and look for nothing."""
    monkeypatch.setattr(execute, "_kill_marked", lambda mark: None)
    monkeypatch.setattr(execute, "_end", lambda process: process.wait())
    yield
    for process in psutil.process_iter(["cmdline"]):
        if process.info["cmdline"] == ["sleep", UNIQUE]:
            process.kill()


def test_a_left_over_process_is_noticed(leaky):
    """The check of hostile programs can fail: one that survives its run is named, and so is one that never was."""
    started = hostile.LEAVE + f"note(subprocess.Popen(['sleep', '{UNIQUE}'], start_new_session=True).pid)\n"
    orphan = hostile.Hostile("escapes", started + "os.kill(os.getppid(), 9)\ntime.sleep(60)", "failed", True)
    assert any("still alive" in fault for fault in faults(orphan))
    assert any("started no process" in fault for fault in faults(hostile.Hostile("idle", "", "passed", True)))
    assert any("passed" in fault for fault in faults(hostile.Hostile("harmless", "", "failed")))


def test_the_program_cannot_see_the_environment():
    os.environ["SECRET_OF_THE_TEST"] = "1"
    try:
        assert run_program("import os\nassert 'SECRET_OF_THE_TEST' not in os.environ").status == "passed"
    finally:
        del os.environ["SECRET_OF_THE_TEST"]


@pytest.mark.parametrize(
    ("text", "gold", "verdict"),
    [
        ("so \\boxed{\\frac{1}{2}}", "\\dfrac12", "right"),
        ("\\boxed{x + 1}", "1+x", "right"),
        ("\\boxed{(1, 2)}", "(1,2)", "right"),
        ("\\boxed{1\\,000\\,000}", "1000000", "right"),
        ("\\boxed{\\text{east}}", "\\text{east}", "right"),
        ("\\boxed{3} or rather \\boxed{4}", "3", "wrong"),
        ("The answer is $\\frac{1}{2}$.", "0.5", "right"),
        ("I cannot say.", "2", "no_answer"),
        ("\\boxed{ }", "2", "no_answer"),
        (f"\\boxed{{{'1+' * 600}1}}", "601", "wrong"),
        ("\\boxed{\\frac{1}{", "\\frac{1}{2}", "wrong"),
    ],
)
def test_latex_answers(text, gold, verdict):
    assert latex_verdict(text, gold) == verdict


NASTY = (
    "\x00",
    "\ud800",
    "\\boxed{" * 500,
    "\\boxed{" * 500 + "}" * 500,
    "\\boxed{\ud800}",
    "$" * 999,
    "\\frac{" * 200,
    "```python\n" + "(" * 3000,
    "def f(x):\n" + "\n".join(" " * i + "if x:" for i in range(1, 150)),
    "def f(x):\n    '''",
    "import this\n" * 500 + "def f(x): return\nand so",
    "#### " * 99,
    "9" * 9999,
)


@pytest.mark.parametrize("text", NASTY, ids=range(len(NASTY)))
def test_no_grader_raises(text):
    code = {"kind": "python", "entry_point": "f", "test": "assert f(1)", "stop_strings": ("\n```",)}
    numbers = {"kind": "math", "answer": "\\frac{1}{2}"}, {"kind": "number", "answer": "3"}
    for reference in (*numbers, code | {"prompt": ""}, code | {"prompt": "def f(x):\n"}):
        assert grade(Task("t", "s", ("q",), reference), text).verdict in ("wrong", "no_answer")


@pytest.mark.parametrize(("form", "text"), [("answer", "answer = {}"), ("boxed", "\\boxed{{{}}}")])
def test_an_answer_of_too_many_digits_to_read_is_wrong(form, text):
    task = Task("t", "pocket_word", ("q",), {"kind": "answer", "form": form, "answer": "12"})
    assert grade(task, text.format("9" * 5000)).verdict == "wrong" and grade(task, text.format("12")).verdict == "right"


def test_a_comparison_whose_process_is_killed_is_wrong_and_the_next_one_works():
    ours = Algebra()
    try:
        assert ours.compare("\\sqrt{8}", "$2\\sqrt{2}$") == "equal"
        first = ours._worker
        assert ours.compare("\\sqrt{2}", "$9^{9^{9}}$", seconds=1.0) == "unequal"
        assert first.process.poll() is not None and ours._worker is None
        assert ours.compare("2", "$2$") == "equal"
        ours._worker.process.kill()
        assert ours.compare("2", "$2$") == "equal"
    finally:
        ours.close()


def test_a_process_that_dies_with_a_question_on_its_way_raises_nothing(monkeypatch):
    """The question then stays in the pipe's buffer, and closing the pipe tries to write it once more."""
    ours = Algebra()
    try:
        assert ours.compare("2", "$2$") == "equal"
        dead, ready = ours._worker, ours._ready
        dead.process.kill()
        dead.process.wait()
        found = iter([dead])
        monkeypatch.setattr(ours, "_ready", lambda: next(found, None) or ready())
        assert ours.compare("2", "$2$") == "equal" and ours._worker is not dead
    finally:
        ours.close()


def test_a_grader_that_does_not_start_says_so(monkeypatch, tmp_path):
    broken = tmp_path / "child.py"
    broken.write_text("raise SystemExit(3)\n")
    monkeypatch.setattr(algebra, "CHILD", broken)
    with pytest.raises(GraderError, match="math-verify did not start"):
        Algebra().compare("1", "$1$")
