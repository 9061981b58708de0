"""The block layout: where labels, proposals and relayed states stand, against a literal reading of the papers."""

import pytest
import torch

from methods.contract import BlockLayout

SHAPES = [("same", 16, 15), ("same", 6, 3), ("next", 16, 15), ("next", 7, 7), ("next", 6, 4), ("same", 2, 1)]


def predicted(alignment: str, slot: int) -> int | None:
    """Offset from the anchor of the token that a slot predicts, spelt out for each alignment."""
    if alignment == "same":
        return slot if slot >= 1 else None
    return slot + 1


@pytest.mark.parametrize(("alignment", "block", "proposals"), SHAPES)
def test_each_slot_predicts_what_its_alignment_says(alignment, block, proposals):
    layout = BlockLayout(block, alignment, proposals)
    offsets = [predicted(alignment, slot) for slot in range(block)]
    assert list(layout.supervised_slots) == [slot for slot in range(block) if offsets[slot] is not None]
    assert layout.label_offsets().tolist() == [offset for offset in offsets if offset is not None]
    assert [layout.offset(slot) for slot in layout.proposing_slots] == list(range(1, proposals + 1))


@pytest.mark.parametrize(("alignment", "block", "proposals"), SHAPES)
def test_a_relayed_state_goes_to_the_slot_that_predicts_its_token(alignment, block, proposals):
    layout = BlockLayout(block, alignment, proposals)
    accepted = torch.arange(proposals + 1)
    rows = layout.relay_rows(accepted)
    anchor = 100
    for a in accepted.tolist():
        next_anchor = anchor + a + 1
        for slot in range(block):
            offset = predicted(alignment, slot)
            # Verify row j stands at anchor + j and predicts anchor + j + 1; live rows hold rejected proposals.
            row = None if offset is None or slot == 0 else next_anchor + offset - anchor - 1
            live = row is not None and a + 1 <= row <= proposals
            assert rows[a, slot].item() == (row if live else -1), (a, slot)


def test_full_acceptance_leaves_nothing_to_relay():
    for alignment, block, proposals in SHAPES:
        assert (BlockLayout(block, alignment, proposals).relay_rows(torch.tensor([proposals])) == -1).all()


def test_only_positions_before_the_anchor_are_visible():
    layout = BlockLayout(4, "same", 3)
    seen = layout.visible(torch.arange(5)[None], torch.tensor([0, 3])[:, None])
    assert seen.tolist() == [[False] * 5, [True, True, True, False, False]]


@pytest.mark.parametrize(
    ("block", "alignment", "proposals", "words"),
    [
        (16, "both", 15, "alignment is 'both'"),
        (1, "same", 1, "block_size is 1"),
        (16, "same", 16, "num_proposals is 16"),
        (16, "next", 17, "num_proposals is 17"),
        (16, "same", 0, "num_proposals is 0"),
    ],
)
def test_a_block_that_cannot_hold_its_proposals_is_refused(block, alignment, proposals, words):
    with pytest.raises(ValueError, match=words):
        BlockLayout(block, alignment, proposals)


def test_the_anchor_slot_of_a_same_position_block_has_no_offset():
    with pytest.raises(ValueError, match="slot 0"):
        BlockLayout(4, "same", 3).offset(0)
