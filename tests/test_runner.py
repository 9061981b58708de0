"""The runner: its cache holds the accepted prefix and nothing else, whatever the rows around it do."""

import time
from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch

from methods.contract import Sampling
from methods.heads import DraftError
from methods.relays import RelayState, Verified
from methods.runner import BlockDraftRunner
from tests.drafting import (
    METHODS,
    VOCAB,
    assert_drafts_as_trained,
    config,
    drafter,
    relay_after,
    sequence,
    started,
    training_logits,
    verdict,
)

NEXT = dict(alignment="next", block_size=6, num_proposals=6)
ROW = torch.tensor([0])
every_method = pytest.mark.parametrize("method", METHODS)


def observed(runner, row, taps, tokens, accepted):
    """Verify a row at its anchor against `taps`/`tokens`, and return the verdict; rejected rows carry features of
    nothing in the text."""
    anchor, count = runner.lengths[row], runner.num_proposals + 1
    rows = torch.full((1, count, taps.shape[1]), 50.0, dtype=taps.dtype)
    rows[0, : accepted + 1] = taps[anchor : anchor + accepted + 1]
    seen = verdict([accepted], [tokens[anchor + accepted + 1].item()], rows)
    runner.observe(torch.tensor([row]), seen)
    return seen


@every_method
@pytest.mark.parametrize("changes", [{}, NEXT], ids=["same", "next"])
@pytest.mark.parametrize("accepted", [0, 2, "all"])
def test_after_observe_the_cache_holds_the_positions_before_the_anchor_exactly(method, changes, accepted):
    built = drafter(config(method, **changes))
    accepted = built.layout.num_proposals if accepted == "all" else accepted
    taps, tokens = sequence(40)
    runner = started(built, taps, 9, tokens[9])
    runner.poison()
    runner.propose(ROW)
    seen = observed(runner, 0, taps, tokens, accepted)
    anchor = 9 + accepted + 1
    runner.poison()
    assert runner.lengths == [anchor]
    fresh = started(built, taps, anchor, tokens[anchor])
    torch.testing.assert_close(runner.cache[..., :anchor, :], fresh.cache[..., :anchor, :], rtol=1e-9, atol=1e-9)
    assert_drafts_as_trained(built, runner.draft_logits(ROW)[0], taps, tokens, anchor, relay_after(built, seen))


@pytest.mark.parametrize("method", [name for name in METHODS if not drafter(config(name)).relay.uses_states])
def test_features_of_rejected_rows_never_matter(method):
    """Of a method without a relay; the others read them on purpose."""
    built = drafter(config(method))
    taps, tokens = sequence(40)
    drafts = []
    for filler in (0.0, torch.nan):
        runner = started(built, taps, 9, tokens[9])
        runner.propose(ROW)
        rows = torch.full((1, 6, taps.shape[1]), filler, dtype=taps.dtype)
        rows[0, :2] = taps[9:11]
        runner.observe(ROW, verdict([1], [tokens[11].item()], rows))
        drafts.append(runner.draft_logits(ROW))
    assert torch.equal(*drafts)


@every_method
@pytest.mark.parametrize("changes", [{}, NEXT], ids=["same", "next"])
def test_a_ragged_batch_drafts_what_each_row_drafts_alone(method, changes):
    built = drafter(config(method, **changes))
    texts = [sequence(40, seed) for seed in range(4)]
    filler = 50.0 if built.relay.uses_states else torch.nan  # a relay does read rejected rows, as `observed` has them
    anchors, steps = [3, 14, 8, 1], [[0, 2, 1], [3, 0, 5], [5, 5, 5], [1, 1, 0]]
    alone = []
    for (taps, tokens), anchor, accepted in zip(texts, anchors, steps, strict=True):
        runner = started(built, taps, anchor, tokens[anchor])
        logits = [runner.draft_logits(ROW)[0]]
        for count in accepted:
            runner.propose(ROW)
            observed(runner, 0, taps, tokens, count)
            logits.append(runner.draft_logits(ROW)[0])
        alone.append(logits)

    runner = BlockDraftRunner(built, 4, 64)
    runner.poison()
    rows = torch.arange(4)
    runner.start(
        rows,
        [taps[:a] for (taps, _), a in zip(texts, anchors, strict=True)],
        torch.tensor([tokens[a] for (_, tokens), a in zip(texts, anchors, strict=True)]),
    )
    for step in range(4):
        for active in (rows, torch.tensor([3, 0]), torch.tensor([1, 2])):  # neighbours or not, any order
            runner.poison()
            together = runner.draft_logits(active)
            for b, row in enumerate(active.tolist()):
                torch.testing.assert_close(together[b], alone[row][step], rtol=1e-9, atol=1e-9)
        if step < 3:
            runner.propose(rows)
            pieces = []
            for (taps, _), row in zip(texts, range(4), strict=True):
                piece = torch.full((runner.num_proposals + 1, taps.shape[1]), filler, dtype=taps.dtype)
                kept = steps[row][step] + 1
                piece[:kept] = taps[runner.lengths[row] :][:kept]
                pieces.append(piece)
            accepted = [steps[row][step] for row in range(4)]
            tokens = [texts[row][1][runner.lengths[row] + accepted[row] + 1].item() for row in range(4)]
            runner.observe(rows, verdict(accepted, tokens, torch.stack(pieces)))


@every_method
def test_a_reused_row_remembers_nothing(method):
    built = drafter(config(method))
    (old_taps, old_tokens), (taps, tokens) = sequence(40, 1), sequence(40, 2)
    runner = BlockDraftRunner(built, 2, 64)
    runner.start(torch.tensor([0, 1]), [old_taps[:30], taps[:12]], torch.stack((old_tokens[30], tokens[12])))
    runner.propose(torch.tensor([0, 1]))
    observed(runner, 0, old_taps, old_tokens, 3)
    runner.release(torch.tensor([0]))
    with pytest.raises(ValueError, match="row 0 holds no sequence"):
        runner.propose(torch.tensor([0, 1]))
    runner.start(ROW, [taps[:5]], tokens[5:6])
    for active in (torch.tensor([0, 1]), ROW):
        for anchor, drafted in zip((5, 12), runner.draft_logits(active)):  # noqa: B905  (the second row may be idle)
            assert_drafts_as_trained(built, drafted, taps, tokens, anchor)


@every_method
def test_a_row_whose_last_sequence_was_full_of_nan_can_be_reused(method):
    built = drafter(config(method))
    taps, tokens = sequence(40)
    runner = BlockDraftRunner(built, 2, 64)
    runner.start(torch.tensor([0, 1]), [taps[:30] * torch.nan, taps[:12]], tokens[:2])
    with pytest.raises(DraftError, match=r"draft logits of row 0 in round 0 \(anchor at position 30\) are not finite"):
        runner.propose(torch.tensor([0, 1]))
    runner.start(ROW, [taps[:5]], tokens[5:6])
    assert torch.isfinite(runner.draft_logits(torch.tensor([0, 1]))).all()


@every_method
def test_an_error_in_a_later_round_names_round_and_row(method):
    built = drafter(config(method))
    taps, tokens = sequence(40)
    runner = BlockDraftRunner(built, 2, 64)
    runner.start(torch.tensor([0, 1]), [taps[:4], taps[:6]], tokens[:2])
    runner.propose(torch.tensor([0, 1]))
    rows = taps[None, :6].repeat(2, 1, 1)
    rows[1, 0] = torch.inf
    runner.observe(torch.tensor([0, 1]), verdict([1, 0], [3, 4], rows))
    with pytest.raises(DraftError, match=r"row 1 in round 1 \(anchor at position 7\)"):
        runner.propose(torch.tensor([0, 1]))


def test_a_head_that_skips_a_slot_is_caught(monkeypatch):
    built = drafter()
    taps, tokens = sequence(20)
    runner = started(built, taps, 9, tokens[9])
    whole = type(built.head).draft
    monkeypatch.setattr(
        type(built.head),
        "draft",
        lambda self, hidden, anchors, buffer, binding: buffer.write(1, binding.head(hidden[:, 2:])),
    )
    with pytest.raises(DraftError, match=r"row 0 in round 0 .* left a proposal unwritten: \[-1, "):
        runner.propose(ROW)
    monkeypatch.setattr(type(built.head), "draft", whole)
    assert (runner.propose(ROW).tokens >= 0).all()


@every_method
def test_greedy_proposals_are_the_argmax(method):
    built = drafter(config(method))
    taps, tokens = sequence(20)
    runner = started(built, taps, 9, tokens[9])
    greedy = runner.propose(ROW)
    assert greedy.q is None and greedy.parents is None
    assert torch.equal(greedy.tokens, runner.draft_logits(ROW).argmax(-1))


def test_sampled_proposals_come_with_their_distribution():
    built = drafter()
    taps, tokens = sequence(20)
    runner = started(built, taps, 9, tokens[9])
    logits = runner.draft_logits(ROW)
    sampled = runner.propose(ROW, Sampling(0.8, torch.tensor([[0.0, 0.3, 0.5, 0.9, 1 - 2**-24]])))
    torch.testing.assert_close(sampled.q, torch.softmax(logits / 0.8, -1))
    below = torch.where(torch.arange(VOCAB) < sampled.tokens[..., None], sampled.q, 0).sum(-1)[0]
    at = sampled.q.gather(-1, sampled.tokens[..., None])[0, :, 0]
    uniforms = torch.tensor([0.0, 0.3, 0.5, 0.9, 1 - 2**-24], dtype=torch.float64)
    assert (below <= uniforms + 1e-12).all() and (uniforms < below + at + 1e-12).all()


@pytest.mark.parametrize("accepted", [-1, 6])
def test_an_impossible_acceptance_is_refused(accepted):
    taps, tokens = sequence(20)
    runner = started(drafter(), taps, 9, tokens[9])
    with pytest.raises(ValueError, match=rf"row 0 accepted {accepted} proposals; a round has 0 to 5"):
        runner.observe(ROW, verdict([accepted], [1], taps[None, :6]))
    assert runner.lengths == [9]


def test_a_sequence_longer_than_the_capacity_is_refused_before_anything_is_written():
    built = drafter()
    taps, tokens = sequence(20)
    runner = started(built, taps, 10, tokens[10], capacity=12)
    runner.observe(ROW, verdict([1], [1], taps[None, :6]))
    assert runner.lengths == [12] and torch.isfinite(runner.draft_logits(ROW)).all()  # exactly full still drafts
    with pytest.raises(ValueError, match="row 0 would hold 13 context positions; the runner's capacity is 12"):
        runner.observe(ROW, verdict([0], [1], taps[None, :6]))
    with pytest.raises(ValueError, match="row 0 would hold 13"):
        runner.start(ROW, [taps[:13]], tokens[:1])
    with pytest.raises(ValueError, match="knows 2048 positions"):
        BlockDraftRunner(built, 1, 2049)


@every_method
def test_a_runner_follows_weights_that_were_trained_on(method):
    built = drafter(config(method))
    taps, tokens = sequence(20)
    runner = started(built, taps, 9, tokens[9])
    with torch.no_grad():
        for parameter in built.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    runner.start(ROW, [taps[:9]], tokens[9:10])
    assert_drafts_as_trained(built, runner.draft_logits(ROW)[0], taps, tokens, 9)


@pytest.mark.parametrize("changes", [{}, {**NEXT, "num_proposals": 5}], ids=["same", "next"])
def test_a_relay_gets_in_decoding_what_it_gets_in_training_and_a_reused_row_gets_none(changes):
    built = drafter(config("dflow", **changes))
    taps, tokens = sequence(40)
    runner = BlockDraftRunner(built, 2, 64)
    rows, accepted, anchors = torch.tensor([0, 1]), torch.tensor([2, 5]), torch.tensor([9, 4])
    runner.start(rows, [taps[:9], taps[:4]], tokens[anchors])
    first = runner.draft_logits(rows)
    verify = taps[anchors[:, None] + torch.arange(6)]
    proposals = torch.randint(VOCAB, (2, 5), generator=torch.Generator().manual_seed(1))
    following = tokens[anchors + accepted + 1]
    runner.observe(rows, replace(verdict([2, 5], following.tolist(), verify), proposals=proposals))

    state = built.relay_state(Verified(built.fusion.project(verify), None, accepted, following, proposals))
    assert state.live.sum(1).tolist() == [3 if built.layout.alignment == "same" else 2, 0]
    both = [RelayState(*(value[b][None, None] for value in vars(state).values())) for b in range(2)]
    for b, anchor in enumerate((anchors + accepted + 1).tolist()):
        hidden = built.forward_blocks(
            built.context(taps)[None],
            torch.tensor([[anchor]]),
            tokens[None, anchor, None],
            torch.tensor([[True]]),
            relay=both[b],
        )
        trained = built.train_logits(hidden, tokens[None, None, :6]).final[0, 0, :5]
        torch.testing.assert_close(runner.draft_logits(rows)[b], trained, rtol=1e-9, atol=1e-9)
    bare = training_logits(built, taps, tokens, [12])[0]
    assert not torch.allclose(runner.draft_logits(rows)[0], bare)
    runner.start(rows, [taps[:9], taps[:4]], tokens[anchors])
    torch.testing.assert_close(runner.draft_logits(rows), first, rtol=1e-12, atol=1e-12)


class Listening:
    """Keeps the phases that are open at the moment, and all that were ever entered."""

    def __init__(self):
        self.open, self.entered = [], []

    @contextmanager
    def phase(self, name):
        self.open.append(name)
        self.entered.append(name)
        yield
        self.open.pop()


@every_method
def test_head_and_relay_work_inside_their_phases_and_the_rest_of_a_round_outside(method, monkeypatch):
    built, phases, found = drafter(config(method)), Listening(), {}

    def watch(owner, name):
        genuine = getattr(owner, name)

        def call(*given, **named):
            found.setdefault(name, []).append(tuple(phases.open))
            return genuine(*given, **named)

        monkeypatch.setattr(owner, name, call)

    relays = built.relay.uses_states
    for owner, name in ((built.head, "draft"), (built.backbone, "forward"), (built.backbone, "project_context")):
        watch(owner, name)
    for name in ("block_inputs", "state") if relays else ():
        watch(built.relay, name)
    taps, tokens = sequence(40)
    runner = BlockDraftRunner(built, 1, 64, phases=phases)
    runner.start(ROW, [taps[:9]], tokens[9:10])
    runner.propose(ROW)
    observed(runner, 0, taps, tokens, 2)
    assert found == {"draft": [("head",)], "forward": [()], "project_context": [(), ()]} | (
        {"block_inputs": [("relay",)], "state": [("relay",)]} if relays else {}
    )
    assert phases.entered == (["relay", "head", "relay"] if relays else ["head"]) and not phases.open


def test_bfloat16_drafts_are_close_to_float32_ones():
    taps, tokens = sequence(20, dtype=torch.float32)
    exact = started(drafter(dtype=torch.float32), taps, 9, tokens[9]).draft_logits(ROW)
    rough = started(drafter(dtype=torch.bfloat16), taps, 9, tokens[9]).draft_logits(ROW)
    assert rough.dtype == torch.bfloat16
    assert (rough.float() - exact).abs().max() < 0.1 * exact.abs().max()


@pytest.mark.slow
def test_a_round_of_a_small_drafter_costs_about_a_millisecond():
    built = drafter(config(num_layers=1, block_size=16, num_proposals=15), torch.float32)
    taps, tokens = sequence(300, dtype=torch.float32)
    runner = started(built, taps, 200, tokens[200], capacity=1000)
    rows = taps[None, :16]
    best = float("inf")
    for _ in range(40):
        begin = time.perf_counter()
        runner.propose(ROW)
        runner.observe(ROW, verdict([3], [1], rows))
        best = min(best, time.perf_counter() - begin)
    assert best < 0.002, f"{best * 1e3:.2f} ms"
