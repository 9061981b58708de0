"""Targets: taps, identity, what is borrowed, and who is refused.

pytest tests/test_target.py
"""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from harness.cache import RaggedCache
from harness.target import Target, TargetError
from tests.tiny import VOCAB, byte_tokenizer, tiny_model, tiny_target

IDS = (torch.arange(40) * 31 + 5).remainder(VOCAB)[None]


@pytest.fixture(scope="module", params=["qwen3", "gemma3", "llama", "qwen2", "qwen3-stock"])
def target(request):
    kind, _, stock = request.param.partition("-")
    target = tiny_target(kind)
    assert target._lean is not None
    if stock:
        target._lean = None
    return target


def test_our_forward_equals_the_models_own_past_the_sliding_window(target):
    ours = target.logits(IDS)
    target.use_our_attention(False)
    try:
        theirs = target.model(input_ids=IDS, use_cache=False).logits
    finally:
        target.use_our_attention(True)
    torch.testing.assert_close(ours, theirs, atol=2e-5, rtol=1e-4)


def test_a_tap_is_the_output_of_its_layer(target):
    """Layer L's tap is hidden_states[L + 1] of transformers; the last layer's is taken before the final norm."""
    states = target.model(input_ids=IDS, use_cache=False, output_hidden_states=True).hidden_states
    taps = target.features(IDS, (0, 2)).chunk(2, dim=-1)
    torch.testing.assert_close(taps[0], states[1])
    torch.testing.assert_close(taps[1], states[3])
    last = target.features(IDS, (target.num_layers - 1,))
    assert not torch.allclose(last, states[-1])
    torch.testing.assert_close(target.decoder.norm(last), states[-1])


def test_taps_with_the_cache_equal_taps_without(target):
    cache, taps = RaggedCache(2, 64), (1, 3)
    full = target.features(IDS, taps)
    first = target.forward(IDS[:, :30], cache, [1], taps=taps, logits="last")
    cache.commit(1, 30)
    rest = target.forward(IDS[:, 30:], cache, [1], taps=taps)
    torch.testing.assert_close(torch.cat([first.taps, rest.taps], 1), full, atol=2e-5, rtol=1e-4)
    torch.testing.assert_close(rest.logits, target.logits(IDS)[:, 30:], atol=2e-5, rtol=1e-4)


def test_features_ignore_what_comes_later(target):
    changed = IDS.clone()
    changed[:, 25:] = 7
    a, b = target.features(IDS, (3,)), target.features(changed, (3,))
    torch.testing.assert_close(a[:, :25], b[:, :25], atol=1e-6, rtol=0)
    assert not torch.allclose(a[:, 25:], b[:, 25:])


def test_the_borrowed_embedding_and_head_are_the_models_own(target):
    seen = []
    hook = target.layers[0].register_forward_pre_hook(lambda _m, args: seen.append(args[0]))
    hidden = target.decoder(input_ids=IDS, use_cache=False).last_hidden_state
    hook.remove()
    assert torch.equal(seen[0], target.binding.embed(IDS))
    torch.testing.assert_close(target.binding.head(hidden), target.logits(IDS), atol=2e-5, rtol=1e-4)
    some = torch.tensor([3, 200, 17])
    torch.testing.assert_close(target.binding.head(hidden, some), target.logits(IDS)[..., some])


def test_head_softcaps_where_the_architecture_does():
    model = tiny_model("gemma3")
    model.config.final_logit_softcapping = 2.0
    capped = Target(model, byte_tokenizer(), "capped")
    torch.testing.assert_close(capped.logits(IDS), model(input_ids=IDS, use_cache=False).logits)
    assert capped.logits(IDS).abs().max() <= 2.0


def test_fingerprint_tells_weights_apart_and_is_stable():
    assert tiny_target("llama").fingerprint == tiny_target("llama").fingerprint
    other = tiny_target("llama", seed=1)
    assert other.fingerprint != tiny_target("llama").fingerprint


def test_a_target_whose_cache_cannot_roll_back_is_refused():
    class Remembers(nn.Module):
        """Adds a running mean of everything ever seen: a state that a shorter length does not undo."""

        def __init__(self, inner):
            super().__init__()
            self.inner, self.state = inner, 0.0

        def forward(self, x):
            self.state = self.state + x.mean(dim=1, keepdim=True)
            return self.inner(x) + self.state

    model = tiny_model("llama")
    model.model.layers[1].mlp = Remembers(model.model.layers[1].mlp)
    target = Target(model, byte_tokenizer(), "remembers")
    with pytest.raises(TargetError, match="cannot be cut back|cannot verify"):
        target.self_test()


def test_a_model_that_scales_embeddings_behind_the_module_is_refused():
    target = tiny_target("llama")
    embedding = target._embedding
    target._embedding = lambda ids: 2 * embedding(ids)
    with pytest.raises(TargetError, match="embedding"):
        target.self_test()


def test_self_test_passes_for_supported_architectures(target):
    target.self_test()


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("kind", ["qwen3", "gemma3", "llama", "qwen2"])
def test_self_test_passes_in_every_dtype(kind, dtype):
    tiny_target(kind, dtype).self_test()


def test_stop_ids_are_the_union_and_must_lie_in_the_vocabulary():
    model = tiny_model("llama")
    model.generation_config.eos_token_id = [5, 9]
    tokenizer = byte_tokenizer()
    assert Target(model, tokenizer, "t").stop_ids == tuple(sorted({5, 9, tokenizer.eos_token_id}))
    model.generation_config.eos_token_id = VOCAB + 3
    with pytest.raises(TargetError, match=str(VOCAB + 3)):
        Target(model, tokenizer, "t")


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (dict(source="./nowhere/at/all"), "nowhere"),
        (dict(source="missing.gguf"), "gguf"),
        (dict(dtype="int3"), "int3"),
    ],
)
def test_bad_sources_are_refused_by_name(change, what):
    config = SimpleNamespace(
        **{"source": ".", "revision": None, "dtype": "float32", "device": "cpu", "thinking": None, "gguf_file": None}
        | change
    )
    with pytest.raises((TargetError, ValueError), match=what):
        Target.load(config)


def test_a_tap_outside_the_model_is_an_error(target):
    with pytest.raises(TargetError, match="no layer 99"):
        target.features(IDS, (99,))


def test_rendering_ends_where_the_model_speaks():
    target = tiny_target("llama")
    ids = target.render([{"role": "user", "content": "2+2?"}])
    assert target.tokenizer.decode(ids) == "<|user|>2+2?<|end|><|assistant|>"
    with pytest.raises(TargetError, match="template"):
        tiny_target("llama", template=None).render([{"role": "user", "content": "x"}])
