"""Where a target comes from: what is read, what it is known by, and what is refused.

pytest tests/test_model_source.py
"""

from __future__ import annotations

import logging
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file, save_file

from harness.target import Target, TargetError
from tests.tiny import byte_tokenizer, tiny_model


@pytest.fixture
def saved(tmp_path):
    """A tiny target in a folder, and what `Target.load` needs to read it."""
    tiny_model("llama").save_pretrained(tmp_path)
    byte_tokenizer().save_pretrained(tmp_path)
    return load_config(source=str(tmp_path))


def load_config(**changes):
    usual = {"source": ".", "revision": None, "dtype": "float32", "device": "cpu", "thinking": None, "gguf_file": None}
    return SimpleNamespace(**usual | changes)


def retensor(config, change):
    """Rewrite the weights of a saved target."""
    path = f"{config.source}/model.safetensors"
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path, metadata={"format": "pt"})


def test_a_checkpoint_has_one_fingerprint_in_every_dtype_and_version(saved, monkeypatch):
    first = Target.load(saved).fingerprint
    for saved.dtype in ("float64", "bfloat16"):
        assert Target.load(saved).fingerprint == first
    monkeypatch.setattr("transformers.configuration_utils.__version__", "99.0")
    assert Target.load(saved).fingerprint == first


@pytest.mark.parametrize(("able", "dtype", "warned"), [(0, "bfloat16", 1), (1, "bfloat16", 0), (0, "float32", 0)])
def test_bfloat16_on_a_processor_without_it_is_warned_of(saved, monkeypatch, caplog, able, dtype, warned):
    monkeypatch.setattr("harness.model_source.multiplies_bfloat16", lambda: bool(able))
    saved.dtype = dtype
    Target.load(saved)
    assert ("does not multiply in bfloat16" in caplog.text) == bool(warned)


def test_a_loaded_target_knows_where_it_came_from(saved):
    saved.revision = "v1"
    target = Target.load(saved, "tiny")
    assert (target.name, target.source, target.revision) == ("tiny", saved.source, "v1")


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (dict(source="./nowhere/at/all"), "nowhere"),
        (dict(source="missing.gguf"), "gguf"),
        (dict(dtype="int3"), "int3"),
    ],
)
def test_bad_sources_are_refused_by_name(change, what):
    with pytest.raises((TargetError, ValueError), match=what):
        Target.load(load_config(**change))


def test_a_device_that_is_not_there_is_refused_by_name(saved):
    for saved.device in ("cuda:7", "gpu"):
        with pytest.raises(TargetError, match=f"device '{saved.device}' cannot be used"):
            Target.load(saved)


UP = "model.layers.1.mlp.up_proj.weight"


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda tensors: tensors.pop(UP), f"{UP} is missing"),
        (lambda tensors: tensors.update({UP: torch.ones(3, 3)}), rf"{UP} has shape \[3, 3\] for \[48, 32\]"),
        (lambda tensors: tensors[UP].view(-1)[5:6].fill_(torch.nan), f"weight {UP} holds NaN"),
        (
            lambda tensors: tensors["model.embed_tokens.weight"][200].fill_(torch.inf),
            "embed_tokens.weight holds NaN or",
        ),
    ],
)
def test_missing_misshapen_and_poisoned_weights_are_refused_by_name(saved, damage, words):
    retensor(saved, damage)
    with pytest.raises(TargetError, match=words):
        Target.load(saved)


def test_a_truncated_file_of_weights_is_refused(saved):
    with open(f"{saved.source}/model.safetensors", "r+b") as file:
        file.truncate(5000)
    with pytest.raises(TargetError, match="cannot load"):
        Target.load(saved)


def test_tensors_the_model_does_not_know_are_warned_of(saved, caplog):
    retensor(saved, lambda tensors: tensors.update(extra=torch.ones(2)))
    with caplog.at_level(logging.WARNING):
        Target.load(saved)
    assert "1 tensors" in caplog.text and "'extra'" in caplog.text


def test_tied_heads_are_not_missing(saved):
    tiny_model("gemma3").save_pretrained(saved.source)
    assert not any("lm_head" in name for name in load_file(f"{saved.source}/model.safetensors"))
    Target.load(saved)
