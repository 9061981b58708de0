"""The check against z-lab's package judges rightly: what it counts as equal, and what it lets pass.

The check itself needs an environment of its own, see tests/cross/zlab_parity.py; here the answers are made up.
"""

from __future__ import annotations

import copy
import json

import pytest

from harness.decode import Response
from tests.cross.zlab_parity import compare, passed, shift_taps

OURS = [
    ({}, Response("a", 0, (1,), [5, 6, 7, 8, 3], [1, 4], [2, 2], "stop_id")),
    ({}, Response("b", 0, (1,), [5, 6, 7], [0, 3], [1, 1], "budget")),
]
ANSWERS = [
    {
        "released": {"output_ids": [5, 6, 7, 8, 3], "acceptance_lengths": [2, 2]},
        "unstopped": {"output_ids": [5, 6, 7, 8, 3, 9, 9, 9], "acceptance_lengths": [2, 5, 1]},
    },
    {
        "released": {"output_ids": [5, 6, 7], "acceptance_lengths": [1, 1]},
        "unstopped": {"output_ids": [5, 6, 7, 1, 1, 1], "acceptance_lengths": [1, 4]},
    },
]


def outcome(**control):
    found = compare(OURS, ANSWERS)
    facts = {"compared": found, "compared_with_a_short_budget": dict(found)}
    return facts | {"control_taps_off_by_one": found | {"equal_steps": 2} | control}


def test_equal_answers_are_counted_as_equal_with_the_last_step_uncut():
    assert compare(OURS, ANSWERS) == {
        "responses": 2,
        "equal_outputs": 2,
        "equal_unstopped_outputs": 2,
        "equal_released_steps": 2,
        "steps": 4,
        "equal_steps": 4,
        "responses_with_equal_steps": 2,
        "stopped_by_budget": 1,
    }
    assert passed(outcome())


@pytest.mark.parametrize(
    ("run", "key", "value", "count"),
    [
        ("released", "output_ids", [5, 6, 7, 8, 4], "equal_outputs"),
        ("released", "output_ids", [5, 6, 7, 8, 3, 9], "equal_outputs"),
        ("unstopped", "output_ids", [5, 6, 7, 4, 3, 9], "equal_unstopped_outputs"),
        ("unstopped", "acceptance_lengths", [2, 4, 1], "equal_steps"),
        ("unstopped", "acceptance_lengths", [2], "equal_steps"),
    ],
)
@pytest.mark.parametrize("part", ["compared", "compared_with_a_short_budget"])
def test_one_unequal_answer_fails_the_check(run, key, value, count, part):
    answers = copy.deepcopy(ANSWERS)
    answers[0][run][key] = value
    found = compare(OURS, answers)
    assert found[count] == compare(OURS, ANSWERS)[count] - 1
    assert not passed(outcome() | {part: found})


def test_a_control_that_takes_the_same_steps_fails_the_check():
    assert not passed(outcome(equal_steps=4))


def test_nothing_compared_is_nothing_passed():
    empty = compare([], [])
    assert not passed(dict.fromkeys(outcome(), empty))


def test_the_control_moves_every_tap_by_one(tmp_path):
    file = tmp_path / "config.json"
    file.write_text(json.dumps({"block_size": 6, "dflash_config": {"mask_token_id": 4, "target_layer_ids": [1, 3]}}))
    shift_taps(file)
    moved = {"block_size": 6, "dflash_config": {"mask_token_id": 4, "target_layer_ids": [2, 4]}}
    assert json.loads(file.read_text()) == moved
