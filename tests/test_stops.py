"""Where a response ends does not depend on how many tokens come at a time.

pytest tests/test_stops.py
"""

from __future__ import annotations

import pytest

from harness.stops import StopRule, trim
from tests.tiny import byte_tokenizer

TOKENIZER = byte_tokenizer()


def decode(ids) -> str:
    return TOKENIZER.decode(list(ids), skip_special_tokens=True)


def ids(text: str) -> list[int]:
    return TOKENIZER(text, add_special_tokens=False).input_ids


def ended(rule: StopRule, tokens: list[int], width: int) -> tuple[list[int], str | None]:
    """The response if tokens come `width` at a time."""
    output: list[int] = []
    for start in range(0, len(tokens), width):
        new = tokens[start : start + width]
        keep, stop = rule.first_stop(output, new)
        output += new[:keep]
        if stop is not None:
            return output, stop
    return output, None


@pytest.mark.parametrize("string", ["\n\nQuestion:", "これで答えは終わりです", "é", "end😀"])
@pytest.mark.parametrize("width", [1, 2, 7, 100])
def test_a_stop_string_is_found_at_its_last_token_however_tokens_come(string, width):
    before = ids("The answer is 42, はい。 " * 3)
    rule = StopRule((), (string,), 500, decode)
    assert ended(rule, before + ids(string) + ids(" more"), width) == (before + ids(string), "stop_string")


@pytest.mark.parametrize("width", [1, 3, 100])
def test_the_earliest_stop_wins_and_the_id_before_the_string(width):
    end = TOKENIZER.eos_token_id
    text = ids("abc.")
    rule = StopRule((end, text[3]), (".", "zz"), 6, decode)
    assert ended(rule, [*text, end], width) == (text, "stop_id")
    assert ended(rule, [*ids("abzz"), *text], width) == (ids("abzz"), "stop_string")
    assert ended(rule, [*ids("ab"), end, *text], width) == ([*ids("ab"), end], "stop_id")
    assert ended(rule, ids("abcdefgh"), width) == (ids("abcdef"), "budget")


def test_text_is_cut_before_the_first_stop_string():
    assert trim("a Q: b\n\nc", ("", "\n\n", "Q:")) == "a " and trim("whole", ("Q:",)) == "whole"
