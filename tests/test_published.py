"""Released configs: what one written by others means here, and that nothing in it goes unread or unrefused."""

from __future__ import annotations

from dataclasses import replace

import pytest

from methods.checkpoint import CheckpointError
from methods.config import DominoOptions
from methods.published import FORMATS, REQUIRED, drafter_config, published_config, stated_dtype
from tests.drafting import MASK, VOCAB, config
from tests.released import BIG, DOMINO, FACTS, QWEN3_8B, SMALL, released

formats = pytest.mark.parametrize("name", list(FORMATS))
alignments = pytest.mark.parametrize("alignment", ["same", "next"])


def refused(values, *words, name="dflash", facts=FACTS):
    with pytest.raises(CheckpointError) as caught:
        drafter_config("there/config.json", values, name, facts)
    assert all(word in str(caught.value) for word in ("there/config.json", *words)), caught.value


def test_a_released_dflash_config_reads_as_the_drafter_it_defines():
    assert drafter_config("here", released(), "dflash", FACTS) == config("dflash")


@pytest.mark.parametrize(("shifted", "alignment"), [(True, "next"), (False, "same")])
def test_a_released_domino_config_reads_as_the_drafter_it_defines(shifted, alignment):
    values = released("domino", shift_label=shifted, pure_draft_prefix_len=2)
    options = DominoOptions(gru_size=10, rank=8, pure_prefix=2)
    expected = config("domino", alignment=alignment, head_options=options)
    assert drafter_config("here", values, "domino", FACTS) == expected


def test_everything_a_checkpoint_does_not_say_is_the_targets():
    found = drafter_config("here", QWEN3_8B, "dflash", BIG)
    assert (found.target, found.target_source, found.target_revision) == ("qwen3-8b", "Qwen/Qwen3-8B", "b968826")
    assert (found.target_fingerprint, found.template_hash, found.thinking) == ("beef", "cafe", False)
    assert (found.block_size, found.num_proposals, found.mask_token_id) == (16, 15, 151669)


@formats
@alignments
@pytest.mark.parametrize("pure", [0, 1, 3])
def test_what_is_written_reads_back_to_the_same_drafter(name, alignment, pure):
    changes = {"alignment": alignment, "taps": (3, 0, 4), "rope_theta": 12345.0, "rms_norm_eps": 1e-5}
    if name == "domino":
        changes["head_options"] = DominoOptions(gru_size=10, rank=8, pure_prefix=pure)
    ours = config(name, **changes)
    values = published_config(ours, name, FACTS, "bfloat16")
    assert drafter_config("here", values, name, FACTS) == ours
    assert stated_dtype("here", values) == "bfloat16"
    assert values["dflash_config"].get("shift_label", False) is (alignment == "next")


@formats
def test_what_is_written_has_what_a_release_has(name):
    ours = published_config(drafter_config("here", released(name), name, FACTS), name, FACTS, "float64")
    theirs = released(name)
    assert ours["dflash_config"] == theirs.pop("dflash_config")
    code = {"auto_map", "initializer_range", "transformers_version", "bos_token_id", "eos_token_id", "emb_dim"}
    written = {key: theirs[key] for key in theirs.keys() - code}
    assert {key: ours[key] for key in written} == written | {"max_window_layers": 2}


@pytest.mark.parametrize("key", REQUIRED)
@formats
def test_a_missing_key_is_named(name, key):
    values = released(name)
    values.pop(key, None)
    values["dflash_config"].pop(key, None)
    refused(values, "missing keys", repr(key), name=name)


@pytest.mark.parametrize("key", FORMATS["domino"].options)
def test_a_missing_option_of_the_head_is_named(key):
    values = released("domino")
    values.pop(key, None)
    del values["dflash_config"][key]
    refused(values, "missing keys", repr(key), name="domino")


@pytest.mark.parametrize("options", [None, [], "x"])
def test_a_config_without_its_section_is_refused(options):
    refused(SMALL | {"dflash_config": options}, "dflash_config is", "target_layer_ids")


WRONG = {
    "mask is the stop token": ({}, {"mask_token_id": 3}, ["mask_token_id is 3", "stop token"]),
    "mask is the padding": ({}, {"mask_token_id": 0}, ["mask_token_id is 0", "padding token"]),
    "mask is the beginning": ({}, {"mask_token_id": 5}, ["mask_token_id is 5", "beginning token"]),
    "mask is the eos of the config": ({"eos_token_id": [7, 8]}, {"mask_token_id": 8}, ["mask_token_id is 8", "eos"]),
    "mask is the pad of the config": ({"pad_token_id": 9}, {"mask_token_id": 9}, ["mask_token_id is 9", "pad"]),
    "mask past the vocabulary": ({}, {"mask_token_id": VOCAB}, ["mask_token_id is 37", "outside"]),
    "mask below it": ({}, {"mask_token_id": -1}, ["mask_token_id is -1", "outside"]),
    "mask as text": ({}, {"mask_token_id": "36"}, ["mask_token_id is '36'"]),
    "two masks": ({"mask_token_id": 1}, {}, ["mask_token_id is 1 but dflash_config.mask_token_id is 36"]),
    "no taps": ({}, {"target_layer_ids": []}, ["target_layer_ids", "at least one"]),
    "taps are null": ({}, {"target_layer_ids": None}, ["target_layer_ids", "None"]),
    "a tap twice": ({}, {"target_layer_ids": [1, 1]}, ["target_layer_ids", "each once"]),
    "the last layer": ({}, {"target_layer_ids": [1, 5]}, ["target_layer_ids is [1, 5]", "final norm"]),
    "beyond the last": ({}, {"target_layer_ids": [1, 6]}, ["target_layer_ids is [1, 6]", "0 to 4"]),
    "another target": ({"num_target_layers": 7}, {}, ["num_target_layers is 7", "fake has 6"]),
    "other width": ({"hidden_size": 32}, {}, ["hidden_size is 32", "has 24"]),
    "other vocabulary": ({"vocab_size": 40}, {}, ["vocab_size is 40", "has 37"]),
    "no base of rotation": ({"rope_theta": None}, {}, ["no rope_theta"]),
    "two bases": ({"rope_parameters": {"rope_theta": 2.0}}, {}, ["rope_theta has the values"]),
    "scaled rotation": ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, {}, ["rope_scaling", "yarn"]),
    "partial rotation": ({"rope_parameters": {"partial_rotary_factor": 0.25}}, {}, ["rope_parameters", "partial"]),
    "no head dimension": ({"head_dim": 7}, {}, ["head_dim is 7", "even"]),
    "eps as text": ({"rms_norm_eps": "1e-6"}, {}, ["rms_norm_eps is '1e-6'"]),
    "biased": ({"attention_bias": True}, {}, ["attention_bias is True"]),
    "other activation": ({"hidden_act": "gelu"}, {}, ["hidden_act is 'gelu'"]),
    "other model": ({"model_type": "llama"}, {}, ["model_type is 'llama'"]),
    "another class": ({"architectures": ["DFlash2DraftModel"]}, {}, ["architectures", "DFlash2DraftModel"]),
    "a window": ({"layer_types": ["full_attention", "sliding_attention"]}, {}, ["layer_types", "sliding_attention"]),
    "a layer too few": ({"layer_types": ["full_attention"]}, {}, ["layer_types is ['full_attention']"]),
    "causal": ({"is_causal": True}, {}, ["is_causal is True"]),
    "quantised": ({"quantization_config": {"bits": 4}}, {}, ["quantization_config"]),
    "scaled embeddings": ({"input_embedding_scale": 2.0}, {}, ["input_embedding_scale is 2.0"]),
    "soft-capped": ({"final_logit_softcapping": 30.0}, {}, ["final_logit_softcapping is 30.0", "None"]),
    "narrowed": ({"draft_vocab_size": 30}, {}, ["draft_vocab_size is 30"]),
    "unknown at the top": ({"markov_rank": 4}, {}, ["unknown keys: ['markov_rank']"]),
    "unknown in the section": ({}, {"causal_head": True}, ["unknown keys: ['dflash_config.causal_head']"]),
    "two block sizes": ({}, {"block_size": 8}, ["block_size is 6 but dflash_config.block_size is 8"]),
    "block size as text": ({"block_size": "6"}, {}, ["block_size is '6'"]),
    "domino under dflash": ({}, DOMINO, ["projector_type is 'domino'", "'dflash'"]),
    "shift as a number": ({}, {"shift_label": 1}, ["shift_label is 1"]),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_cannot_be_is_refused_by_its_name_and_value(case):
    changes, options, words = WRONG[case]
    refused(released(**options) | changes, *words)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"projector_type": None}, ["projector_type is None", "'domino'"]),
        ({"shift_label": None}, ["shift_label is None"]),
        ({"emb_dim": 7}, ["emb_dim is 8 but dflash_config.emb_dim is 7"]),
        ({"gru_hidden_dim": 0}, ["gru_size is 0"]),
        ({"pure_draft_prefix_len": -1}, ["pure_prefix is -1"]),
        ({"pure_draft_prefix_len": "1"}, ["head_options.pure_prefix is '1'"]),
        ({"use_bias_gate": True}, ["use_bias_gate is True"]),
    ],
)
def test_what_a_domino_head_cannot_be_is_refused(options, words):
    values = released("domino")
    values["dflash_config"] |= options
    refused(values, *words, name="domino")


@pytest.mark.parametrize(
    ("facts", "words"),
    [({"softcap": 30.0}, ["final_logit_softcapping is None", "30.0"]), ({"scaled": True}, ["scales its embeddings"])]
    + [({"embedding_rows": 36}, ["mask_token_id is 36", "36 embeddings"])],
)
def test_what_a_target_does_and_the_layout_does_not_say_is_refused(facts, words):
    refused(released(), *words, facts=replace(FACTS, **facts))


@pytest.mark.parametrize(
    "changes",
    [
        {"rope_theta": None, "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"}},
        {"draft_vocab_size": VOCAB},
        {"architectures": ["DominoDraftModel"]},
        {"tie_word_embeddings": True, "eos_token_id": [3, 4]},
        {"layer_types": None},
        {"final_logit_softcapping": 0},
        {"mask_token_id": MASK},
    ],
)
def test_other_words_for_the_same_drafter_are_read(changes):
    assert drafter_config("here", released() | changes, "dflash", FACTS) == config("dflash")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"num_proposals": 3}, "num_proposals is 3"),
        ({"draft_vocab_size": 30}, "draft_vocab_size is 30"),
        ({"taps": (1, 5)}, r"target_layer_ids is \[1, 5\]"),
        ({"mask_token_id": 3}, "mask_token_id is 3, the stop token"),
        ({"vocab_size": 40}, "vocab_size is 40"),
        ({"thinking": True}, "reads back as"),
    ],
)
def test_a_drafter_the_layout_cannot_hold_is_not_written(changes, words):
    with pytest.raises(CheckpointError, match=words):
        published_config(config("dflash", **changes), "dflash", FACTS, "float32")


@pytest.mark.parametrize(("method", "name"), [("dflow", "dflash"), ("dflow_domino", "domino"), ("domino", "dflash")])
def test_a_drafter_of_another_recipe_is_not_written(method, name):
    with pytest.raises(CheckpointError, match=f"drafter '{method}': format '{name}' holds"):
        published_config(config(method), name, FACTS, "float32")


def test_dtypes_that_differ_are_refused():
    assert stated_dtype("here", {"torch_dtype": "torch.bfloat16", "dtype": "torch.bfloat16"}) == "bfloat16"
    assert stated_dtype("here", {}) is None
    with pytest.raises(CheckpointError, match="here: dtype and torch_dtype differ"):
        stated_dtype("here", {"torch_dtype": "float16", "dtype": "bfloat16"})


def test_a_format_is_named_after_the_recipe_whose_drafters_it_holds():
    assert {name: layout.recipe for name, layout in FORMATS.items()} == {name: name for name in FORMATS}
