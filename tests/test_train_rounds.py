"""Rounds after the first: where chains go on, what is proposed between them, and which gradients flow."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from harness.target import Target
from harness.train.anchors import Blocks, block_tokens, blocks_at, labels
from harness.train.build import build_rounds
from harness.train.corpus import collate
from harness.train.guard import Stopped
from harness.train.rounds import MaskRounds, RejectedRounds, Round
from harness.train.verify import RejectedStep
from methods.drafter import BlockDrafter
from methods.heads import DominoHead, DraftError
from tests import training
from tests.drafting import HIDDEN, VOCAB, config, drafter
from tests.tiny import tiny_target
from tests.training import StopAt

K = 5
METHODS = ["dflow", "dflow_domino"]


# -- where a chain goes on ----------------------------------------------------------------------------------------


class Chosen(RejectedRounds):
    """Proposals that are right for as long as `right` [B, N] says and wrong from there on, past the text's end too."""

    right: torch.Tensor

    def _proposals(self, ids, blocks, hidden):
        steps = torch.arange(K)
        positions = blocks.anchors[..., None] + 1 + steps
        true = ids.gather(1, positions.clamp(max=ids.shape[1] - 1).flatten(1)).view_as(positions)
        right = self.right if self.right.shape == blocks.anchors.shape else self.right[:, : blocks.anchors.shape[1]]
        return torch.where(steps < right[..., None], true, (true + 1) % VOCAB)


IDS = torch.randint(VOCAB, (2, 40), generator=torch.Generator().manual_seed(0))
LENGTHS = torch.tensor([40, 24])
ANCHORS = torch.tensor([[10, 14, 31, 37], [10, 15, 20, 21]])
KEEP = torch.tensor([[True] * 4, [True, True, True, False]])


def chosen(right=0, count=2, method="dflash", anchors=4, **kwargs):
    rounds = Chosen(0, anchors, drafter(config(method)), None, count=count, **kwargs)
    rounds.right = torch.as_tensor(right).expand(2, 4)
    return rounds


def moved(rounds, step=0, index=0, keep=KEEP):
    hidden = torch.arange(4.0, dtype=torch.float64)[None, :, None, None].expand(2, 4, 6, HIDDEN)
    before = Round(blocks_at(IDS, ANCHORS, keep), None, index)
    return rounds.transition(step, IDS, LENGTHS, before, hidden)


@pytest.mark.parametrize("after_full", ["continue", "drop"])
@pytest.mark.parametrize(
    "right", [[[0, 1, 2, 3], [4, 5, 2, 0]], [[5, 5, 5, 5], [5, 3, 5, 5]], [[3, 3, 3, 0], [2, 2, 1, 5]]]
)
def test_the_next_anchor_is_the_first_mismatch_and_a_chain_ends_where_no_label_is_left(right, after_full):
    found = moved(chosen(right, after_full=after_full))
    ended = 0
    for b in range(2):
        last = int(LENGTHS[b]) - 1
        for n in range(4):
            at = int(ANCHORS[b, n])
            accepted = min(right[b][n], max(0, last - at))  # no proposal past the end is the text's own
            mismatch = at + accepted + 1
            goes_on = bool(KEEP[b, n]) and mismatch < last and (accepted < K or after_full == "continue")
            ended += not goes_on
            assert int(found.accepted[b, n]) == accepted and bool(found.following.keep[b, n]) == goes_on, (b, n)
            if goes_on:
                assert int(found.following.anchors[b, n]) == mismatch
                assert int(found.following.tokens[b, n]) == int(IDS[b, mismatch])
    assert 0 < ended < 8


def test_a_step_ends_with_its_last_round_or_its_last_chain():
    rounds = chosen(0, count=2)
    assert moved(rounds, index=1) is not None and moved(rounds, index=2) is None
    assert moved(rounds, keep=torch.zeros_like(KEEP)) is None
    # All accepted, or as many as there was text for: only where full acceptance goes on does anything.
    assert moved(chosen(K)) is not None and moved(chosen(K, after_full="drop")) is None
    rounds._proposals = lambda *_: pytest.fail("proposals for a round that does not come")
    assert rounds.following(0, IDS, LENGTHS, Round(blocks_at(IDS, ANCHORS, KEEP), None, 2), None, None) is None


def test_chains_are_drawn_by_seed_and_step_alone_and_as_many_as_asked():
    def kept(step=0, right=0, keep=KEEP, **kwargs):
        found = moved(chosen(right, **kwargs), step, keep=keep)
        assert torch.equal(found.hidden[:, :, 0, 0].long(), _where(found.blocks))  # each with its own hidden states
        return found.blocks

    def _where(blocks):
        return torch.tensor([[ANCHORS[b].tolist().index(a) for a in blocks.anchors[b].tolist()] for b in range(2)])

    for chains in (1, 2, 3):
        first = kept(chains=chains)
        assert first.anchors.shape == (2, chains) and bool(first.keep.all())
        assert bool((first.anchors.diff(dim=1) > 0).all())
        for other in (
            {"right": 3},
            {"method": "dflow_domino"},
            {"rollout": "teacher"},
            {"after_full": "drop"},
            {"count": 1},
            {"chunk": 1},
        ):
            again = kept(chains=chains, **other)
            assert all(torch.equal(a, b) for a, b in zip(vars(first).values(), vars(again).values(), strict=True))
    one = chosen(chains=1)
    drawn = [int(moved(one, step).blocks.anchors[0, 0]) for step in range(200)]
    assert all(30 < drawn.count(anchor) < 75 for anchor in ANCHORS[0].tolist())
    for chains in (None, 4, 9):
        assert torch.equal(kept(chains=chains).anchors, ANCHORS)
    few = torch.tensor([[True, False, False, True], [False, True, False, False]])
    some = kept(keep=few, chains=2)
    assert some.keep.sum(1).tolist() == [2, 1] and some.anchors[some.keep].tolist() == [10, 37, 15]
    # Drawn once: whoever has been chosen stays.
    assert torch.equal(moved(chosen(chains=2), index=1).blocks.anchors, ANCHORS)


# -- proposals between rounds -------------------------------------------------------------------------------------


def run_of(method, folder, target=None, relay=None, **train):
    """A trainer in float64 whose relay, where it has one, matters from the start."""
    cfg = training.config(folder, {"relay": relay or {}}, **{"chains": 3, "batch_sequences": 4, **train})
    run = training.trainer(target or tiny_target(dtype=torch.float64), cfg, folder, method=method)
    if run.drafter.relay.uses_states:
        torch.nn.init.normal_(run.drafter.relay.mlp[2].weight, std=0.3)
    if run.drafter.config.head == "domino":
        run.drafter.head.embed_proj[2].weight.data.mul_(20)
    batch = collate(run.corpus.train, run.order.at(0))
    return run, batch


def every_round(run, batch, context, past):
    """The rounds of step 0 with their hidden states, which carry gradients; each made from the detached ones before."""
    current = run.rounds.first(0, batch, batch.ids)
    while current is not None:
        blocks = current.blocks
        hidden = run.drafter.forward_blocks(context, blocks.anchors, blocks.tokens, blocks.keep, current.relay)
        yield current, hidden
        current = run.rounds.following(0, batch.ids, batch.lengths, current, hidden.detach(), past)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("chunk", [1, 1000])
def test_online_proposals_are_drafted_and_teachers_are_forced_and_no_sentinel_is_left(method, chunk, tmp_path):
    run, batch = run_of(method, tmp_path, head_chunk=chunk)
    built, first = run.drafter, run.rounds.first(0, batch, batch.ids)
    context = built.context(run.stores.train.batch(batch))
    hidden = built.forward_blocks(context, first.blocks.anchors, first.blocks.tokens, first.blocks.keep).detach()
    proposals = {}
    for rollout in ("online", "teacher"):
        run.rounds.rollout = rollout
        moved = run.rounds.transition(0, batch.ids, batch.lengths, first, hidden)
        proposals[rollout] = moved.proposals
        assert bool((moved.proposals >= 0).all())
        text = block_tokens(batch.ids, moved.blocks, 6)
        flat = moved.hidden.flatten(0, 1)
        with torch.no_grad():
            drafted = built.draft(flat, moved.blocks.tokens.flatten()).tokens
            forced = built.train_logits(flat, text.flatten(0, 1)).final[:, :K].argmax(-1)
        assert torch.equal(moved.proposals.flatten(0, 1), drafted if rollout == "online" else forced)
    assert torch.equal(*proposals.values()) == (method == "dflow")


def test_a_slot_that_was_never_drafted_stops_the_training_too(tmp_path, monkeypatch):
    run, batch = run_of("dflow_domino", tmp_path)
    monkeypatch.setattr(
        DominoHead,
        "draft",
        lambda self, hidden, anchors, buffer, binding: buffer.write(1, binding.head(hidden[:, 2:])),
    )
    with pytest.raises(DraftError, match="left a proposal unwritten"):
        run._backward(batch, 0)


@pytest.mark.parametrize(
    ("method", "rounds", "kind", "count"),
    [("dflash", None, MaskRounds, 0), ("domino", None, MaskRounds, 0), ("dflow", None, RejectedRounds, 2)]
    + [("dflow_domino", None, RejectedRounds, 2), ("dflow", 0, MaskRounds, 0), ("dflash", 3, RejectedRounds, 3)],
)
def test_two_rounds_follow_the_first_with_a_relay_and_none_without_unless_settings_say_so(
    method, rounds, kind, count, tmp_path
):
    train = training.config(tmp_path, rounds=rounds, chains=2).train
    made = build_rounds(train, drafter(config(method)), None, 5)
    assert type(made) is kind and (made.count, made.seed, made.anchors) == (count, 5, 4)
    assert made.uses_past == (count > 0 and method.startswith("dflow"))


@pytest.mark.parametrize("method", [*METHODS, "dflash"])
@pytest.mark.parametrize("count", [1, 2])
def test_nothing_is_run_behind_the_last_round(method, count, tmp_path, monkeypatch):
    run, batch = run_of(method, tmp_path, rounds=count, head_chunk=1000)
    calls = dict.fromkeys(("verify", "draft", "blocks"), 0)

    def counted(owner, name, key, when=lambda *_: True):
        genuine = getattr(owner, name)

        def call(self, *args, **kwargs):
            calls[key] += when(*args)
            return genuine(self, *args, **kwargs)

        monkeypatch.setattr(owner, name, call)

    counted(Target, "features_after", "verify", lambda ids, step, taps: isinstance(step, RejectedStep))
    counted(BlockDrafter, "draft", "draft")
    counted(BlockDrafter, "forward_blocks", "blocks")
    tallies = run._backward(batch, 0)
    assert len(tallies) == count + 1 and all(tally.blocks > 0 for tally in tallies)
    assert calls == {"verify": count if method != "dflash" else 0, "draft": count, "blocks": count + 1}


# -- gradients ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", [*METHODS, "dflash"])
@pytest.mark.parametrize("detach", ["state", "taps"])
def test_a_round_at_a_time_gives_the_gradients_of_the_summed_loss(method, detach, tmp_path):
    run, batch = run_of(method, tmp_path, relay={"detach": detach}, rounds=2)
    tallies = run._backward(batch, 3)
    assert all(tally.blocks > 3 for tally in tallies)
    got = {name: p.grad.clone() for name, p in run.drafter.named_parameters()}
    run.optimiser.clear()

    run.rounds.first = lambda step, *rest, genuine=run.rounds.first: genuine(3, *rest)
    run.rounds.following = lambda step, *rest, genuine=run.rounds.following: genuine(3, *rest)
    taps, past = run.stores.train.batch_with_past(batch)
    total, share = 0, run.drafter.head.base_share(3 / 12)
    for index, (current, hidden) in enumerate(every_round(run, batch, run.drafter.context(taps), past)):
        blocks = current.blocks
        true, valid = labels(batch.ids, batch.lengths, blocks, run.drafter.layout)
        final, base = run.drafter.train_logits(hidden, block_tokens(batch.ids, blocks, 6))
        weights = (run.objective.weights(torch.arange(1, K + 1)) * valid).double()

        def mean(logits, true=true, weights=weights):
            losses = F.cross_entropy(logits.flatten(0, 2), true.flatten(), reduction="none").view_as(weights)
            return (weights * losses).sum() / weights.sum()

        loss = mean(final) if base is None else (1 - share) * mean(final) + share * mean(base)
        assert mean(final).item() == pytest.approx(tallies[index].loss, rel=1e-9)
        total = total + loss
    assert index == 2
    total.backward()
    for name, parameter in run.drafter.named_parameters():
        assert parameter.grad.abs().max() > 0, name
        torch.testing.assert_close(got[name], parameter.grad, rtol=1e-6, atol=1e-9, msg=lambda m, n=name: f"{n}: {m}")


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("relay", [{}, {"detach": "taps"}, {"states": "drafter"}], ids=str)
def test_through_a_relay_gradients_reach_the_fusion_if_asked_and_nothing_else_ever(method, relay, tmp_path):
    run, batch = run_of(method, tmp_path, relay=relay)
    built = run.drafter
    taps, past = run.stores.train.batch_with_past(batch)
    first = run.rounds.first(0, batch, batch.ids)
    context = built.context(taps)
    blocks = first.blocks
    hidden = built.forward_blocks(context, blocks.anchors, blocks.tokens, blocks.keep)
    second = run.rounds.following(0, batch.ids, batch.lengths, first, hidden, past)  # not detached, unlike in the loop
    states = second.relay.states
    assert second.relay.live.sum() > 10 and states.requires_grad == (relay == {"detach": "taps"})
    reached = set()
    if states.requires_grad:
        named = {"hidden": hidden, "context": context, **dict(built.named_parameters())}
        found = torch.autograd.grad(states.sum(), named.values(), allow_unused=True, retain_graph=True)
        reached = {name for name, grad in zip(named, found, strict=True) if grad is not None and grad.any()}
    assert reached == ({"fusion.fc.weight", "fusion.hidden_norm.weight"} if relay == {"detach": "taps"} else set())

    # A round on a context that is a leaf: what reaches W_fc now can only have come through the relay.
    blocks, leaf = second.blocks, context.detach()
    built.forward_blocks(leaf, blocks.anchors, blocks.tokens, blocks.keep, second.relay).square().sum().backward()
    weight = built.fusion.fc.weight
    assert (weight.grad is not None and bool(weight.grad.any())) == (relay == {"detach": "taps"})
    assert all(p.grad is not None and bool(p.grad.any()) for p in built.relay.parameters())
    assert all(p.grad is None and not p.requires_grad for p in run.stores.train.target.model.parameters())


@pytest.mark.parametrize("method", METHODS)
def test_labels_past_the_response_count_in_no_round_and_padding_is_read_by_none(method, tmp_path):
    run, batch = run_of(method, tmp_path)
    taps, past = run.stores.train.batch_with_past(batch)
    expected = []
    for current, _ in every_round(run, batch, run.drafter.context(taps), past):
        blocks: Blocks = current.blocks
        inside = blocks.anchors[..., None] + torch.arange(1, K + 1) < batch.lengths[:, None, None]
        expected.append((inside & blocks.keep[..., None]).sum((0, 1)).tolist())
    assert expected[1][0] > expected[1][-1] > 0  # blocks at the end of a response there are, in later rounds too
    found = []
    for filler in (0, 77):
        batch.ids[torch.arange(batch.ids.shape[1]) >= batch.lengths[:, None]] = filler
        tallies = run._backward(batch, 0)
        assert [tally.counted.tolist() for tally in tallies] == expected
        found.append([tally.loss for tally in tallies] + [p.grad.clone() for p in run.drafter.parameters()])
        run.optimiser.clear()
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12)


# -- resuming -----------------------------------------------------------------------------------------------------


def test_a_resumed_run_of_many_rounds_equals_an_uninterrupted_one_bit_for_bit(tmp_path):
    target, made = tiny_target(), []
    for name, stops in (("whole", ()), ("resumed", (6, 7))):
        folder = tmp_path / name
        cfg = training.config(folder, chains=2, base_until=0.5, steps=8, eval_every=4, checkpoint_every=3)
        for stop in stops:
            run = training.trainer(target, cfg, folder, method="dflow_domino", between=StopAt(stop))
            with pytest.raises(Stopped):
                run.run()
            assert 0 < run.step < 8
        run = training.trainer(target, cfg, folder, method="dflow_domino")
        outcome = run.run()
        rows = [{key: value for key, value in row.items() if key != "seconds"} for row in run.curve.rows]
        made.append((rows, outcome.walks, outcome.blocks, {n: p.detach() for n, p in run.drafter.named_parameters()}))
    (*whole, weights), (*resumed, again) = made
    assert whole == resumed and whole[0][-1]["accept_round_2"] >= 1
    assert all(torch.equal(weights[name], again[name]) for name in weights)
