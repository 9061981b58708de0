"""Which state goes to which slot, seen in rounds that a decoder has decoded, and the same in the trainer."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F

from harness.decode import Decoder, DecodeSettings, Prompt
from harness.target import TargetOutput
from harness.train.anchors import blocks_at
from harness.train.corpus import Corpus, Trajectory, collate
from harness.train.features import FeatureStore
from harness.train.rounds import RejectedRounds, Round
from harness.train.walk import check, walk
from methods.checkpoint import load_drafter, save_drafter
from methods.relays import Verified
from tests import training
from tests.drafting import HIDDEN, NEXT, VOCAB, Scripted, fake_binding, relayed
from tests.tiny import tiny_target

alignments = pytest.mark.parametrize("changes", [{}, NEXT], ids=["same", "next"])


class ToyTarget:
    """A target whose tapped state says where it stands and what stands there, and whose next token follows from both.

    It answers like a `Target`, keys and values included: one layer of one number each.
    """

    name, device, dtype, stop_ids, max_positions = "toy", torch.device("cpu"), torch.float64, (), 1000
    hidden_size, vocab_size, binding = HIDDEN, VOCAB, fake_binding()

    def features_after(self, ids, step, taps):
        step.write(0, ids.double()[:, None, :, None], ids.double()[:, None, :, None])
        return self.encode(step.positions, ids)

    def features(self, ids, taps):
        return self.encode(torch.arange(ids.shape[1]).expand_as(ids), ids)

    def forward(self, ids, cache, rows, *, taps=(), logits="all"):
        step = cache.begin(rows, ids.shape[1])
        features = self.features_after(ids, step, taps)
        out = F.one_hot((5 * ids + 3 * step.positions + 1) % (VOCAB - 1), VOCAB).double()
        return TargetOutput(out if logits == "all" else out[:, -1:], features)

    def decode(self, ids):
        return ""

    def encode(self, positions, ids):  # [B, S] twice -> [B, S, H]
        stacked = torch.stack((positions.expand_as(ids), ids, torch.ones_like(ids)), dim=-1)
        return F.pad(stacked.double(), (0, HIDDEN - 3))


def place_and_token(states):
    """What a relayed state [..., H] says of itself: position and token [..., 2]; its norm has scaled it."""
    return (states[..., :2] / states[..., 2:3]).round().long()


def decoded(changes, **options):
    """Rounds of three sequences that a decoder has really decoded, with every number of accepted proposals."""
    built = relayed(changes=changes | {"taps": (1,)}, **options)
    with torch.no_grad():
        built.fusion.fc.weight.copy_(torch.eye(HIDDEN))
        built.fusion.hidden_norm.weight.fill_(1)
    target = ToyTarget()
    settings = DecodeSettings(temperature=0.0, seed=0, max_new_tokens=50)
    prompts = [Prompt(f"p{i}", tuple((7 * i + k) % 36 for k in range(3 + 2 * i))) for i in range(3)]
    lines = [
        Trajectory(r.prompt_id, r.prompt_ids, tuple(r.output_ids), 0.0)
        for r in Decoder(target, None, settings, rows=3).run(prompts)
    ]
    runner = Scripted(built, 3, 64, [line.ids for line in lines], lambda row, turn: (row + 2 * turn + turn // 3) % 6)
    again = list(Decoder(target, lambda *_: runner, settings, rows=3).run(prompts))
    assert [tuple(r.output_ids) for r in again] == [line.response_ids for line in lines]
    assert {one.accepted for row in runner.seen for one in row} >= set(range(6))
    return built, target, lines, runner.seen


MAPS = [{}, NEXT, NEXT | {"num_proposals": 6}]


@pytest.mark.parametrize("changes", MAPS, ids=["same", "next", "next, all slots"])
@pytest.mark.parametrize("off", [{}, {"first_rejected": False}, {"last_row": False}, {"anchor_slot": True}], ids=str)
def test_in_a_decoded_round_each_slot_gets_the_state_that_predicts_its_token(changes, off):
    built, _, _, seen = decoded(changes, **off)
    layout, moved = built.layout, 0
    for one in (one for row in seen for one in row):
        a, at = one.accepted, place_and_token(one.relay.states)
        for slot in range(6):
            # The slot predicts the token `ahead` of the next anchor, and so does the state one position before that.
            ahead = slot if layout.alignment == "same" else slot + 1
            row = a + ahead
            live = slot >= 1 and a + 1 <= row <= layout.num_proposals
            if off.get("anchor_slot") and layout.alignment == "next" and slot == 0:
                live = a < layout.num_proposals
                moved += live
            if (row == a + 1 and "first_rejected" in off) or (row == layout.num_proposals and "last_row" in off):
                moved += live
                live = False
            assert bool(one.relay.live[slot]) == live, (a, slot)
            if live:
                stands = one.anchor + a + ahead
                assert at[slot].tolist() == [stands, int(one.proposals[row - 1])], (a, slot)
                assert stands == one.anchor + row
            else:
                assert not one.relay.states[slot].any()
        refused = min(a, layout.num_proposals - 1)
        assert int(one.relay.rejected) == int(one.proposals[refused])
    # `next` gives its first mask the second rejected row, so there the first one has no slot to lose.
    nothing = not off or off == ({"anchor_slot": True} if layout.alignment == "same" else {"first_rejected": False})
    assert (moved == 0) == nothing


@pytest.mark.parametrize("changes", MAPS, ids=["same", "next", "next, all slots"])
@pytest.mark.parametrize(
    "options",
    [{}, {"first_rejected": False, "last_row": False, "anchor_slot": True}, {"shuffle": True}, {"states": "drafter"}],
    ids=str,
)
def test_the_trainer_leaves_what_the_decoder_left_at_the_same_anchors(changes, options):
    built, target, lines, seen = decoded(changes, **options)
    batch = collate(lines, range(3))
    count, width = max(map(len, seen)), built.layout.num_proposals
    anchors, keep = torch.ones(3, count, dtype=torch.long), torch.zeros(3, count, dtype=torch.bool)
    proposals = torch.zeros(3, count, width, dtype=torch.long)
    hidden = torch.zeros(3, count, 6, HIDDEN, dtype=torch.float64)
    for b, row in enumerate(seen):
        for n, one in enumerate(row):
            anchors[b, n], keep[b, n], proposals[b, n] = one.anchor, True, one.proposals
            hidden[b, n] = 0 if one.hidden is None else one.hidden

    rounds = RejectedRounds(0, count, built, target, count=1)
    rounds._proposals = lambda *_: proposals
    past = FeatureStore(target, (1,), lines, 1.0).batch_with_past(batch)[1]
    found = rounds.following(0, batch.ids, batch.lengths, Round(blocks_at(batch.ids, anchors, keep)), hidden, past)
    live = 0
    for b, row in enumerate(seen):
        for n, one in enumerate(row):
            assert found.blocks.anchors[b, n] == one.anchor + one.accepted + 1 and found.blocks.keep[b, n]
            for name, value in vars(one.relay).items():
                got = getattr(found.relay, name)[b, n]
                torch.testing.assert_close(got, value, rtol=1e-12, atol=1e-12, msg=lambda m, n=name: f"{n}: {m}")
            live += int(one.relay.live.sum())
    assert live > 40


@alignments
def test_shuffled_states_are_those_of_the_live_slots_in_another_order(changes):
    plain, mixed = relayed(changes=changes), relayed(changes=changes, shuffle=True)
    generator = torch.Generator().manual_seed(0)
    projected = torch.randn(40, 6, HIDDEN, generator=generator, dtype=torch.float64)
    accepted, following = torch.arange(40) % 6, torch.randint(36, (40,), generator=generator)
    proposals = torch.randint(36, (40, 5), generator=generator)
    seen = Verified(projected, None, accepted, following, proposals)
    straight, shuffled = plain.relay_state(seen), mixed.relay_state(seen)
    orders = set()
    for b in range(40):
        live = straight.live[b].nonzero()[:, 0].tolist()
        if len(live) < 2:  # there is nobody to take a state from
            assert not shuffled.live[b].any() and not shuffled.states[b].any()
            continue
        assert torch.equal(straight.live[b], shuffled.live[b])
        order = [next(i for i in live if torch.equal(shuffled.states[b, j], straight.states[b, i])) for j in live]
        assert sorted(order) == live and not shuffled.states[b][~straight.live[b]].any()
        assert all(i != j for i, j in zip(order, live, strict=True))
        orders.add((accepted[b].item(), *order))
    # Not one fixed order.
    assert len([order for order in orders if order[0] == 0]) > 3


@alignments
def test_the_drafters_own_states_go_to_the_slot_that_predicts_what_they_predicted(changes):
    built = relayed(changes=changes, states="drafter")
    layout = built.layout
    hidden = torch.arange(6.0, dtype=torch.float64)[None, :, None].expand(6, 6, HIDDEN)  # every slot holds its number
    accepted = torch.arange(6)
    seen = Verified(None, hidden, accepted, torch.zeros(6, dtype=torch.long), torch.zeros(6, 5, dtype=torch.long))
    state = built.relay_state(seen)
    live = 0
    for a in range(6):
        for slot in range(6):
            ahead = slot if layout.alignment == "same" else slot + 1
            # The token at p + a + 1 + ahead was predicted by the slot this far from its first one, if it was proposed.
            source = layout.first_slot + a + ahead
            predicted = slot >= 1 and source in layout.proposing_slots
            assert bool(state.live[a, slot]) == predicted
            assert state.states[a, slot].tolist() == [source if predicted else 0.0] * HIDDEN
            live += predicted
    assert live == (10 if layout.alignment == "same" else 6)


# -- walk and decoder ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "settings",
    [
        SimpleNamespace(method="dflow", drafter={"relay": {"states": "drafter"}}),
        SimpleNamespace(method="dflow", drafter={"relay": {"shuffle": True}}),
        SimpleNamespace(method="dflow", drafter={"alignment": "next"}),
        SimpleNamespace(method="dflow_domino", drafter={"alignment": "next", "relay": {"states": "drafter"}}),
    ],
    ids=lambda s: f"{s.method} {s.drafter}",
)
def test_walk_equals_decoder_under_every_option(settings, tmp_path):
    """In float64, with a relay that matters: the only difference left to explain is a wrong state.  The decoder's
    drafter is read from a checkpoint, as it is at the end of a run: nothing that training left behind may count."""
    target = tiny_target(dtype=torch.float64)
    decoding = DecodeSettings(temperature=0.0, seed=0, max_new_tokens=20, stop_ids=target.stop_ids)
    prompts = [Prompt(f"p{i}", tuple((7 * i + k) % 200 for k in range(3 + i))) for i in range(4)]
    lines = [
        Trajectory(r.prompt_id, r.prompt_ids, tuple(r.output_ids), 0.0)
        for r in Decoder(target, None, decoding, rows=3).run(prompts)
    ]
    cfg = training.config(
        tmp_path, settings.drafter, steps=60, eval_every=999, checkpoint_every=999, anchors=8, rounds=0
    )
    data = Corpus(tuple(lines[:3]), tuple(lines[3:]), (), {}, 0)
    run = training.trainer(target, cfg, tmp_path, data=data, method=settings.method)
    run.run()
    torch.nn.init.normal_(run.drafter.relay.mlp[2].weight, std=0.1)
    walks = walk(run.drafter, FeatureStore(target, run.drafter.config.taps, lines, 1.0), lines)
    save_drafter(tmp_path / "saved", run.drafter)
    saved = load_drafter(tmp_path / "saved", target.binding).eval()
    report = check(target, saved, lines, walks, max_new_tokens=20, rows=4)
    assert report.exact and not report.near_ties
    assert len({a for w in walks for a in w.accepted}) > 1, "a walk that never accepts proves little"
