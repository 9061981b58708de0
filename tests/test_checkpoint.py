"""Checkpoints: what is saved is what is loaded, and every single damage is refused by the name of what is damaged."""

import json
from dataclasses import fields

import pytest
import torch
from safetensors.torch import load_file, save_file

from methods.checkpoint import CheckpointError, load_drafter, published_name, save_drafter
from methods.config import DrafterConfig
from tests.drafting import config, drafter, fake_binding, sequence, training_logits

KEYS = [field.name for field in fields(DrafterConfig)]
TENSORS = sorted(published_name(name) for name in drafter().state_dict())


@pytest.fixture
def folder(tmp_path):
    save_drafter(tmp_path / "d", drafter())
    return tmp_path / "d"


def rewrite(folder, change):
    values = json.loads((folder / "config.json").read_text())
    change(values)
    (folder / "config.json").write_text(json.dumps(values))


def retensor(folder, change):
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")


def refused(folder, words):
    with pytest.raises(CheckpointError, match=words):
        load_drafter(folder, fake_binding())


def test_a_loaded_drafter_drafts_what_the_saved_one_did(folder):
    taps, tokens = sequence(20)
    torch.manual_seed(5)
    before = torch.random.get_rng_state()
    loaded = load_drafter(folder, fake_binding(), {"target_fingerprint": "f00d", "thinking": None, "taps": [1, 3]})
    assert torch.equal(before, torch.random.get_rng_state())
    assert loaded.config == config()
    assert torch.equal(training_logits(loaded, taps, tokens, [9]), training_logits(drafter(), taps, tokens, [9]))
    assert load_drafter(folder, fake_binding(), dtype=torch.bfloat16).backbone.norm.weight.dtype == torch.bfloat16
    assert sorted(path.name for path in folder.iterdir()) == ["config.json", "model.safetensors"]


def test_tensor_names_are_those_of_released_weights():
    layer = [
        "input_layernorm",
        "post_attention_layernorm",
        "self_attn.q_proj",
        "self_attn.k_proj",
        "self_attn.v_proj",
        "self_attn.o_proj",
        "self_attn.q_norm",
        "self_attn.k_norm",
        "mlp.gate_proj",
        "mlp.up_proj",
        "mlp.down_proj",
    ]
    names = ["fc", "hidden_norm", "norm", *(f"layers.{i}.{part}" for i in range(2) for part in layer)]
    assert sorted(f"{name}.weight" for name in names) == TENSORS


def test_a_draft_vocabulary_is_saved_with_the_drafter(tmp_path):
    ids = torch.tensor([2, 5, 7])
    save_drafter(tmp_path, drafter(config(draft_vocab_size=3), draft_vocab=ids))
    assert torch.equal(load_drafter(tmp_path, fake_binding()).draft_vocab, ids)
    retensor(tmp_path, lambda tensors: tensors.update(draft_vocab=torch.tensor([2, 5, 5])))
    refused(tmp_path, "draft_vocab must be int64, strictly ascending")
    retensor(tmp_path, lambda tensors: tensors.pop("draft_vocab"))
    refused(tmp_path, "draft_vocab_size is 3, but draft_vocab holds None")


@pytest.mark.parametrize("key", KEYS)
def test_a_missing_key_is_named(folder, key):
    rewrite(folder, lambda values: values.pop(key))
    refused(folder, rf"missing keys: \['{key}'\]")


@pytest.mark.parametrize("key", KEYS)
def test_a_key_of_the_wrong_type_is_named(folder, key):
    rewrite(folder, lambda values: values.update({key: [1, "a"]}))
    refused(folder, rf"{key} is \[1, 'a'\]")


def test_an_unknown_key_is_named(folder):
    rewrite(folder, lambda values: values.update(target_layer_ids=[1]))
    refused(folder, r"unknown keys: \['target_layer_ids'\]")


def test_no_template_has_the_name_that_a_target_gives_it(folder):
    assert json.loads((folder / "config.json").read_text())["template_hash"] == "plain"
    rewrite(folder, lambda values: values.update(template_hash=None))
    refused(folder, "template_hash is None")


@pytest.mark.parametrize("name", TENSORS)
def test_a_missing_misshaped_or_poisoned_tensor_is_named(folder, name):
    whole = load_file(folder / "model.safetensors")
    damages = {
        rf"missing tensors: \['{name}'\]": None,
        rf"{name} has shape": torch.cat((whole[name], whole[name])),
        rf"{name} holds NaN or inf": whole[name].clone().view(-1).index_fill(0, torch.tensor([3]), torch.nan),
        rf"{name} is torch.int64": whole[name].to(torch.int64),
    }
    for words, tensor in damages.items():
        damaged = {key: value for key, value in whole.items() if key != name}
        if tensor is not None:
            damaged[name] = tensor if "shape" in words else tensor.view(whole[name].shape)
        save_file(damaged, folder / "model.safetensors")
        refused(folder, words)


def test_an_unknown_tensor_is_named(folder):
    retensor(folder, lambda tensors: tensors.update({"lm_head.weight": torch.zeros(2)}))
    refused(folder, r"unknown tensors: \['lm_head.weight'\]")


@pytest.mark.parametrize("file", ["config.json", "model.safetensors"])
def test_a_missing_or_truncated_file_is_named(folder, file):
    content = (folder / file).read_bytes()
    (folder / file).write_bytes(content[: len(content) // 2])
    refused(folder, f"{file} cannot be read")
    (folder / file).unlink()
    refused(folder, f"{file} cannot be read")


@pytest.mark.parametrize(("name", "ours"), [("target_fingerprint", "beef"), ("template_hash", "1"), ("thinking", True)])
def test_a_drafter_of_another_target_is_refused_with_both_values(folder, name, ours):
    with pytest.raises(CheckpointError, match=rf"{name} is .*(f00d|plain|None).* and {ours!r} in this run"):
        load_drafter(folder, fake_binding(), {name: ours})


def test_expecting_something_a_config_does_not_have_is_an_error(folder):
    with pytest.raises(CheckpointError, match="'finger_print'"):
        load_drafter(folder, fake_binding(), {"finger_print": "x"})


def test_a_diverged_drafter_is_not_saved(tmp_path):
    built = drafter()
    with torch.no_grad():
        built.fusion.fc.weight[0, 0] = torch.nan
    with pytest.raises(CheckpointError, match="fc.weight holds NaN"):
        save_drafter(tmp_path, built)
    assert not list(tmp_path.iterdir())
