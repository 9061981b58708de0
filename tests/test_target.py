"""Targets: taps, identity, what is borrowed, and who is refused.

pytest tests/test_target.py
"""

from __future__ import annotations

import logging

import pytest
import torch
import transformers
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from harness.cache import RaggedCache
from harness.target import Target, TargetError
from harness.train.build import build_drafter
from tests.tiny import VOCAB, byte_tokenizer, tiny_model, tiny_target
from tests.training import config

IDS = (torch.arange(40) * 31 + 5).remainder(VOCAB)[None]


@pytest.fixture(
    scope="module", params=["qwen3", "gemma3", "llama", "qwen2", "qwen3-stock", "mistral-alien", "smollm3-alien"]
)
def target(request):
    kind, _, path = request.param.partition("-")
    target = tiny_target(kind)
    assert (target._lean is None) == (path == "alien")
    if path == "stock":
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
    with pytest.raises(TargetError, match="a state kept between calls|cannot be cut back"):
        target.self_test()


def test_convolutions_that_look_back_over_a_rollback_are_refused_even_freshly_initialised(monkeypatch):
    model = tiny_model("lfm2", scale=1.0)
    with pytest.raises(TargetError, match="layers of type conv"):  # in every dtype
        Target(model, byte_tokenizer(), "lfm2")
    monkeypatch.setattr("harness.target.refuse_states", lambda *_: None)
    with pytest.raises(TargetError, match="after a rollback.*cannot be cut back"):
        Target(model, byte_tokenizer(), "lfm2").self_test()


@pytest.mark.parametrize(
    ("kind", "what"),
    [
        ("Mamba", "layers of type linear_attention"),
        ("Mamba2", "layers of type linear_attention"),
        ("RecurrentGemma", "layers of type linear_attention"),
        ("Rwkv", "a recurrent state"),
    ],
)
def test_recurrent_models_are_refused_by_name(kind, what):
    sizes = dict(vocab_size=VOCAB, hidden_size=32, num_hidden_layers=2, num_attention_heads=4)
    sizes |= dict(num_heads=8, head_dim=8, n_groups=1) if kind == "Mamba2" else {}
    model = getattr(transformers, f"{kind}ForCausalLM")(getattr(transformers, f"{kind}Config")(**sizes))
    with pytest.raises(TargetError, match=f"{kind}ForCausalLM has {what}"):
        Target(model, byte_tokenizer(), "recurrent")


def test_a_model_that_states_no_longest_context_is_refused(monkeypatch):
    monkeypatch.setattr("harness.target.refuse_states", lambda *_: None)
    sizes = dict(vocab_size=VOCAB, hidden_size=32, num_hidden_layers=1)
    model = transformers.MambaForCausalLM(transformers.MambaConfig(**sizes))
    with pytest.raises(TargetError, match="mamba states no max_position_embeddings"):
        Target(model, byte_tokenizer(), "endless")


def test_an_architecture_that_scales_its_logits_is_refused_for_that():
    sizes = dict(vocab_size=VOCAB, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2)
    config = transformers.Cohere2Config(**sizes, intermediate_size=48, pad_token_id=0, bos_token_id=1, eos_token_id=2)
    with pytest.raises(TargetError, match="without a cache.*Cohere2ForCausalLM computes something") as refused:
        Target(transformers.Cohere2ForCausalLM(config), byte_tokenizer(), "cohere2").self_test()
    assert "cut back" not in str(refused.value)


def test_a_lean_pass_that_errs_gives_way_to_the_models_own_modules(caplog):
    target = tiny_target("helium")
    assert target._lean is not None
    with caplog.at_level(logging.WARNING):
        target.self_test()
    assert target._lean is None and "lean pass is put aside" in caplog.text


def test_the_self_test_reaches_past_a_long_sliding_window():
    model = tiny_model("mistral")
    model.config.sliding_window = 4096
    for layer in model.model.layers:
        layer.self_attn.sliding_window = None  # so the lean pass believes that there is no window
    target = Target(model, byte_tokenizer(), "mistral")
    assert target._lean is not None
    target.self_test()
    assert target._lean is None and target.config.sliding_window == 4096


def test_a_model_that_scales_embeddings_behind_the_module_is_refused():
    target = tiny_target("llama")
    embedding = target._embedding
    target._embedding = lambda ids: 2 * embedding(ids)
    with pytest.raises(TargetError, match="embedding"):
        target.self_test()


def test_self_test_passes_for_supported_architectures(target):
    lean = target._lean
    target.self_test()
    assert target._lean is lean


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


def test_a_drafter_records_where_its_target_came_from(tmp_path):
    target = Target(tiny_model("llama"), byte_tokenizer(None), "t", source="hub/t", revision="abc")
    made = build_drafter(config(tmp_path), target, "dflash", 0, []).config
    assert (made.target, made.target_source, made.target_revision) == ("t", "hub/t", "abc")
    assert made.template_hash == target.template_hash == "plain"


def test_a_config_without_rope_theta_is_refused_until_it_states_one():
    target = tiny_target("llama")
    target.config.rope_parameters = None
    with pytest.raises(TargetError, match="config.json"):
        assert target.rope_theta
    target.config.rope_theta = 5000
    assert target.rope_theta == 5000.0


def test_a_tap_outside_the_model_is_an_error(target):
    with pytest.raises(TargetError, match="no layer 99"):
        target.features(IDS, (99,))


def test_rendering_ends_where_the_model_speaks():
    target = tiny_target("llama")
    ids = target.render([{"role": "user", "content": "2+2?"}])
    assert target.tokenizer.decode(ids) == "<|user|>2+2?<|end|><|assistant|>"
    with pytest.raises(TargetError, match="template"):
        tiny_target("llama", template=None).render([{"role": "user", "content": "x"}])


def test_the_head_of_a_slice_copies_no_weight():
    """The last token of a prompt is a slice; as a batch of matrices it would cost a copy of the whole head."""

    class Sizes(TorchDispatchMode):
        largest = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            made = func(*args, **(kwargs or {}))
            if "clone" in str(func) or "copy" in str(func) or "bmm" in str(func):
                self.largest = max(self.largest, made.numel())
            return made

    target = tiny_target(dtype=torch.bfloat16)
    hidden = torch.randn(1, 7, target.hidden_size, dtype=torch.bfloat16)
    with torch.no_grad(), Sizes() as sizes:
        sliced = target.head(hidden[:, -1:])
    assert sizes.largest <= hidden.numel() and sliced.shape == (1, 1, target.vocab_size)
    assert torch.equal(sliced, target.head(hidden[:, -1:].contiguous()))
    assert target.head(hidden[0, 0]).shape == (target.vocab_size,)
