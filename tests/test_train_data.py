"""Corpus, order of batches, anchors and labels."""

import hashlib
import json

import pytest
import torch
from training import trajectories

from harness.train.anchors import blocks_at, draw, labels
from harness.train.corpus import FACTS, BatchOrder, Trajectory, collate, read_trajectories, split
from methods.contract import BlockLayout

SAME, NEXT = BlockLayout(6, "same", 5), BlockLayout(6, "next", 5)


def test_held_out_prompts_are_never_trained_on_even_if_answered_twice():
    lines = trajectories(20)
    lines += [Trajectory(t.prompt_id, t.prompt_ids, t.response_ids[:-1], 1.0, turn=1) for t in lines]
    data = split(lines, {}, 64, heldout=6, walk=3)
    assert not {t.prompt_id for t in data.train} & {t.prompt_id for t in data.heldout}
    assert len({t.prompt_id for t in data.heldout}) == 6
    assert len(data.greedy) == 3 and all(t.temperature == 0 for t in data.greedy)


def test_a_longer_corpus_keeps_the_walked_trajectories_unless_new_ones_hash_lower():
    first = split(trajectories(10), {}, 64, heldout=10 // 2, walk=2)
    again = split(list(reversed(trajectories(10))), {}, 64, heldout=10 // 2, walk=2)
    assert first.greedy == again.greedy and first.train == again.train  # the order of lines does not matter


def test_training_is_cut_to_max_length_and_the_walk_is_not():
    data = split(trajectories(14), {}, 16, heldout=4, walk=2)
    assert max(len(t) for t in data.train + data.heldout) <= 16
    whole = {t.prompt_id: t for t in trajectories(14)}
    assert all(t == whole[t.prompt_id] for t in data.greedy)


def test_a_corpus_without_supervised_tokens_is_refused():
    lines = [Trajectory("p", (1, 2, 3), (4,), 0.0), Trajectory("q", tuple(range(70)), (1, 2, 3), 0.0)]
    with pytest.raises(ValueError, match="no supervised tokens"):
        split(lines, {}, 64, heldout=1, walk=0)
    with pytest.raises(ValueError, match="held out"):
        split(trajectories(3), {}, 64, heldout=3, walk=1)


def test_a_shard_that_changed_is_refused(tmp_path):
    line = {"prompt_id": "p", "prompt_ids": [1], "response_ids": [2, 3], "temperature": 0}
    data = (json.dumps(line) + "\n").encode()
    (tmp_path / "s.jsonl").write_bytes(data)
    shard = {"file": "s.jsonl", "sha256": hashlib.sha256(data).hexdigest()}
    (tmp_path / "manifest.json").write_text(json.dumps(dict.fromkeys(FACTS) | {"shards": [shard]}))
    assert read_trajectories(tmp_path)[0] == [Trajectory("p", (1,), (2, 3), 0.0)]
    (tmp_path / "s.jsonl").write_bytes(data.replace(b"3", b"4"))
    with pytest.raises(ValueError, match="changed after it was made"):
        read_trajectories(tmp_path)
    with pytest.raises(FileNotFoundError, match="harness.train.trajectories"):
        read_trajectories(tmp_path / "nowhere")


def test_batches_are_a_function_of_seed_and_step():
    lengths = [10 + i % 7 for i in range(50)]
    order, late = BatchOrder(lengths, 4, seed=3), BatchOrder(lengths, 4, seed=3)
    steps = [order.at(step) for step in range(30)]
    assert [late.at(step) for step in reversed(range(30))] == steps[::-1]  # asked backwards: no hidden position
    assert steps != [BatchOrder(lengths, 4, seed=4).at(step) for step in range(30)]


def test_an_epoch_uses_a_sequence_once_and_the_next_epoch_orders_anew():
    order = BatchOrder([5] * 21, 4, seed=0)
    epochs = [[order.at(e * order.per_epoch + i) for i in range(order.per_epoch)] for e in range(3)]
    for epoch in epochs:
        used = [i for batch in epoch for i in batch]
        assert len(used) == len(set(used)) == 20
    assert epochs[0] != epochs[1] and len({i for epoch in epochs for batch in epoch for i in batch}) == 21


def test_batches_hold_sequences_of_like_length():
    lengths = list(range(1, 401))
    order = BatchOrder(lengths, 4, seed=0)
    spread = [max(b) - min(b) for b in (order.at(s) for s in range(order.per_epoch))]
    assert sum(spread) / len(spread) < 60  # unsorted batches of 4 would spread over 240


def test_the_worst_batch_is_the_longest_sequences():
    order = BatchOrder([3, 9, 1, 8, 7], 2, seed=0)
    assert order.worst() == (1, 3)


def test_anchors_are_response_tokens_with_a_successor_sorted_and_distinct():
    lengths, prompts = torch.tensor([30, 25, 12]), torch.tensor([10, 4, 9])
    seen = [set(), set(), set()]
    for step in range(200):
        anchors, keep = draw(1, step, lengths, prompts, 5)
        for row in range(3):
            kept = anchors[row][keep[row]].tolist()
            assert kept == sorted(set(kept)) and keep[row].tolist() == sorted(keep[row].tolist(), reverse=True)
            seen[row].update(kept)
    assert seen == [set(range(10, 29)), set(range(4, 24)), {9, 10}]


def test_fewer_candidates_than_anchors_are_padded_and_never_repeated():
    anchors, keep = draw(0, 0, torch.tensor([12]), torch.tensor([9]), 6)
    assert keep.tolist() == [[True, True, False, False, False, False]]
    assert anchors[0, :2].tolist() == [9, 10] and int(anchors.max()) < 12


def test_anchors_are_uniform_and_fixed_by_seed_and_step():
    lengths, prompts = torch.tensor([14]), torch.tensor([3])
    counts = torch.zeros(14)
    for step in range(2000):
        counts[draw(0, step, lengths, prompts, 3)[0][0]] += 1
    expected = 2000 * 3 / 10
    assert ((counts[3:13] - expected) ** 2 / expected).sum() < 30  # chi-square, 9 degrees: p < 0.0005
    first = draw(5, 7, lengths, prompts, 3)[0]
    assert torch.equal(first, draw(5, 7, lengths, prompts, 3)[0])
    assert any(not torch.equal(first, draw(5, step, lengths, prompts, 3)[0]) for step in range(8, 12))


@pytest.mark.parametrize("layout", [SAME, NEXT], ids=["same", "next"])
def test_labels_stand_where_the_layout_says_and_end_with_the_response(layout):
    data = [Trajectory("p", (1, 2), tuple(range(50, 60)), 0.0), Trajectory("q", (3,), (70, 71, 72), 0.0)]
    batch = collate(data, [0, 1])
    anchors = torch.tensor([[3, 9], [2, 2]])
    blocks = blocks_at(batch.ids, anchors, torch.tensor([[True, True], [True, False]]))
    true, valid = labels(batch.ids, batch.lengths, blocks, layout)
    for row, trajectory in enumerate(data):
        for n in range(2):
            for column, slot in enumerate(layout.supervised_slots):
                position = int(anchors[row, n]) + layout.offset(slot)
                inside = position < len(trajectory) and bool(blocks.keep[row, n])
                assert bool(valid[row, n, column]) == inside
                if inside:
                    assert int(true[row, n, column]) == trajectory.ids[position]
