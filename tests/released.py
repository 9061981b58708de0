"""Released checkpoints made up for tests, written down as others write them and not by our own export."""

from __future__ import annotations

import copy

from methods.published import TargetFacts
from tests.drafting import HIDDEN, MASK, VOCAB

#: The layout of z-lab's releases for Qwen3-8B, and what Domino's have beside it.
QWEN3_8B = {
    "architectures": ["DFlashDraftModel"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "auto_map": {"AutoModel": "dflash.DFlashDraftModel"},
    "block_size": 16,
    "bos_token_id": 151643,
    "dflash_config": {"mask_token_id": 151669, "target_layer_ids": [1, 9, 17, 25, 33]},
    "dtype": "bfloat16",
    "eos_token_id": 151645,
    "head_dim": 128,
    "hidden_act": "silu",
    "hidden_size": 4096,
    "initializer_range": 0.02,
    "intermediate_size": 12288,
    "layer_types": ["full_attention"] * 5,
    "max_position_embeddings": 40960,
    "max_window_layers": 5,
    "model_type": "qwen3",
    "num_attention_heads": 32,
    "num_hidden_layers": 5,
    "num_key_value_heads": 8,
    "num_target_layers": 36,
    "rms_norm_eps": 1e-06,
    "rope_scaling": None,
    "rope_theta": 1000000,
    "sliding_window": None,
    "tie_word_embeddings": False,
    "transformers_version": "4.57.3",
    "use_cache": True,
    "use_sliding_window": False,
    "vocab_size": 151936,
}
DOMINO = {
    "projector_type": "domino",
    "emb_dim": 256,
    "gru_hidden_dim": 1024,
    "pure_draft_prefix_len": 1,
    "shift_label": True,
}
BIG = TargetFacts(
    name="qwen3-8b",
    source="Qwen/Qwen3-8B",
    revision="b968826",
    fingerprint="beef",
    template_hash="cafe",
    thinking=False,
    num_layers=36,
    hidden_size=4096,
    vocab_size=151936,
    embedding_rows=151936,
    reserved={151645: "stop", 151643: "padding"},
)
#: The same layouts for the fake target of tests/drafting.py.
SMALL = QWEN3_8B | {
    "block_size": 6,
    "bos_token_id": None,
    "eos_token_id": 3,
    "dflash_config": {"mask_token_id": MASK, "target_layer_ids": [1, 3]},
    "dtype": "float64",
    "head_dim": 8,
    "hidden_size": HIDDEN,
    "intermediate_size": 32,
    "layer_types": ["full_attention"] * 2,
    "max_position_embeddings": 2048,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "num_key_value_heads": 2,
    "num_target_layers": 6,
    "rope_theta": 10000,
    "vocab_size": VOCAB,
}
FACTS = TargetFacts(
    name="fake",
    source="example/fake",
    revision=None,
    fingerprint="f00d",
    template_hash="plain",
    thinking=None,
    num_layers=6,
    hidden_size=HIDDEN,
    vocab_size=VOCAB,
    embedding_rows=VOCAB,
    reserved={3: "stop", 0: "padding", 5: "beginning"},
)


def released(name="dflash", base=SMALL, **options):
    """A config as released for the fake target; options: into its dflash_config."""
    values = copy.deepcopy(base)
    if name == "domino":
        values |= {"emb_dim": options.get("emb_dim", 8)}  # released configs have it in both places
        values["dflash_config"] |= DOMINO | {"emb_dim": 8, "gru_hidden_dim": 10}
    values["dflash_config"] |= options
    return values
