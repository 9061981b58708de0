"""Domino's head: its correction, its curriculum, and that drafting is teacher forcing on its own drafts."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from harness.train.anchors import block_tokens, blocks_at, draw, labels
from harness.train.corpus import collate
from harness.train.loss import block_loss
from harness.train.optimiser import MasterAdamW
from methods.contract import Sampling, TargetBinding
from methods.heads import DominoHead
from methods.objectives import Decay
from tests import training
from tests.drafting import (
    HEAD,
    HIDDEN,
    METHODS,
    NEXT,
    VOCAB,
    config,
    drafter,
    fake_binding,
    sequence,
    started,
    verdict,
)
from tests.tiny import tiny_target

ROW = torch.tensor([0])
IDS = torch.tensor([0, 3, 4, 11, 17, 21, 30])
LAYOUTS = [{}, NEXT, NEXT | {"num_proposals": 6}, {"num_proposals": 3}]
layouts = pytest.mark.parametrize("changes", LAYOUTS, ids=["same", "next", "next, all slots", "same, three"])
prefixes = pytest.mark.parametrize("pure", [0, 1, 3, 5])  # 5 is the whole block of most layouts
methods = pytest.mark.parametrize("method", [m for m in METHODS if config(m).head == "domino"])


def domino(pure=1, method="domino", draft_vocab=None, **changes):
    size = None if draft_vocab is None else len(draft_vocab)
    given = config(method, head_options=replace(HEAD, pure_prefix=pure), draft_vocab_size=size, **changes)
    return drafter(given, draft_vocab=draft_vocab)


def blocks(count=4, seed=0):
    """Denoised blocks [M, block, H] and the tokens they stand on [M]."""
    generator = torch.Generator().manual_seed(seed)
    hidden = torch.randn(count, 6, HIDDEN, generator=generator, dtype=torch.float64)
    return hidden, torch.randint(VOCAB, (count,), generator=generator)


def on_own_drafts(anchors, tokens):
    """The block [M, 6] in which the drafts came true; what stands behind them is read by nobody."""
    return F.pad(torch.cat((anchors[:, None], tokens), dim=1), (0, 6))[:, :6]


# -- the correction -----------------------------------------------------------------------------------------------


@layouts
@prefixes
@pytest.mark.parametrize("vocab", [None, IDS], ids=["all tokens", "draft vocabulary"])
def test_drafting_is_teacher_forcing_on_its_own_drafts_slot_by_slot(changes, pure, vocab):
    built = domino(pure, draft_vocab=vocab, **changes)
    hidden, anchors = blocks()
    count = built.layout.num_proposals
    with torch.no_grad():
        buffer = built.fill(hidden, anchors, keep_logits=True)
        drafted = torch.cat(buffer.logits, dim=1)
        final, base = built.train_logits(hidden, on_own_drafts(anchors, buffer.tokens))
    torch.testing.assert_close(drafted, final[:, :count], rtol=1e-10, atol=1e-10)
    assert torch.equal(built.labels(buffer.tokens), drafted.argmax(-1))
    assert torch.equal(buffer.tokens, built.forced(hidden, on_own_drafts(anchors, buffer.tokens)))
    corrected = (final != base).any(-1).any(0).tolist()
    assert corrected == [slot >= pure for slot in range(len(built.layout.supervised_slots))]


@layouts
@pytest.mark.parametrize("pure", [0, 1])
def test_without_its_correction_the_head_proposes_what_the_base_branch_does(changes, pure):
    built, plain = domino(pure, **changes), drafter(config("dflash", **changes))
    plain.load_state_dict({k: v for k, v in built.state_dict().items() if not k.startswith("head.")})
    taps, tokens = sequence(20)
    runners = [started(one, taps, 9, tokens[9]) for one in (built, plain)]
    logits = [runner.draft_logits(ROW) for runner in runners]
    assert not torch.allclose(*logits)
    torch.nn.init.zeros_(built.head.embed_proj[2].weight)
    assert torch.equal(*(runner.draft_logits(ROW) for runner in runners))
    assert torch.equal(*(runner.propose(ROW).tokens for runner in runners))


@layouts
@pytest.mark.parametrize("pure", [0, 1, 3])
def test_a_slot_reads_every_token_before_its_own_and_none_from_there_on(changes, pure):
    built = domino(pure, **changes)
    hidden, _ = blocks()
    tokens = torch.randint(VOCAB, (4, 6), generator=torch.Generator().manual_seed(1))
    before = built.train_logits(hidden, tokens).final
    for place in range(6):
        other = tokens.clone()
        other[:, place] = (other[:, place] + 1) % VOCAB
        moved = (built.train_logits(hidden, other).final != before).any(-1).any(0).tolist()
        # The first supervised slot predicts the token at place 1, the one behind it that at place 2, ...
        assert moved == [slot >= pure and place < slot + 1 for slot in range(len(moved))], place


def test_logits_equal_a_plain_reading_of_the_equations():
    """Domino section 5: the backbone's logits, and W2 SiLU(W1 [h; s]) with the state after all tokens before."""
    built = domino(1)
    hidden, _ = blocks()
    tokens = torch.randint(VOCAB, (4, 6), generator=torch.Generator().manual_seed(2))
    got, _ = built.train_logits(hidden, tokens)
    first, _, second = built.head.embed_proj
    for slot in range(5):  # `same`: slot + 1 predicts the token at p + slot + 1
        h = hidden[:, slot + 1]
        want = built.binding.head(h)
        if slot >= 1:
            state = built.head.prefix_gru(built.binding.embed(tokens[:, : slot + 1]))[1][0]
            want = want + F.silu(torch.cat((h, state), dim=-1) @ first.weight.T) @ second.weight.T
        torch.testing.assert_close(got[:, slot], want, rtol=1e-10, atol=1e-10)


# -- the GRU, step by step ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("entries", [0, 2**22], ids=["no table", "table"])
def test_one_step_at_a_time_is_the_gru_of_torch(entries, monkeypatch):
    monkeypatch.setattr(DominoHead, "TABLE_ENTRIES", entries)
    head = domino().head
    tokens = torch.randint(VOCAB, (3, 7), generator=torch.Generator().manual_seed(3))
    binding = fake_binding()
    with torch.no_grad():
        want, _ = head.prefix_gru(binding.embed(tokens))
        state = torch.zeros(3, HEAD.gru_size, dtype=torch.float64)
        for place in range(7):
            state = head._step(tokens[:, place], state, binding)
            torch.testing.assert_close(state, want[:, place], rtol=1e-12, atol=1e-12)
    assert (head._table is not None) == bool(entries)


def test_the_table_follows_weights_and_target(monkeypatch):
    built = domino(0)
    hidden, anchors = blocks()

    def drafted():
        with torch.no_grad():
            return torch.cat(built.fill(hidden, anchors, keep_logits=True).logits, dim=1)

    def tables():
        with_table = drafted()
        with monkeypatch.context() as patch:
            patch.setattr(DominoHead, "TABLE_ENTRIES", 0)
            torch.testing.assert_close(with_table, drafted(), rtol=1e-12, atol=1e-12)
        return with_table

    found = [tables()]
    optimiser = MasterAdamW(built, 0.0, 1.0)
    for _ in range(2):
        built.train_logits(hidden, on_own_drafts(anchors, anchors[:, None])).final.square().sum().backward()
        optimiser.step(0.1)
        found.append(tables())
    with torch.no_grad():
        built.head.prefix_gru.weight_ih_l0.mul_(2)
    found.append(tables())
    turned = fake_binding()
    built.bind(TargetBinding(lambda ids: turned.embed(ids).roll(1, -1), turned.head, HIDDEN, VOCAB))
    found.append(tables())
    built.float()
    hidden = hidden.float()
    built.bind(fake_binding(torch.float32))
    assert drafted().dtype == torch.float32
    assert all(not torch.allclose(a, b) for a, b in zip(found, found[1:], strict=False))


# -- drafting -----------------------------------------------------------------------------------------------------


@methods
@layouts
def test_a_block_is_denoised_once_a_round(method, changes):
    built, calls = domino(1, method, **changes), []
    built.backbone.register_forward_hook(lambda *_: calls.append(1))
    taps, tokens = sequence(20)
    runner = started(built, taps, 9, tokens[9])
    for turn in range(3):
        drafted = runner.propose(ROW).tokens
        assert len(calls) == turn + 1
        runner.observe(ROW, verdict([1], [5], taps[None, : built.layout.num_proposals + 1], drafted))


@methods
@layouts
@pytest.mark.parametrize("vocab", [None, IDS], ids=["all tokens", "draft vocabulary"])
def test_sampled_drafts_carry_the_law_they_were_drawn_from(method, changes, vocab):
    """Each slot's own law given the tokens really drawn before it, and the token where the uniform inverts it."""
    built = domino(1, method, draft_vocab=vocab, **changes)
    hidden, anchors = blocks(64)
    count = built.layout.num_proposals
    uniforms = torch.rand(64, count, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    with torch.no_grad():
        proposal = built.draft(hidden, anchors, Sampling(0.7, uniforms))
        own = built.train_logits(hidden, on_own_drafts(anchors, proposal.tokens)).final[:, :count]
    ids = torch.arange(VOCAB) if vocab is None else vocab
    law = torch.zeros(64, count, VOCAB, dtype=torch.float64)
    law[..., ids] = torch.softmax(own / 0.7, dim=-1)
    torch.testing.assert_close(proposal.q, law, rtol=1e-9, atol=1e-12)
    below = torch.where(torch.arange(VOCAB) < proposal.tokens[..., None], law, 0).sum(-1)
    at = law.gather(-1, proposal.tokens[..., None])[..., 0]
    assert bool((below <= uniforms + 1e-9).all() and (uniforms < below + at + 1e-9).all())
    assert len(proposal.tokens.unique()) > 4


# -- the curriculum -----------------------------------------------------------------------------------------------


def test_the_base_branchs_share_falls_linearly_from_one_to_zero():
    head = domino().head
    assert [head.base_share(x / 4) for x in range(5)] == [1.0, 0.75, 0.5, 0.25, 0.0]
    assert drafter(config("dflash")).head.base_share(0.0) == 0.0


@pytest.mark.parametrize(
    ("until", "shares"),
    [(1.0, [1.0, 0.75, 0.5, 0.25]), (0.5, [1.0, 0.5, 0.0, 0.0]), (0.0, [0.0] * 4)],
)
def test_the_share_is_gone_when_base_until_says(until, shares, tmp_path, monkeypatch):
    """Seen where the loss takes it: at steps 0, 3, 6 and 9 of 12."""
    cfg, seen = training.config(tmp_path, base_until=until), []
    run = training.trainer(tiny_target(), cfg, tmp_path, method="domino")
    genuine = DominoHead.base_share
    monkeypatch.setattr(DominoHead, "base_share", lambda self, at: seen.append(genuine(self, at)) or genuine(self, at))
    batch = collate(run.corpus.train, run.order.at(0))
    for step in (0, 3, 6, 9):
        run._backward(batch, step)
    assert seen == shares


@methods
@pytest.mark.parametrize("progress", [0.0, 0.3, 1.0])
def test_the_loss_mixes_both_branches_and_teaches_what_its_share_allows(method, progress):
    built = domino(1, method)
    lines = [
        replace(t, prompt_ids=_small(t.prompt_ids), response_ids=_small(t.response_ids))
        for t in training.trajectories(4)
    ]
    batch = collate(lines, range(4))
    anchors, keep = draw(0, 0, batch.lengths, batch.prompts, 5)
    given = blocks_at(batch.ids, anchors, keep)
    taps = sequence(batch.ids.numel())[0].view(*batch.ids.shape, 2 * HIDDEN)
    weights = {name: p for name, p in built.named_parameters() if not name.startswith("relay.")}

    def hidden():
        return built.forward_blocks(built.context(taps), anchors, given.tokens, keep)

    block_loss(built, hidden(), batch.ids, batch.lengths, given, Decay(4.0), 7, progress=progress)
    true, valid = labels(batch.ids, batch.lengths, given, built.layout)
    final, base = (
        F.cross_entropy(logits.flatten(0, 2), true.flatten(), reduction="none")
        for logits in built.train_logits(hidden(), block_tokens(batch.ids, given, 6))
    )
    weight = (torch.exp(-torch.arange(5, dtype=torch.float64) / 4) * valid).flatten()
    loss = (weight * (progress * final + (1 - progress) * base)).sum() / weight.sum()
    for (name, parameter), want in zip(weights.items(), torch.autograd.grad(loss, weights.values()), strict=True):
        torch.testing.assert_close(parameter.grad, want, rtol=1e-6, atol=1e-8, msg=lambda m, n=name: f"{n}: {m}")
    # With the base alone the correction learns nothing; with any other share it does.
    assert bool(built.head.embed_proj[2].weight.grad.any()) == (progress > 0)


def _small(ids):
    return tuple(token % (VOCAB - 1) for token in ids)
