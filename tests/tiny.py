"""Tiny random targets for tests: real architectures, no downloads, a byte tokenizer with a chat template."""

from __future__ import annotations

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    HeliumConfig,
    HeliumForCausalLM,
    Lfm2Config,
    Lfm2ForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    SmolLM3Config,
    SmolLM3ForCausalLM,
)

from harness.target import Target

PAD, USER, ASSISTANT, END, MASK = "<|pad|>", "<|user|>", "<|assistant|>", "<|end|>", "<|mask|>"
VOCAB = 256 + 5
TEMPLATE = (
    "{% for m in messages %}{{ '<|user|>' if m['role'] == 'user' else '<|assistant|>' }}{{ m['content'] }}<|end|>"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def byte_tokenizer(template: str | None = TEMPLATE) -> PreTrainedTokenizerFast:
    """One token per byte; ids 256.. are special."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    core = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, pad_token=PAD, eos_token=END)
    tokenizer.add_special_tokens({"additional_special_tokens": [USER, ASSISTANT, MASK]})
    tokenizer.chat_template = template
    return tokenizer


def tiny_model(kind: str = "qwen3", seed: int = 0, layers: int = 4, scale: float = 6.0):
    """A random model of 4 layers.  `scale` sharpens its logits, so that greedy text is not one token repeated."""
    torch.manual_seed(seed)
    shape = dict(
        vocab_size=VOCAB,
        hidden_size=32,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        intermediate_size=48,
        max_position_embeddings=2048,
        eos_token_id=None,
        pad_token_id=None,
        bos_token_id=None,
    )
    if kind == "gemma3":
        types = ["sliding_attention", "full_attention"] * (layers // 2)
        model = Gemma3ForCausalLM(Gemma3TextConfig(**shape, sliding_window=8, layer_types=types))
    elif kind == "llama":
        model = LlamaForCausalLM(LlamaConfig(**shape))
    elif kind == "qwen2":
        del shape["head_dim"]
        model = Qwen2ForCausalLM(Qwen2Config(**shape))
    elif kind == "mistral":  # its window stands in the config alone
        model = MistralForCausalLM(MistralConfig(**shape, sliding_window=8))
    elif kind == "smollm3":  # every fourth layer knows no positions
        model = SmolLM3ForCausalLM(SmolLM3Config(**shape))
    elif kind == "helium":  # rotates neighbours, where the others rotate halves
        model = HeliumForCausalLM(HeliumConfig(**shape))
    elif kind == "lfm2":  # its convolutions remember a few tokens
        del shape["head_dim"]
        model = Lfm2ForCausalLM(Lfm2Config(**shape, layer_types=["conv", "full_attention"] * (layers // 2)))
    else:
        model = Qwen3ForCausalLM(Qwen3Config(**shape, tie_word_embeddings=False))
    with torch.no_grad():
        model.get_input_embeddings().weight.mul_(scale)
        for name, parameter in model.named_parameters():  # norms and biases of fresh models are all alike
            if "norm" in name or name.endswith("bias"):
                parameter.add_(0.2 * torch.randn_like(parameter))
    return model


def tiny_target(
    kind: str = "qwen3", dtype: torch.dtype = torch.float32, seed: int = 0, template: str | None = TEMPLATE
):
    """A target ready to decode."""
    return Target(tiny_model(kind, seed).to(dtype), byte_tokenizer(template), f"tiny-{kind}")
