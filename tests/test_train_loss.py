"""Chunked loss against a plain one, weights and masks, float32 masters, the schedule."""

import math

import drafting
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from harness.train.anchors import blocks_at, labels
from harness.train.loss import Tally, block_loss
from harness.train.optimiser import MasterAdamW, learning_rate
from methods.objectives import Decay

DECAY = Decay(3.0)


def scene(drafter, length=30, seed=0):
    """Two sequences (one shorter), three blocks each, the last a padding block."""
    taps, tokens = drafting.sequence(length, seed)
    ids = torch.stack([tokens[:length], tokens.flip(0)[:length]])
    lengths = torch.tensor([length, length - 7])
    keep = torch.tensor([[True, True, True], [True, True, False]])
    blocks = blocks_at(ids, torch.tensor([[4, 20, 28], [3, 20, 20]]), keep)
    context = torch.stack([taps, taps.flip(0)])
    return context, ids, lengths, blocks


def hidden_of(drafter, context, blocks):
    return drafter.forward_blocks(drafter.context(context), blocks.anchors, blocks.tokens, blocks.keep)


def plain_loss(drafter, hidden, ids, lengths, blocks):
    """The definition, with no leaf and no chunk: sum(w * CE) / sum(w)."""
    true, valid = labels(ids, lengths, blocks, drafter.layout)
    slots = drafter.layout.supervised_slots
    logits = drafter.head_logits(hidden[:, :, slots.start : slots.stop])
    index = drafter.labels(true)
    losses = F.cross_entropy(logits.flatten(0, 2), index.clamp(min=0).flatten(), reduction="none").view_as(index)
    weights = valid * (index >= 0) * DECAY.weights(drafter.layout.label_offsets()).double()
    return (weights * losses).sum() / weights.sum()


def gradients(drafter):
    return {name: p.grad.clone() for name, p in drafter.named_parameters()}


@pytest.mark.parametrize("chunk", [1, 7, 12, 10_000])
@pytest.mark.parametrize("vocab", [None, torch.arange(0, 37, 2)], ids=["whole", "draft-vocabulary"])
def test_chunked_loss_and_gradients_equal_the_plain_ones(chunk, vocab):
    config = drafting.config(draft_vocab_size=None if vocab is None else len(vocab))
    drafter = drafting.drafter(config, draft_vocab=vocab)
    context, ids, lengths, blocks = scene(drafter)
    expected = plain_loss(drafter, hidden_of(drafter, context, blocks), ids, lengths, blocks)
    expected.backward()
    reference = gradients(drafter)
    drafter.zero_grad()
    tally = block_loss(drafter, hidden_of(drafter, context, blocks), ids, lengths, blocks, DECAY, chunk)
    assert tally.loss == pytest.approx(float(expected.detach()), rel=1e-12)
    for name, gradient in gradients(drafter).items():
        torch.testing.assert_close(gradient, reference[name], rtol=1e-9, atol=1e-12, msg=name)


class Scaled(Decay):
    """Decay times a constant that the division must take out again."""

    def weights(self, offsets, losses=None, hits=None):
        return super().weights(offsets) * 1234.567


def test_in_bfloat16_the_sum_of_weights_keeps_its_bits():
    drafter = drafting.drafter(dtype=torch.bfloat16)
    context, ids, lengths, blocks = scene(drafter)
    hidden = hidden_of(drafter, context.to(torch.bfloat16), blocks).detach()
    norms = []
    for objective in (DECAY, Scaled(3.0)):
        leaf = hidden.clone().requires_grad_()
        block_loss(drafter, leaf, ids, lengths, blocks, objective, 99)
        norms.append(float(leaf.grad.float().norm()))
    assert norms[1] == pytest.approx(norms[0], rel=5e-4)


def test_rounds_through_a_detached_context_leaf_equal_one_backward_pass():
    drafter = drafting.drafter()
    context, ids, lengths, blocks = scene(drafter)
    later = blocks_at(ids, blocks.anchors - 1, blocks.keep)
    fused = drafter.context(context)
    total = sum(
        plain_loss(drafter, drafter.forward_blocks(fused, b.anchors, b.tokens, b.keep), ids, lengths, b)
        for b in (blocks, later)
    )
    total.backward()
    reference = gradients(drafter)
    drafter.zero_grad()
    fused = drafter.context(context)
    leaf = fused.detach().requires_grad_()
    for b in (blocks, later):
        hidden = drafter.forward_blocks(leaf, b.anchors, b.tokens, b.keep)
        block_loss(drafter, hidden, ids, lengths, b, DECAY, 8)
    fused.backward(leaf.grad)
    for name, gradient in gradients(drafter).items():
        torch.testing.assert_close(gradient, reference[name], rtol=1e-9, atol=1e-12, msg=name)


def test_what_is_masked_has_no_gradient_and_is_not_counted():
    drafter = drafting.drafter()
    context, ids, lengths, blocks = scene(drafter)
    hidden = hidden_of(drafter, context, blocks).detach().requires_grad_()
    tally = block_loss(drafter, hidden, ids, lengths, blocks, DECAY, 5)
    reached = hidden.grad.abs().sum(-1) > 0  # [2, 3, block]
    for row, n, last in ((0, 0, 5), (0, 1, 5), (0, 2, 1), (1, 0, 5), (1, 1, 2), (1, 2, 0)):
        # slot 0 predicts nothing; slot j predicts anchor + j, which must lie inside the sequence
        assert reached[row, n].tolist() == [1 <= slot <= last for slot in range(6)], (row, n)
    assert int(tally.blocks) == 5 and tally.counted.tolist() == [5, 4, 3, 3, 3]


def test_committed_is_the_leading_run_plus_one_within_what_is_left():
    drafter = drafting.drafter()
    context, ids, lengths, blocks = scene(drafter)
    hidden = hidden_of(drafter, context, blocks)
    slots = drafter.layout.proposing_slots
    guess = drafter.head_logits(hidden[:, :, slots.start : slots.stop]).argmax(-1)
    expected = 0
    for row, n in blocks.keep.nonzero().tolist():
        anchor, run = int(blocks.anchors[row, n]), 0
        left = int(lengths[row]) - 1 - anchor
        while run < min(5, left) and int(guess[row, n, run]) == int(ids[row, anchor + 1 + run]):
            run += 1
        expected += min(run + 1, left)
    tally = block_loss(drafter, hidden, ids, lengths, blocks, DECAY, 9, backward=False)
    assert float(tally.committed) == expected


def test_tallies_add_up_over_batches():
    drafter = drafting.drafter()
    parts = []
    for seed in (0, 1):
        context, ids, lengths, blocks = scene(drafter, seed=seed)
        parts.append(
            block_loss(drafter, hidden_of(drafter, context, blocks), ids, lengths, blocks, DECAY, 99, backward=False)
        )
    both = Tally.zero(5) + parts[0] + parts[1]
    assert both.loss == pytest.approx(float(sum(p.weighted for p in parts) / sum(p.weight for p in parts)))
    assert both.accuracy[0] == float(parts[0].hits[0] + parts[1].hits[0]) / 10


def test_bfloat16_parameters_move_by_updates_too_small_for_bfloat16():
    module = nn.Linear(4, 4, bias=False).to(torch.bfloat16)
    nn.init.ones_(module.weight)
    optimiser = MasterAdamW(module, weight_decay=0.0, clip=1e9)
    start = module.weight.detach().clone()
    for _ in range(40):
        module.weight.grad = torch.ones_like(module.weight)
        optimiser.step(3e-4)  # below half a bfloat16 step at 1
    assert module.weight.dtype == torch.bfloat16
    assert bool((module.weight < start).all())
    assert torch.allclose(optimiser.masters[0], torch.full((4, 4), 1 - 40 * 3e-4), atol=1e-4)


def test_only_matrices_decay_and_the_norm_is_clipped():
    module = nn.Sequential(nn.Linear(3, 3, bias=False), nn.RMSNorm(3))
    nn.init.ones_(module[0].weight)
    optimiser = MasterAdamW(module, weight_decay=0.5, clip=1.0)
    for parameter in module.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimiser.step(0.1)
    assert bool((module[0].weight < 1).all()) and bool((module[1].weight == 1).all())
    for parameter in module.parameters():
        parameter.grad = torch.full_like(parameter, 100.0)
    assert float(optimiser.step(0.0)) == pytest.approx(100 * math.sqrt(12))


def test_learning_rate_rises_linearly_then_falls_to_nothing():
    rates = [learning_rate(step, 100, 1.0, 0.1) for step in range(100)]
    assert rates[:10] == pytest.approx([(i + 1) / 10 for i in range(10)]) and rates[10] == 1.0
    assert rates[10:] == sorted(rates[10:], reverse=True) and 0 < rates[-1] < 1e-3
    assert learning_rate(0, 10, 1.0, 0.0) == 1.0


def test_many_chunks_of_a_bfloat16_head_add_up_to_one():
    """Sums of gradients kept in eight bits would lose what comes late."""
    drafter = drafting.drafter(drafting.config("domino"), torch.bfloat16)
    context, ids, lengths, _ = scene(drafter)
    anchors = torch.arange(3, 19).repeat(2, 8)
    blocks = blocks_at(ids, anchors, torch.ones_like(anchors, dtype=torch.bool))
    found = []
    for chunk in (10_000, 1):
        drafter.zero_grad()
        hidden = hidden_of(drafter, context.bfloat16(), blocks)
        block_loss(drafter, hidden, ids, lengths, blocks, DECAY, chunk, progress=1.0)
        found.append(drafter.head.embed_proj[2].weight.grad.float())
    whole, pieces = found
    assert (pieces - whole).norm() < 0.01 * whole.norm()
