"""Graders: equal and unequal answers, code found or not, limits of execution, and their test of themselves."""

from __future__ import annotations

import time
from dataclasses import replace
from types import SimpleNamespace

import pytest

from harness.data import Task, suite_prompts
from harness.pocket.world import SCORED
from harness.score import grade as grading
from harness.score.answers import as_number, equal, final_answer
from harness.score.code import program_of
from harness.score.grade import GraderError, Limits, grade, self_test

PROMPT = 'import math\n\nHELP = 1\n\ndef f(x):\n    """Add one."""\n'
STOPS = ("\ndef ", "\nprint(", "\n```")


def number_task(answer="42"):
    return Task("n", "gsm8k", ("q",), {"kind": "number", "answer": answer})


def python_task():
    reference = {
        "kind": "python",
        "prompt": PROMPT,
        "entry_point": "f",
        "test": "def check(candidate):\n    assert candidate(1) == 2\n\ncheck(f)",
        "solution": "    return x + HELP\n",
        "stop_strings": STOPS,
    }
    return Task("p", "humaneval", ("q",), reference)


@pytest.mark.parametrize(
    ("answer", "reference"),
    [
        ("58,500", "58500"),
        ("$1,234.50", "1234.5"),
        ("18.00", "18"),
        ("42.", "42"),
        ("12%", "12"),
        ("\\frac{3}{4}", "0.75"),
        ("6/4", "1.5"),
        ("-7", "-7"),
        ("\\$ 20", "20"),
        ("42 apples", "42"),
        ("x = 9", "9"),
        ("9\\text{ cm}", "9"),
        ("\\(18\\)", "18"),
        ("18\\quad\\text{hours}", "18"),
        ("- 7", "-7"),
        ("x = - 7", "-7"),
        ("x = -\\frac{3}{4}", "-0.75"),
        ("9\\text{ cm}^2", "9"),
        ("9^\\circ", "9"),
        ("9 \\text{ in 3 days}", "9"),
        ("\\text{9 apples}", "9"),
        ("\\mathbf{9}", "9"),
        ("10{,}080", "10080"),
        ("10,\\!080", "10080"),
        ("1\\,010\\,080", "1010080"),
        ("\\sqrt{8}", "2\\sqrt{2}"),
        ("x+1", "1+x"),
    ],
)
def test_equal_answers(answer, reference):
    assert equal(answer, reference)


@pytest.mark.parametrize(
    ("answer", "reference"),
    [("421", "42"), ("58.5", "58500"), ("-7", "7"), ("- 7", "7"), ("", "1"), ("4 2", "42"), ("4\\,2", "42"),
     ("1{,}2", "12"),
     ("\\text{9 or 8}", "9"), ("1/0", "1"), ("\\frac{1}{", "1"),
     ("9" * 500, "9"), ("nan", "1"), ("1,2", "12"), ("x+2", "1+x"), ("y+1", "x+1"), ("\\frac{", "\\sqrt{2}")],
)  # fmt: skip
def test_unequal_answers(answer, reference):
    assert not equal(answer, reference)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("12 and 13. #### 14", "14"),
        ("so \\boxed{3} no, \\boxed{\\frac{1}{2}}.", "\\frac{1}{2}"),
        ("#### 5\nor rather \\boxed{6}", "6"),
        ("\\boxed{6}, in GSM8K form #### 7", "7"),
        ("it is 8, so 1,009 apples.", "1,009"),
        ("\\boxed 9", "9"),
        ("\\boxed{9", "9"),
        ("none at all", None),
        ("## Solution\n9 and 9.\n#### Answer:\n18 dollars", "18"),
        ("So it is 18.\n#### Check 2", "18"),
        ("So it is 18.\n## Step 3", "18"),
        ("9 and 9.\n#### Final answer: 18\nof 20", "Final answer: 18"),
        ("So it is 18.\n#### **Check**", "18"),
        ("#### 2. Add them up\n9 + 9 = 18", "18"),
        ("#### $18\n4 left over", "$18"),
        ("#### **18** dollars\nof 20", "**18** dollars"),
        ("it is 10-18", "18"),
        ("that is 20 - (2)-18", "18"),
        ("it is -18", "-18"),
        ("it is \u221218", "-18"),
        ("it is 20\u221218", "18"),
        ("3 left.\n#### The final answer is 18", "The final answer is 18"),
        ("", None),
        ("####", None),
    ],
)
def test_the_last_explicit_answer_counts_before_the_last_number(text, found):
    assert final_answer(text) == found


@pytest.mark.parametrize("text", ["9^{9^{9}}", "\\boxed{9^{9^{9}}}", "#### 9^{9^{9}}"])
def test_a_tower_of_powers_is_graded_at_once(text):
    start = time.monotonic()
    assert grade(number_task("18"), text).verdict == "wrong" and not equal(text, "18")
    assert time.monotonic() - start < 1


def test_number_grades_tell_no_answer_from_a_wrong_one():
    verdicts = [grade(number_task(), text).verdict for text in ("#### 42", "it is 43", "I do not know")]
    assert verdicts == ["right", "wrong", "no_answer"]


def test_numbers_are_exact():
    assert as_number("0.1") * 3 == as_number("0.3")


@pytest.mark.parametrize(
    "text",
    [
        "    return x + HELP\n",
        "    return x + HELP\n\ndef g(x):\n    broken(",
        "return x + HELP",  # indentation eaten at the join
        "Sure:\n```python\ndef f(x):\n    return x + HELP\n```\nDone.",
        "```\nfrom typing import List\ndef f(x):\n    return x + 1\n```",
        "First ```python\ndef f(x):\n    return x\n```\nbetter:\n```python\ndef f(x):\n    return x + 1\n```",
        "def f(x):\n    return x + 1\nThis adds one.",
        "```python\n    return x + 1\n```",
        "```python\ndef f(x):\n    return x + 1",  # the fence is not closed
        '```python\ndef f(x):\n    """\n    ```\n    f(1)\n    ```\n    """\n    return x + 1\n```',
        "```python\ndef f(x):\n    return x + 1\n```\nAgain:\n```python\ndef f(x):\n    return (x",  # cut by the budget
        "```python\ndef f(x):\n    return x + 1\n```\nIts signature:\n```python\ndef f(x):\n```",
        "    return x + HELP\n```\n",  # closes a fence that the question opened
        "```python\nfrom __future__ import annotations\n\ndef f(x: Any) -> int:\n    return x + 1\n```",
        "1. So:\n\n   ```python\n   def f(x):\n       return x + 1\n   ```\n2. Done.",
        "    ```\n    y = x\n    return y + 1\n    ```",
    ],
)
def test_right_code_is_found_in_every_form(text):
    assert grade(python_task(), text).verdict == "right"


@pytest.mark.parametrize("text", ["", "\n\n", "I cannot do that.", "```\nno code here at all\n```"])
def test_no_code_is_told_apart_from_wrong_code(text):
    assert grade(python_task(), text).verdict == "no_answer"


@pytest.mark.parametrize("text", ["    return x\n", "    return (\n", "    raise SystemExit(0)\n"])
def test_wrong_code_is_wrong(text):
    assert grade(python_task(), text).verdict == "wrong"


def test_a_completion_keeps_the_context_of_its_prompt():
    assert program_of("    return x\n", PROMPT, "f", STOPS).startswith("import math")
    assert program_of("```python\ndef f(x):\n    return 1\n```", PROMPT, "f").startswith("import math\n\nHELP")


def test_code_is_not_run_when_told_not_to():
    found = grade(python_task(), "    return x + 1\n", limits=Limits(run_code=False))
    assert (found.score, found.verdict) == (None, "not_run")


@pytest.mark.parametrize("name", SCORED)
def test_every_scored_pocket_suite_grades_gold_right_and_broken_wrong(name):
    cfg = SimpleNamespace(source="pocket", prompts=3, sample_seed=0, shots=None)
    assert self_test(suite_prompts(name, cfg)) == 3


def test_self_test_passes_for_sound_graders_and_stops_unsound_ones(monkeypatch):
    tasks = [number_task(), number_task("1,000"), python_task()]
    assert self_test(tasks) == 3
    monkeypatch.setattr(grading, "equal", lambda answer, reference: True)
    with pytest.raises(GraderError, match="expected score 0.0, got 1.0"):
        self_test(tasks)
    monkeypatch.setattr(grading, "equal", lambda answer, reference: False)
    with pytest.raises(GraderError, match="expected score 1.0, got 0.0"):
        self_test(tasks)


def test_a_dialogue_is_not_graded_and_an_unknown_kind_is_an_error():
    assert grade(Task("c", "chat", ("q",), {"kind": "none"}), "anything").score is None
    with pytest.raises(GraderError, match="'guess'"):
        grade(replace(number_task(), reference={"kind": "guess"}), "1")
