"""Tensors of released checkpoints: each accounted for by name, shape and dtype, and what the head's mean."""

from __future__ import annotations

import re

import pytest
import torch
import torch.nn.functional as F

from methods.checkpoint import CheckpointError, published_name
from methods.published import FORMATS, drafter_config
from methods.published_tensors import check_finite, check_tensors, own_names, skeleton, with_tensors
from tests.drafting import HIDDEN, NEXT, VOCAB, config, drafter, fake_binding
from tests.released import BIG, FACTS, QWEN3_8B, released

formats = pytest.mark.parametrize("name", list(FORMATS))

LAYER_8B = {
    "input_layernorm": [4096],
    "post_attention_layernorm": [4096],
    "self_attn.q_proj": [4096, 4096],
    "self_attn.k_proj": [1024, 4096],
    "self_attn.v_proj": [1024, 4096],
    "self_attn.o_proj": [4096, 4096],
    "self_attn.q_norm": [128],
    "self_attn.k_norm": [128],
    "mlp.gate_proj": [12288, 4096],
    "mlp.up_proj": [12288, 4096],
    "mlp.down_proj": [4096, 12288],
}
SHAPES_8B = {"fc": [4096, 20480], "hidden_norm": [4096], "norm": [4096]} | {
    f"layers.{index}.{part}": shape for index in range(5) for part, shape in LAYER_8B.items()
}
HEAD_8B = {
    "prefix_gru.weight_ih_l0": [3072, 4096],
    "prefix_gru.weight_hh_l0": [3072, 1024],
    "embed_proj.0.weight": [256, 5120],
    "embed_proj.2.weight": [151936, 256],
}


def tensors_8b(name):
    shapes = {f"{key}.weight": shape for key, shape in SHAPES_8B.items()} | (HEAD_8B if name == "domino" else {})
    return {key: torch.empty(shape, dtype=torch.bfloat16, device="meta") for key, shape in shapes.items()}


@pytest.mark.parametrize(("name", "count"), [("dflash", 58), ("domino", 62)])
def test_a_checkpoint_at_the_shapes_of_qwen3_8b_is_whole(name, count):
    values = released(name, QWEN3_8B, **({"emb_dim": 256, "gru_hidden_dim": 1024} if name == "domino" else {}))
    found, tensors = drafter_config("here", values, name, BIG), tensors_8b(name)
    assert len(tensors) == count
    check_tensors("here", tensors, found, "bfloat16")
    tensors["fc.weight"] = torch.empty(4096, 16384, dtype=torch.bfloat16, device="meta")
    with pytest.raises(CheckpointError, match=r"fc.weight has shape \[4096, 16384\], not \[4096, 20480\]"):
        check_tensors("here", tensors, found, "bfloat16")


def given(name, **changes):
    built = drafter(config(name, **changes))
    return built, {published_name(key): value.clone() for key, value in built.state_dict().items()}


@formats
def test_every_missing_unknown_misshaped_or_odd_tensor_is_named(name):
    built, whole = given(name)
    check_tensors("here", whole, built.config, "float64")
    check_finite("here", whole)
    first = min(whole)
    quoted, shaped = r"'([\w.]+)'", r"([\w.]+) has shape"
    damages = {  # all tensors but the first, so that each has to be looked at
        "missing": (quoted, {first: whole[first]}),
        "unknown": (quoted, {f"{key}2": value for key, value in whole.items()} | whole),
        "shape": (shaped, {key: value if key == first else value[None] for key, value in whole.items()}),
        "integers": (quoted + ": 'int64'", {k: v if k == first else v.long() for k, v in whole.items()}),
        "dtype": (quoted + ": 'bfloat16'", {k: v if k == first else v.bfloat16() for k, v in whole.items()}),
    }
    for kind, (pattern, damaged) in damages.items():
        with pytest.raises(CheckpointError, match="^here: ") as caught:
            check_tensors("here", damaged, built.config, "float64")
        named = {key.removesuffix("2") if kind == "unknown" else key for key in re.findall(pattern, str(caught.value))}
        assert named == whole.keys() - (set() if kind == "unknown" else {first}), kind


@formats
def test_one_bad_tensor_among_good_ones_is_found(name):
    built, whole = given(name)
    for key, value in whole.items():
        poisoned = value.clone()
        poisoned.view(-1)[-1] = torch.inf
        with pytest.raises(CheckpointError, match=rf"here: these tensors hold NaN or inf: \['{key}'\]"):
            check_finite("here", whole | {key: poisoned})
    last = max(whole)
    for words, damaged in {
        rf"missing tensors: \['{last}'\]; unknown tensors: \[\]": {k: v for k, v in whole.items() if k != last},
        rf"here: {last} has shape \[{2 * len(whole[last])}.*, not \[": whole | {last: torch.cat((whole[last],) * 2)},
        rf"are not: \{{'{last}': 'float32'\}}": whole | {last: whole[last].float()},
    }.items():
        with pytest.raises(CheckpointError, match=words):
            check_tensors("here", damaged, built.config)


def test_tensors_that_are_the_targets_are_refused_as_such():
    built, whole = given("dflash")
    table = {"model.embed_tokens.weight": torch.zeros(VOCAB, HIDDEN), "lm_head.weight": torch.zeros(VOCAB, HIDDEN)}
    with pytest.raises(CheckpointError, match=r"\['lm_head.weight', 'model.embed_tokens.weight'\] are the target's"):
        check_tensors("here", whole | table, built.config)


def test_a_dtype_that_is_not_the_configs_is_refused():
    built, whole = given("dflash")
    with pytest.raises(CheckpointError, match="the config says bfloat16, but these tensors are not: .*float64"):
        check_tensors("here", whole, built.config, "bfloat16")


def test_the_prefix_of_early_exports_is_taken_off_the_heads_tensors_only():
    _, whole = given("domino")
    old = {f"logit_head.{key}" if key.startswith(("prefix", "embed")) else key: v for key, v in whole.items()}
    found = own_names("here", old, "domino")
    assert found.keys() == whole.keys() and all(found[key] is old.get(key, found[key]) for key in found)
    assert own_names("here", old, "dflash").keys() == old.keys()  # there it is an unknown tensor
    with pytest.raises(CheckpointError, match="here: prefix_gru.weight_hh_l0 stands there twice"):
        own_names("here", old | {"prefix_gru.weight_hh_l0": whole["prefix_gru.weight_hh_l0"]}, "domino")


@formats
def test_a_drafter_takes_the_very_tensors_and_no_random_number(name):
    built, whole = given(name)
    before = torch.random.get_rng_state()
    made = with_tensors(built.config, whole)
    assert torch.equal(before, torch.random.get_rng_state())
    assert made.config == built.config
    for key, value in made.state_dict().items():
        assert value.data_ptr() == whole[published_name(key)].data_ptr()
    assert all(value.device.type == "meta" for value in skeleton(built.config).state_dict().values())


# -- what the head's tensors mean ---------------------------------------------------------------------------------


def read_as_released(tensors, base, hidden, anchor, embed, *, shifted, prefix, count):
    """Greedy proposals of one block as the released equations have them, on tensors by their released names.

    base: logits [slots, V]; hidden: [slots, H].  shift_label: slot k predicts x_{a+k+1} and has read x_a..x_{a+k}; else
    it predicts x_{a+k} and has read x_a..x_{a+k-1}.  Gates are r, z, n, as torch has them.
    """
    size = tensors["prefix_gru.weight_hh_l0"].shape[1]
    state, read, drafted = hidden.new_zeros(size), 0, [anchor]
    first = 0 if shifted else 1
    for slot in range(first, first + count):
        while read < len(drafted):
            from_token = tensors["prefix_gru.weight_ih_l0"] @ embed(drafted[read])
            from_state = tensors["prefix_gru.weight_hh_l0"] @ state
            r = torch.sigmoid(from_token[:size] + from_state[:size])
            z = torch.sigmoid(from_token[size : 2 * size] + from_state[size : 2 * size])
            n = torch.tanh(from_token[2 * size :] + r * from_state[2 * size :])
            state, read = (1 - z) * n + z * state, read + 1
        logits = base[slot]
        if slot >= first + prefix:
            inner = tensors["embed_proj.0.weight"] @ torch.cat((hidden[slot], state))
            logits = logits + tensors["embed_proj.2.weight"] @ F.silu(inner)
        drafted.append(int(logits.argmax()))
    return drafted[1:]


@pytest.mark.parametrize("shifted", [True, False])
@pytest.mark.parametrize("prefix", [0, 1, 2])
def test_an_imported_head_drafts_what_the_released_equations_say(shifted, prefix):
    _, whole = given("domino", **(NEXT if shifted else {}))
    values = released("domino", shift_label=shifted, pure_draft_prefix_len=prefix)
    made = with_tensors(drafter_config("here", values, "domino", FACTS), own_names("here", whole, "domino"))
    binding = fake_binding()
    made.bind(binding)
    hidden = torch.randn(12, 6, HIDDEN, generator=torch.Generator().manual_seed(6), dtype=torch.float64)
    anchors = torch.arange(12)
    with torch.no_grad():
        drafted = made.draft(hidden, anchors).tokens.tolist()
    options = {"embed": lambda token: binding.embed(torch.tensor(token)), "shifted": shifted, "count": 5}
    for block, anchor, tokens in zip(hidden, anchors.tolist(), drafted, strict=True):
        base = binding.head(block)
        assert tokens == read_as_released(whole, base, block, anchor, prefix=prefix, **options)
    others = [  # the equations do tell these settings apart
        read_as_released(whole, binding.head(block), block, anchor, prefix=prefix + 1, **options)
        for block, anchor in zip(hidden, anchors.tolist(), strict=True)
    ]
    assert others != drafted
