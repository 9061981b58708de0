"""The one mask: training and decoding agree with a literal reading, and both attention kernels with each other."""

import pytest
import torch

from methods.contract import BlockLayout
from methods.visibility import block_mask_mod, cache_mask, materialise
from tests.drafting import config, drafter, fake_binding, sequence

LAYOUT = BlockLayout(4, "same", 3)


def test_a_slot_sees_context_before_its_anchor_and_its_own_block_only():
    anchors, keep = torch.tensor([[0, 3, 6], [5, 2, 1]]), torch.tensor([[True, True, True], [True, True, False]])
    length, block = 7, LAYOUT.block_size
    keys = length + 3 * block
    mask = materialise(block_mask_mod(LAYOUT, anchors, keep, length), 2, 3 * block, keys, anchors.device)
    assert mask.shape == (2, 1, 3 * block, keys)
    for b in range(2):
        for q in range(3 * block):
            n = q // block
            for key in range(keys):
                if key < length:
                    want = bool(keep[b, n]) and key < anchors[b, n]
                else:
                    want = (key - length) // block == n
                assert mask[b, 0, q, key].item() == bool(want), (b, q, key)


def test_a_decoding_row_sees_what_a_training_block_sees():
    anchors = torch.tensor([[2, 5]])
    trained = materialise(block_mask_mod(LAYOUT, anchors, anchors >= 0, 5), 1, 8, 13, anchors.device)[0, 0]
    decoded = cache_mask(LAYOUT, anchors[0], 9)[:, 0, 0]
    for n, anchor in enumerate(anchors[0].tolist()):
        block = trained[4 * n, 5 + 4 * n : 9 + 4 * n]
        assert decoded[n].tolist() == trained[4 * n, :anchor].tolist() + block.tolist() + [False] * (5 - anchor)


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("heads", [(4, 2), (4, 4), (4, 1)])
def test_flex_and_sdpa_give_the_same_block(heads):
    built = drafter(config(num_attention_heads=heads[0], num_key_value_heads=heads[1]), torch.float32)
    taps, tokens = sequence(19, dtype=torch.float32)
    anchors, keep = torch.tensor([[1, 8, 0], [19, 5, 7]]), torch.tensor([[True, True, False], [True, True, True]])
    outputs = []
    with torch.no_grad():
        context = built.context(torch.stack((taps, taps.flip(0))))
        for built.attention in ("sdpa", "flex"):
            outputs.append(built.forward_blocks(context, anchors, tokens[anchors], keep))
    torch.testing.assert_close(outputs[0], outputs[1], rtol=1e-4, atol=1e-5)


@pytest.mark.gpu
def test_compiled_flex_and_its_gradients_equal_sdpa_on_a_gpu():
    built = drafter(config(head_dim=16), torch.float32).to("cuda")
    built.bind(fake_binding(torch.float32, device="cuda"))
    taps, tokens = (value.to("cuda") for value in sequence(300, dtype=torch.float32))
    anchors = torch.tensor([[1, 150, 0], [299, 5, 260]], device="cuda")
    keep = torch.tensor([[True, True, False], [True, True, True]], device="cuda")
    results = []
    for built.attention in ("sdpa", "flex"):
        built.zero_grad()
        hidden = built.forward_blocks(built.context(torch.stack((taps, taps.flip(0)))), anchors, tokens[anchors], keep)
        hidden[keep].square().sum().backward()
        results.append([hidden.detach(), *(p.grad.clone() for p in built.parameters())])
    for plain, fused in zip(*results, strict=True):
        torch.testing.assert_close(fused, plain, rtol=2e-3, atol=2e-3 * plain.abs().max().item())
