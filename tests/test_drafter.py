"""Blocks over a sequence: what they may see, what training and decoding share, and the seams for other methods."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from methods.backbone import Rotary, rotate
from methods.contract import SENTINEL, Sampling
from methods.drafter import BlockDrafter
from methods.heads import DraftBuffer, DraftError
from methods.objectives import OBJECTIVES, objective
from methods.recipes import RECIPES, recipe
from methods.relays import Verified
from tests.drafting import (
    HIDDEN,
    MASK,
    METHODS,
    VOCAB,
    assert_drafts_as_trained,
    config,
    drafter,
    fake_binding,
    relay_after,
    sequence,
    started,
    training_logits,
    verdict,
)

NEXT = dict(alignment="next", block_size=6, num_proposals=5)
every_method = pytest.mark.parametrize("method", METHODS)


def logits_at(built: BlockDrafter, taps, tokens, anchor: int):
    return training_logits(built, taps, tokens, [anchor])


@every_method
@pytest.mark.parametrize(
    "changes", [{}, NEXT, {"num_attention_heads": 6, "num_key_value_heads": 1}], ids=["same", "next", "one kv head"]
)
@pytest.mark.parametrize("anchor", [1, 13, 1200], ids=["one position", "short", "over a thousand"])
def test_training_logits_equal_decoding_logits(method, changes, anchor):
    built = drafter(config(method, **changes))
    taps, tokens = sequence(anchor + 5)
    decoded = started(built, taps, anchor, tokens[anchor], capacity=anchor).draft_logits(torch.tensor([0]))[0]
    assert_drafts_as_trained(built, decoded, taps, tokens, anchor)


@every_method
@pytest.mark.parametrize("changes", [{}, NEXT], ids=["same", "next"])
def test_features_at_or_after_the_anchor_and_later_tokens_change_nothing(method, changes):
    built, anchor = drafter(config(method, **changes)), 9
    taps, tokens = sequence(20)
    before = logits_at(built, taps, tokens, anchor)
    later = taps.clone()
    later[anchor:] = torch.randn_like(later[anchor:]) * 100
    assert torch.equal(logits_at(built, later, tokens, anchor), before)
    for offset in range(
        1, built.layout.num_proposals + 1
    ):  # a head may read earlier slots, never its own or later ones
        other = tokens.clone()
        other[anchor + offset :] = (other[anchor + offset :] + 1) % VOCAB
        blind = slice(None) if built.config.head == "plain" else slice(offset)
        assert torch.equal(logits_at(built, taps, other, anchor)[:, blind], before[:, blind])


@every_method
def test_features_before_the_anchor_and_the_anchor_token_do_change_the_block(method):
    built, anchor = drafter(config(method)), 9
    taps, tokens = sequence(20)
    before = logits_at(built, taps, tokens, anchor)
    for position in range(anchor):
        changed = taps.clone()
        changed[position] += 1
        assert not torch.allclose(logits_at(built, changed, tokens, anchor), before), position
    tokens[anchor] = (tokens[anchor] + 1) % VOCAB
    assert not torch.allclose(logits_at(built, taps, tokens, anchor), before)


@every_method
def test_blocks_of_one_sequence_do_not_see_each_other(method):
    built = drafter(config(method))
    taps, tokens = sequence(20)
    alone = torch.cat([logits_at(built, taps, tokens, anchor) for anchor in (3, 4, 17)])
    together = training_logits(built, taps, tokens, [3, 4, 17])
    torch.testing.assert_close(together, alone, rtol=1e-9, atol=1e-9)


@every_method
def test_a_block_that_is_not_kept_is_finite_and_leaves_no_gradient(method):
    built = drafter(config(method))
    taps, tokens = sequence(12)
    context = built.context(taps)[None].detach().requires_grad_()
    anchors, keep = torch.tensor([[5, -7, 10_000]]), torch.tensor([[True, False, False]])
    hidden = built.forward_blocks(context, anchors, torch.tensor([[3, -1, 10_000]]), keep)
    assert torch.isfinite(hidden).all()
    hidden[~keep].sum().backward()
    assert (context.grad == 0).all()


@every_method
def test_every_weight_of_the_drafter_learns_and_none_of_the_target(method):
    built = drafter(config(method))
    taps, tokens = sequence(20)
    verified = taps[torch.tensor([[0], [8]]) + torch.arange(built.layout.num_proposals + 1)]
    relay = relay_after(built, verdict([1, 2], tokens[[4, 11]].tolist(), verified))
    training_logits(built, taps, tokens, [4, 11], relay).square().sum().backward()
    assert {n: p.grad is not None and bool(p.grad.abs().sum() > 0) for n, p in built.named_parameters()} == {
        n: True for n, _ in built.named_parameters()
    }
    own = {id(p) for name, p in built.named_parameters() if name.startswith("head.")}  # Domino's is of its size too
    assert all(VOCAB not in p.shape for p in built.parameters() if id(p) not in own)


def test_backbone_equals_a_plain_reading_of_the_equations():
    """DFlash, one layer, spelt out for one block: u = RMSNorm(x); K = RMSNorm_head([W_k ctx; W_k u]); no mask."""
    built = drafter(config(num_layers=1, num_attention_heads=4, num_key_value_heads=2))
    taps, tokens = sequence(7)
    anchor, block, eps = 7, 6, 1e-6
    got = built.forward_blocks(
        built.context(taps)[None], torch.tensor([[anchor]]), tokens[None, anchor, None], torch.tensor([[True]])
    )[0, 0]

    def norm(x, module):
        return x / (x.square().mean(-1, keepdim=True) + eps).sqrt() * module.weight

    def turn(x, first):  # [T, heads, 8]: pairs (i, i+4) turned by position * theta^(-i/4)
        out = x.clone()
        for t in range(len(x)):
            for i in range(4):
                angle = torch.tensor((first + t) * 10000.0 ** (-i / 4), dtype=torch.float64)
                a, b = x[t, :, i], x[t, :, i + 4]
                out[t, :, i], out[t, :, i + 4] = a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()
        return out

    layer, embed = built.backbone.layers[0], built.binding.embed
    attention = layer.self_attn
    context = norm(taps @ built.fusion.fc.weight.T, built.fusion.hidden_norm)
    x = embed(torch.tensor([tokens[anchor], *[MASK] * (block - 1)]))
    u = norm(x, layer.input_layernorm)
    both = torch.cat((context, u))
    q = turn(norm((u @ attention.q_proj.weight.T).view(block, 4, 8), attention.q_norm), anchor)
    k = turn(norm((both @ attention.k_proj.weight.T).view(-1, 2, 8), attention.k_norm), 0)
    v = (both @ attention.v_proj.weight.T).view(-1, 2, 8)
    heads = [torch.softmax(q[:, h] @ k[:, h // 2].T / 8**0.5, -1) @ v[:, h // 2] for h in range(4)]
    x = x + torch.cat(heads, -1) @ attention.o_proj.weight.T
    u = norm(x, layer.post_attention_layernorm)
    x = x + (F.silu(u @ layer.mlp.gate_proj.weight.T) * (u @ layer.mlp.up_proj.weight.T)) @ layer.mlp.down_proj.weight.T
    # Rotary tables are stored in float32, the drafter around them is float64.
    torch.testing.assert_close(got, norm(x, built.backbone.norm), rtol=1e-5, atol=1e-6)


def test_rotary_scores_depend_on_distance_only():
    rotary, (q, k) = Rotary(8, 10000.0, 64).double(), torch.randn(2, 1, 8, dtype=torch.float64)
    score = [rotate(q, rotary(slice(p, p + 1))) @ rotate(k, rotary(slice(p + 5, p + 6))).T for p in (0, 40)]
    torch.testing.assert_close(score[0], score[1], rtol=1e-5, atol=1e-5)  # tables are float32 here


@every_method
def test_chunked_training_logits_equal_whole_ones(method):
    built = drafter(config(method))
    taps, tokens = sequence(20)
    anchors = torch.tensor([[3, 9, 12]])
    hidden = built.forward_blocks(built.context(taps)[None], anchors, tokens[anchors], anchors > 0).flatten(0, 1)
    block = tokens[anchors[0, :, None] + torch.arange(6)]
    whole = built.train_logits(hidden, block).final
    parts = torch.cat([built.train_logits(h, t).final for h, t in zip(hidden.split(1), block.split(1), strict=True)])
    assert whole.shape == (3, 5, VOCAB)
    torch.testing.assert_close(whole, parts, rtol=1e-12, atol=1e-12)


# -- draft vocabulary ---------------------------------------------------------------------------------------------


def test_a_draft_vocabulary_is_the_full_head_restricted_to_its_ids():
    ids = torch.tensor([0, 3, 4, 11, 30])
    narrow, full = drafter(config(draft_vocab_size=5), draft_vocab=ids), drafter()
    taps, tokens = sequence(12)
    torch.testing.assert_close(logits_at(narrow, taps, tokens, 6), logits_at(full, taps, tokens, 6)[..., ids])
    assert narrow.labels(torch.tensor([0, 1, 11, 30, 36])).tolist() == [0, -1, 3, 4, -1]
    runner = started(narrow, taps, 6, tokens[6])
    uniforms = torch.rand(1, 5, generator=torch.Generator().manual_seed(0))
    proposal = runner.propose(torch.tensor([0]), Sampling(1.0, uniforms))
    assert proposal.q.shape == (1, 5, VOCAB)
    outside = [i for i in range(VOCAB) if i not in ids.tolist()]
    assert (proposal.q[..., outside] == 0).all() and (proposal.q.gather(-1, proposal.tokens[..., None]) > 0).all()
    best = logits_at(full, taps, tokens, 6)[0][:, ids].argmax(-1)
    assert runner.propose(torch.tensor([0])).tokens[0].tolist() == ids[best].tolist()


@pytest.mark.parametrize("ids", [None, [0, 1], [0, 1, VOCAB], [2, 1, 3], [1, 1, 3], [-1, 0, 1]])
def test_a_draft_vocabulary_that_does_not_fit_is_refused(ids):
    with pytest.raises(ValueError, match="draft_vocab"):
        drafter(config(draft_vocab_size=3), draft_vocab=None if ids is None else torch.tensor(ids))


# -- the draft buffer ---------------------------------------------------------------------------------------------


def test_a_slot_that_was_never_written_is_an_error():
    buffer = DraftBuffer(2, 3, VOCAB, torch.device("cpu"))
    buffer.write(0, torch.zeros(2, 2, VOCAB))
    with pytest.raises(DraftError, match=rf"row 0 left a proposal unwritten: \[0, 0, {SENTINEL}\]"):
        buffer.proposal("row {}".format)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_logits_that_are_not_finite_name_their_row(value):
    buffer = DraftBuffer(3, 2, VOCAB, torch.device("cpu"))
    logits = torch.zeros(3, 2, VOCAB)
    logits[1, 1, 5] = value
    buffer.write(0, logits)
    with pytest.raises(DraftError, match="logits of row 1 are not finite"):
        buffer.proposal("row {}".format)


def test_sampled_tokens_invert_the_very_distribution_that_is_returned():
    logits = torch.randn(1, 1, 5, generator=torch.Generator().manual_seed(3)) * 2
    grid = (torch.arange(2000) + 0.5) / 2000
    buffer = DraftBuffer(2000, 1, 5, torch.device("cpu"), sampling=Sampling(0.7, grid[:, None]))
    buffer.write(0, logits.expand(2000, 1, 5))
    proposal = buffer.proposal(str)
    share = torch.bincount(proposal.tokens[:, 0], minlength=5) / 2000
    want = torch.softmax(logits[0, 0] / 0.7, -1)
    torch.testing.assert_close(proposal.q[0, 0], want)
    assert (share - want).abs().max() <= 1 / 2000
    assert (proposal.tokens[1:, 0] >= proposal.tokens[:-1, 0]).all()


@pytest.mark.parametrize("uniform", [0.0, 0.5, 1 - 2**-53])
@pytest.mark.parametrize("count", [2, 25])
def test_no_uniform_picks_a_token_without_probability(uniform, count):
    """Zero and one are where rounding tempts: 25 times the float32 of 1/25 is less than one."""
    logits = torch.tensor([[[-1e9, *[0.0] * count, -1e9]]])
    uniforms = torch.tensor([[uniform]], dtype=torch.float64)
    buffer = DraftBuffer(1, 1, count + 2, torch.device("cpu"), sampling=Sampling(1.0, uniforms))
    assert 1 <= buffer.write(0, logits).item() <= count


# -- seams --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("changes", [{}, {"alignment": "next"}], ids=["same", "next"])
def test_relay_state_carries_the_normed_rows_the_layout_names_and_no_nan(changes):
    built = drafter(config("dflow", **changes))
    projected = torch.randn(4, 6, HIDDEN, dtype=torch.float64)
    accepted, proposals = torch.tensor([0, 2, 4, 5]), torch.arange(20).view(4, 5)
    for row, count in enumerate(accepted.tolist()):
        projected[row, : count + 1] = torch.nan  # rows that no slot may receive
    state = built.relay_state(Verified(projected, None, accepted, torch.tensor([9, 8, 7, 6]), proposals))
    rows = built.layout.relay_rows(accepted)
    normed = built.fusion.hidden_norm(projected)
    for b in range(4):
        for slot in range(6):
            row = rows[b, slot].item()
            want = normed[b, row] if row >= 0 else torch.zeros(HIDDEN, dtype=torch.float64)
            assert state.live[b, slot].item() == (row >= 0)
            torch.testing.assert_close(state.states[b, slot], want, rtol=1e-12, atol=1e-12)
    assert state.rejected.tolist() == [0, 7, 14, 19] and state.correction.tolist() == [9, 8, 7, 6]


def test_slots_are_the_anchor_then_masks():
    built = drafter()
    x = built.block_inputs(torch.tensor([5, 7]), None)
    want = built.binding.embed(torch.tensor([[5, *[MASK] * 5], [7, *[MASK] * 5]]))
    assert torch.equal(x, want)


# -- configuration ------------------------------------------------------------------------------------------------


def test_decay_weighs_by_distance_from_the_anchor():
    weights = objective("decay", 7.0).weights(torch.tensor([1, 2, 8]))
    torch.testing.assert_close(weights, torch.tensor([1.0, 0.8668779, 0.3678794]))


def test_unknown_names_list_the_known_ones():
    with pytest.raises(ValueError, match=f"unknown method 'dfalsh'; known methods: {', '.join(sorted(RECIPES))}$"):
        recipe("dfalsh")
    with pytest.raises(ValueError, match=f"known objectives: {', '.join(sorted(OBJECTIVES))}$"):
        objective("dcay", 7.0)
    with pytest.raises(ValueError, match="gamma is 0"):
        objective("decay", 0.0)
    assert not RECIPES["ar"].drafts and RECIPES["dflash"].drafts


def test_a_drafter_does_not_fit_a_target_of_another_size():
    with pytest.raises(ValueError, match="vocab_size is 37 in the drafter and 40 in the target"):
        BlockDrafter(config(), fake_binding(vocab=40))


def test_a_seed_gives_one_drafter_and_rebinding_changes_no_weight():
    first, second = drafter(seed=4), drafter(seed=4)
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))
    other = copy.copy(fake_binding())
    first.bind(other)
    assert first.binding is other and len(list(first.modules())) == len(list(second.modules()))


def test_modules_lent_by_the_target_do_not_become_parameters():
    lent = nn.Embedding(VOCAB, HIDDEN), nn.Linear(HIDDEN, VOCAB, bias=False)
    binding = copy.copy(fake_binding())
    object.__setattr__(binding, "embed", lent[0])
    object.__setattr__(binding, "head", lent[1])
    built = BlockDrafter(config(), binding)
    assert len(list(built.parameters())) == len(list(drafter().parameters()))
