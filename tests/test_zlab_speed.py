"""The comparison of speed with z-lab's package counts rightly; it needs an environment of its own, so here clocks are
made up."""

from __future__ import annotations

from itertools import pairwise

import pytest

from harness.decode import DecodeSettings, Prompt
from tests.cross.zlab_speed import measure, ratio

ASKED = [(Prompt(f"p{i}", (1, 2)), DecodeSettings(0.0, 0, 9)) for i in range(4)]


def asks(order, **seconds):
    def ask(name):
        def answer(prompt, settings):
            order.append(name)
            return seconds[name], [5, 6, 7 if name != "odd" or prompt.id != "p2" else 8]

        return answer

    return {name: ask(name) for name in seconds}


def test_arms_take_turns_and_speeds_are_totals_of_a_repeat():
    order = []
    found = measure(asks(order, ours=0.5, theirs=1.0), ASKED, repeats=2)
    assert found["tokens_per_s"] == {"ours": [6.0, 6.0], "theirs": [3.0, 3.0]}
    counted = order[-16:]
    assert len(order) > 16, "some go ahead"
    firsts = counted[::2]
    assert set(firsts) == {"ours", "theirs"} and all(a != b for a, b in pairwise(firsts[:4]))
    assert all(a != b for a, b in zip(counted[::2], counted[1::2], strict=True))


def test_outputs_that_differ_are_counted():
    assert measure(asks([], ours=1.0, odd=1.0), ASKED, repeats=2)["outputs_unlike_ours"] == {"ours": 0, "odd": 2}


def test_a_ratio_is_of_one_repeat():
    speeds = {"a": [1.0, 4.0, 9.0], "b": [1.0, 2.0, 3.0]}
    assert ratio(speeds, "a", "b") == {"median": 2.0, "low": 1.0, "high": 3.0}
    with pytest.raises(ValueError):
        ratio({"a": [1.0], "b": [1.0, 2.0]}, "a", "b")
