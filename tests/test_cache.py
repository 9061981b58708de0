"""The ragged cache and the stop rule.

pytest tests/test_cache.py
"""

from __future__ import annotations

import pytest
import torch

from harness.cache import RaggedCache
from harness.stops import StopRule


def write(cache: RaggedCache, rows: list[int], width: int, value: float = 1.0):
    step = cache.begin(rows, width)
    block = torch.full((len(rows), 2, width, 4), value)
    return step, *step.write(0, block, -block)


def test_rows_keep_their_own_lengths_and_a_rollback_is_a_length():
    cache = RaggedCache(3, 20)
    write(cache, [1], 5)
    cache.commit(1, 3)
    assert cache.lengths == [0, 3, 0]
    _, keys, _ = write(cache, [1], 2, 7.0)
    assert keys.shape == (1, 2, 5, 4)
    assert keys[0, 0, :, 0].tolist() == [1, 1, 1, 7, 7], "rolled-back cells are overwritten"


def test_ragged_rows_write_at_their_own_positions():
    cache = RaggedCache(3, 20)
    write(cache, [2], 4)
    cache.commit(2, 4)
    step, keys, values = write(cache, [0, 2], 2, 9.0)
    assert step.positions.tolist() == [[0, 1], [4, 5]]
    assert keys[0, 0, :, 0].tolist() == [9, 9, 0, 0, 0, 0]
    assert keys[1, 0, :, 0].tolist() == [1, 1, 1, 1, 9, 9]
    assert torch.equal(values, -keys)


def test_nan_past_a_length_is_never_handed_out():
    cache = RaggedCache(2, 16)
    write(cache, [0, 1], 6)
    cache.commit(0, 6)
    cache.commit(1, 1)
    cache.poison()
    _, keys, values = write(cache, [0, 1], 3)
    assert torch.isfinite(keys).all() and torch.isfinite(values).all()


@pytest.mark.parametrize("window", [None, 3])
@pytest.mark.parametrize("width", [1, 4])
def test_mask_equals_its_definition(window, width):
    cache = RaggedCache(2, 16)
    for row, length in ((0, 7), (1, 2)):
        write(cache, [row], length)
        cache.commit(row, length)
    step = cache.begin([0, 1], width)
    mask = step.mask(window, torch.float32)
    for b, start in enumerate((7, 2)):
        for i in range(width):
            for j in range(step.end):
                seen = j <= start + i and (window is None or j > start + i - window)
                assert (mask[b, 0, i, j] == 0) == seen


def test_overflow_and_wrong_commits_name_the_row():
    cache = RaggedCache(2, 8)
    with pytest.raises(ValueError, match="row 1.*capacity of 8"):
        cache.begin([1], 9)
    write(cache, [1], 4)
    with pytest.raises(ValueError, match="row 1 cannot commit 5"):
        cache.commit(1, 5)


def test_a_copied_row_continues_like_its_source():
    source, cache = RaggedCache(1, 8), RaggedCache(3, 16)
    write(source, [0], 5, 3.0)
    source.commit(0, 5)
    cache.copy_row(source, 0, 2)
    _, keys, _ = write(cache, [2], 1, 4.0)
    assert keys[0, 0, :, 0].tolist() == [3.0] * 5 + [4.0]


def rule(budget=10, ids=(), strings=()):
    return StopRule(ids, strings, budget, lambda tokens: "".join(chr(t) for t in tokens))


@pytest.mark.parametrize(
    ("stop", "output", "new", "expected"),
    [
        (rule(), "ab", "cde", (3, None)),
        (rule(budget=4), "ab", "cde", (2, "budget")),
        (rule(budget=5), "ab", "cde", (3, "budget")),
        (rule(ids=[ord("d")]), "ab", "cde", (2, "stop_id")),
        (rule(budget=3, ids=[ord("d")]), "ab", "cde", (1, "budget")),
        (rule(budget=4, ids=[ord("d")]), "ab", "cde", (2, "stop_id")),
        (rule(strings=["bc"]), "ab", "cde", (1, "stop_string")),
        (rule(strings=["de", "cd"]), "ab", "cde", (2, "stop_string")),
        (rule(strings=["ef"]), "ab", "cde", (3, None)),
        (rule(strings=["cd"], ids=[ord("c")]), "ab", "cde", (1, "stop_id")),
        (rule(strings=["cd"], ids=[ord("d")]), "ab", "cde", (2, "stop_id")),
        (rule(strings=["bc"], budget=3), "ab", "cde", (1, "stop_string")),
        (rule(strings=["e"], budget=4), "ab", "cde", (2, "budget")),
    ],
)
def test_the_earliest_stop_wins(stop, output, new, expected):
    assert stop.first_stop([ord(c) for c in output], [ord(c) for c in new]) == expected
