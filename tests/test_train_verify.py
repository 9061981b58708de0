"""The target on rejected rows alone gives what it gives on the whole text, whatever lies beside them in the batch."""

from __future__ import annotations

import pytest
import torch

from harness.target import Target
from harness.train.corpus import Trajectory, collate
from harness.train.features import FeatureStore
from harness.train.verify import rejected_taps, relay_after
from methods.drafter import BlockDrafter
from methods.relays import Verified
from tests.drafting import config
from tests.tiny import VOCAB, tiny_target

TAPS, BLOCK, PROPOSALS = (0, 2), 6, 5
#: Accepted proposals of four blocks in each of three sequences; 5 is all of them.
ACCEPTED = torch.tensor([[0, 4, 2, 0], [3, 5, 0, 1], [5, 5, 2, 1]])


@pytest.fixture(scope="module", params=["qwen3", "gemma3", "qwen3 stock"])
def target(request):
    """gemma3: windows of 8 positions, which all these texts outgrow; stock: through the model's own modules."""
    made = tiny_target(request.param.split()[0], dtype=torch.float64)
    if "stock" in request.param:
        made._lean = None
    assert (made._lean is None) == ("stock" in request.param)
    return made


def scene(target, shared, cached):
    """Texts of three lengths, two of whose blocks stand at the very end, and proposals that are right so far."""
    generator = torch.Generator().manual_seed(0)
    opening = tuple((3 * i) % 200 for i in range(shared))
    lines = []
    for i in range(3):
        rest = torch.randint(200, (9 + 30 + 4 * i,), generator=generator).tolist()
        lines.append(Trajectory(f"p{i}", (*opening, *rest[:9]), tuple(rest[9:]), 0.0))
    batch = collate(lines, [2, 0, 1])
    store = FeatureStore(target, TAPS, lines, 1.0, key_budget_gb=1.0 if cached else 0.0)
    assert store.shared == shared and store.keys_cached == cached
    last = batch.lengths[:, None] - 1
    anchors = torch.cat((batch.prompts[:, None] + torch.tensor([[0, 11]]), last - 3, last - 1), dim=1)
    ahead = anchors[..., None] + 1 + torch.arange(PROPOSALS)
    accepted = ACCEPTED.minimum(last - anchors)
    true = batch.ids.gather(1, ahead.clamp(max=batch.ids.shape[1] - 1).flatten(1)).view_as(ahead)
    wrong = torch.randint(200, ahead.shape, generator=generator)
    wrong = torch.where(wrong == true, wrong + 1, wrong)
    proposals = torch.where(torch.arange(PROPOSALS) < accepted[..., None], true, wrong)
    return batch, store, anchors, proposals, accepted


def whole(target, batch, anchors, proposals, b, n):
    """Taps [K+1, F] of one block's verify rows, by the target on the text up to its anchor and all its proposals."""
    text = torch.cat((batch.ids[b, : anchors[b, n] + 1], proposals[b, n]))
    return target.features(text[None], TAPS)[0, anchors[b, n] :]


@pytest.mark.parametrize("shared", [0, 70])
@pytest.mark.parametrize("cached", [True, False], ids=["keys kept", "keys recomputed"])
def test_rejected_rows_equal_a_forward_of_the_whole_text(target, shared, cached, monkeypatch):
    batch, store, anchors, proposals, accepted = scene(target, shared, cached)
    features, past = store.batch_with_past(batch)
    torch.testing.assert_close(features, store.batch(batch), rtol=0, atol=0)
    rows, genuine = [], Target.features_after
    monkeypatch.setattr(
        Target, "features_after", lambda self, ids, *rest: rows.append(ids.shape) or genuine(self, ids, *rest)
    )
    taps, place = rejected_taps(target, TAPS, past, anchors, proposals, accepted)
    wanted = PROPOSALS - accepted
    assert rows == [(3, int(wanted.sum(1).max()))] and len(set(wanted.sum(1).tolist())) == 3
    found = dict(zip(place.tolist(), taps, strict=True))
    for b in range(3):
        for n in range(4):
            expected = whole(target, batch, anchors, proposals, b, n)
            for row in range(PROPOSALS + 1):
                got = found.pop((b * 4 + n) * (PROPOSALS + 1) + row, None)
                assert (got is not None) == (row > accepted[b, n]), (b, n, row)
                if got is not None:
                    torch.testing.assert_close(got, expected[row], rtol=1e-9, atol=1e-9)
    assert not found


def test_a_block_alone_gets_the_rows_it_gets_beside_others(target):
    batch, store, anchors, proposals, accepted = scene(target, 0, True)
    past = store.batch_with_past(batch)[1]
    taps, places = rejected_taps(target, TAPS, past, anchors, proposals, accepted)
    together = dict(zip(places.tolist(), taps, strict=True))
    for b in range(3):
        one = past.rows(torch.tensor([b]))
        for n in range(4):
            alone = rejected_taps(
                target, TAPS, one, anchors[b, None, n, None], proposals[b, None, n, None], accepted[b, None, n, None]
            )
            for row, place in zip(*alone, strict=True):
                beside = together[(b * 4 + n) * (PROPOSALS + 1) + int(place)]
                torch.testing.assert_close(row, beside, rtol=1e-9, atol=1e-9)


def test_nothing_is_run_where_nothing_was_rejected(target, monkeypatch):
    batch, store, anchors, proposals, accepted = scene(target, 0, True)
    past = store.batch_with_past(batch)[1]
    monkeypatch.setattr(Target, "features_after", lambda *_: pytest.fail("ran the target"))
    taps, place = rejected_taps(target, TAPS, past, anchors, proposals, torch.full_like(accepted, PROPOSALS))
    assert taps.shape == (0, 2 * target.hidden_size) and place.shape == (0,)


def test_the_relay_of_a_block_is_made_of_its_own_rows_and_of_a_dropped_block_nothing_is(target):
    torch.manual_seed(0)
    shape = dict(hidden_size=target.hidden_size, vocab_size=VOCAB, mask_token_id=260, taps=TAPS)
    built = BlockDrafter(config("dflow", **shape), target.binding).double()
    batch, store, anchors, proposals, accepted = scene(target, 0, True)
    past = store.batch_with_past(batch)[1]
    keep = torch.ones_like(accepted, dtype=torch.bool)
    keep[0, 1] = keep[2, 2] = False
    correction, hidden = accepted + 7, torch.zeros(3, 4, BLOCK, target.hidden_size, dtype=torch.float64)
    state = relay_after(built, target, past, anchors, keep, hidden, proposals, accepted, correction)
    for b in range(3):
        for n in range(4):
            if not keep[b, n]:
                assert not state.live[b, n].any() and not state.states[b, n].any()
                continue
            projected = built.fusion.project(whole(target, batch, anchors, proposals, b, n))[None]
            one = (accepted[b, n, None], correction[b, n, None], proposals[b, n, None])
            expected = built.relay_state(Verified(projected, None, *one))
            for name, value in vars(expected).items():
                torch.testing.assert_close(getattr(state, name)[b, n], value[0], rtol=1e-9, atol=1e-9)


def test_rows_run_some_blocks_at_a_time_are_the_same(target, monkeypatch):
    batch, store, anchors, proposals, accepted = scene(target, 0, False)
    _, past = store.batch_with_past(batch)
    built = BlockDrafter(
        config("dflow", hidden_size=target.hidden_size, vocab_size=VOCAB, taps=TAPS, mask_token_id=260), target.binding
    ).double()
    hidden = torch.zeros(3, 4, BLOCK, target.hidden_size, dtype=torch.float64)
    keep = torch.ones_like(anchors, dtype=torch.bool)
    blocks = (anchors, keep, hidden, proposals, accepted, anchors)
    whole_state = relay_after(built, target, past, *blocks)
    assert whole_state.states.any()
    monkeypatch.setattr("harness.train.verify.ROWS_AT_ONCE", 2 * 3 * PROPOSALS)
    pieces = relay_after(built, target, past, *blocks)
    assert torch.equal(pieces.live, whole_state.live)
    torch.testing.assert_close(pieces.states, whole_state.states, rtol=1e-10, atol=1e-12)
