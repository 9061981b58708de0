"""The relay: nothing at the start, the right state at the right slot, the same in decoding and in training."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from harness.arms import load_arm
from harness.decode import Decoder, DecodeSettings, Prompt
from harness.sections import Variant
from harness.train.build import build_drafter
from methods.checkpoint import save_drafter
from methods.drafter import BlockDrafter
from methods.relays import RelayState
from methods.runner import BlockDraftRunner
from tests import training
from tests.drafting import (
    HIDDEN,
    NEXT,
    RELAY,
    config,
    fake_binding,
    relayed,
    sequence,
    started,
    training_logits,
    verdict,
)
from tests.tiny import tiny_target

ROW = torch.tensor([0])
BASES = [("dflow", "dflash"), ("dflow_domino", "domino")]
alignments = pytest.mark.parametrize("changes", [{}, NEXT], ids=["same", "next"])
with_relay = pytest.mark.parametrize("method", ["dflow", "dflow_domino"])


def fresh(method, **changes):
    """As a run begins: one seed, every weight as its component wants it."""
    torch.manual_seed(3)
    return BlockDrafter(config(method, **changes), fake_binding()).double()


def shown(runner, accepted, seed=5):
    """One round of the first row with `accepted` of its proposals, the rejected rows' states something of their own."""
    drafted = runner.propose(ROW).tokens
    taps = sequence(6, seed)[0][None]
    seen = verdict([accepted], [7], taps, drafted)
    runner.observe(ROW, seen)
    return seen


# -- a fresh relay ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("method", "base"), BASES)
@pytest.mark.parametrize("norm", ["layer", "rms"])
@alignments
def test_a_fresh_relay_drafts_what_its_base_drafts_bit_for_bit(method, base, norm, changes):
    built = fresh(method, relay_options=replace(RELAY, norm=norm), **changes), fresh(base, **changes)
    for name, weight in built[1].named_parameters():
        assert torch.equal(built[0].get_parameter(name), weight), name
    taps, tokens = sequence(20)
    runners = [started(one, taps, 9, tokens[9]) for one in built]
    assert torch.equal(*(runner.draft_logits(ROW) for runner in runners))
    for runner in runners:
        shown(runner, 1)
    state = runners[0]._relay
    assert state.live.sum() == (4 if built[0].layout.alignment == "same" else 3)
    assert torch.equal(*(runner.draft_logits(ROW) for runner in runners))

    anchors, keep = torch.tensor([[11]]), torch.tensor([[True]])
    given = RelayState(*(value[None] for value in vars(state).values())), None
    hidden = [
        one.forward_blocks(one.context(taps)[None], anchors, tokens[anchors], keep, left)
        for one, left in zip(built, given, strict=True)
    ]
    assert torch.equal(*hidden)
    torch.nn.init.normal_(built[0].relay.mlp[2].weight)  # and this is what would be seen of a relay that does something
    assert not torch.allclose(*(runner.draft_logits(ROW) for runner in runners))


@pytest.mark.parametrize(("method", "base"), BASES)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_fresh_relay_decodes_step_for_step_like_its_base(method, base, temperature):
    target = tiny_target(dtype=torch.float64)
    cfg = training.config(Path("unused"))
    law = {"accept": "rejection", "proposals": "sampled"} if temperature else {}
    settings = DecodeSettings(temperature, 0, 40, target.stop_ids, trace=True, **law)
    prompts = [Prompt(f"p{i}", tuple(range(i, 2 * i + 4))) for i in range(3)]
    made, live = [], []
    for name in (method, base):
        built = build_drafter(cfg, target, name, 0, [])
        genuine = built.relay.block_inputs
        built.relay.block_inputs = lambda mask, batch, state, embed, genuine=genuine: (
            live.append(state is not None and bool(state.live.any())) or genuine(mask, batch, state, embed)
        )
        decoder = Decoder(target, lambda *size, built=built: BlockDraftRunner(built, *size), settings, rows=2)
        made.append([vars(response) for response in decoder.run(prompts)])
    assert made[0] == made[1] and any(live)


def test_a_gate_of_one_plus_beta_is_no_identity_at_the_start():
    built = fresh("dflow", relay_options=replace(RELAY, gate="one_plus"))
    taps, tokens = sequence(20)
    runner = started(built, taps, 9, tokens[9])
    shown(runner, 1)
    x = built.block_inputs(runner.anchors, runner._relay)[0]
    mask = built.binding.embed(torch.tensor(36))
    normed = F.layer_norm(runner._relay.states[0], (HIDDEN,), eps=1e-6)
    torch.testing.assert_close(x[1:5], mask + normed[1:5], rtol=1e-12, atol=1e-12)
    assert torch.equal(x[5], mask)


# -- the gate ------------------------------------------------------------------------------------------------------


@alignments
def test_a_state_relayed_into_the_anchors_slot_reaches_the_block(changes):
    """Only where the anchor predicts, and the anchor's own embedding stays."""
    built = relayed(changes=changes, anchor_slot=True)
    taps, tokens = sequence(20)
    runner = started(built, taps, 9, tokens[9])
    plain = built.block_inputs(runner.anchors, None)
    shown(runner, 1)
    assert bool(runner._relay.live[0, 0]) == (built.layout.alignment == "next")
    x, bare = built.block_inputs(runner.anchors, runner._relay), built.binding.embed(runner.anchors)
    mask = plain[:, 1]
    film = built.relay.block_inputs(mask[0], runner.anchors.shape, runner._relay, built.binding.embed)[:, 0]
    torch.testing.assert_close(x[:, 0], bare + film - mask, rtol=1e-12, atol=1e-12)
    assert torch.equal(x[:, 0], bare) == (built.layout.alignment == "same")


@with_relay
def test_both_boundary_tokens_matter_unless_they_are_left_out(method):
    taps, tokens = sequence(20)
    for boundary in (True, False):
        built = relayed(method, boundary=boundary)
        runner = started(built, taps, 9, tokens[9])
        shown(runner, 1)
        state = runner._relay
        swapped = replace(state, correction=state.rejected, rejected=state.correction)
        others = [replace(state, correction=state.correction + 1), replace(state, rejected=state.rejected + 1), swapped]
        x = [built.block_inputs(runner.anchors, one)[0] for one in (state, *others)]
        for other in x[1:]:
            assert torch.equal(other[5], x[0][5])  # no state there, so nothing that the boundary could bend
            assert bool((other[1:5] != x[0][1:5]).any(-1).all()) == boundary, boundary


def test_the_gate_reads_correction_then_rejection_then_state():
    """Equations 4 and 5 of DFlow, spelt out."""
    for normalise in (False, True):
        built = relayed(normalise_boundary=normalise)
        taps, tokens = sequence(20)
        runner = started(built, taps, 9, tokens[9])
        shown(runner, 1)
        state, relay, embed = runner._relay, built.relay, built.binding.embed
        boundary = [embed(state.correction)[0], embed(state.rejected)[0]]
        if normalise:
            boundary = [v / (v.square().mean() + 1e-6).sqrt() for v in boundary]
        x = built.block_inputs(runner.anchors, state)[0]
        for slot in range(1, 6):
            want = mask = embed(torch.tensor(36))
            if state.live[0, slot]:
                h = state.states[0, slot]
                beta, gamma = relay.mlp(torch.cat((*boundary, h))).chunk(2)
                centred = h - h.mean()
                normed = centred / (centred.square().mean() + 1e-6).sqrt() * relay.norm.weight + relay.norm.bias
                want = mask + beta * normed + gamma
            torch.testing.assert_close(x[slot], want, rtol=1e-9, atol=1e-9)


# -- no relay -----------------------------------------------------------------------------------------------------


@with_relay
@alignments
def test_the_first_round_full_acceptance_and_a_relay_switched_off_leave_plain_masks(method, changes):
    built = relayed(method, changes=changes)
    taps, tokens = sequence(40)
    plain = {}
    for relay in (True, False):
        runner = BlockDraftRunner(built, 1, 64, relay=relay)
        runner.start(ROW, [taps[:9]], tokens[9:10])
        plain[relay, "first"] = runner.draft_logits(ROW)
        shown(runner, 5)
        plain[relay, "full"] = runner.draft_logits(ROW)
        shown(runner, 2)
        plain[relay, "rejected"] = runner.draft_logits(ROW)
    for place in ("first", "full"):
        assert torch.equal(plain[True, place], plain[False, place]), place
    assert not torch.allclose(plain[True, "rejected"], plain[False, "rejected"])
    # Off is the block of a drafter that has seen these features and no relay.
    seen = torch.cat((taps[:9], sequence(6, 5)[0], sequence(6, 5)[0][:3]))
    text = F.pad(plain[False, "rejected"][0].argmax(-1), (19, 40), value=7)
    text[18] = 7
    bare = training_logits(built, seen, text, [18])[0]
    torch.testing.assert_close(plain[False, "rejected"][0], bare, rtol=1e-9, atol=1e-9)


@with_relay
def test_an_arm_with_its_relay_off_decodes_the_plain_masks_of_the_same_checkpoint(method, tmp_path):
    target = tiny_target(dtype=torch.float64)
    built = build_drafter(training.config(tmp_path), target, method, 0, [])
    torch.nn.init.normal_(built.relay.mlp[2].weight)
    save_drafter(tmp_path / "trained", built)
    torch.nn.init.zeros_(built.relay.mlp[2].weight)
    save_drafter(tmp_path / "zeroed", built)
    settings = DecodeSettings(0.0, 0, 16, target.stop_ids, trace=True)
    prompts = [Prompt(f"p{i}", tuple(range(i, 2 * i + 4))) for i in range(3)]

    off = {"off": Variant(label="relay off", weights=method, relay="off")}
    config = training.config(tmp_path).model_copy(update={"variants": off})

    def traces(folder, on):
        arm = load_arm(config, target, method if on else "off", tmp_path / folder)
        return [r.trace["proposals"] for r in Decoder(target, arm, settings, rows=2).run(prompts)]

    assert traces("trained", False) == traces("zeroed", True) != traces("trained", True)


@with_relay
def test_a_row_used_again_decodes_as_if_it_were_new(method, tmp_path):
    target = tiny_target(dtype=torch.float64)
    built = build_drafter(training.config(tmp_path), target, method, 0, [])
    torch.nn.init.normal_(built.relay.mlp[2].weight)
    settings = DecodeSettings(0.0, 0, 9, target.stop_ids, trace=True)
    prompts = [Prompt(f"p{i}", tuple(range(3 * i, 5 * i + 3))) for i in range(4)]

    def run(some, rows):
        decoder = Decoder(target, lambda *size: BlockDraftRunner(built, *size), settings, rows=rows)
        return [r.trace["proposals"] for r in decoder.run(some)]

    assert run(prompts, 2) == [run([prompt], 1)[0] for prompt in prompts]
