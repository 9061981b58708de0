"""What a checkpoint says about itself: filled in from the target, read back, and refused where it makes no sense."""

import pytest

from methods.config import DrafterConfig, default_taps
from tests.drafting import MASK, VOCAB


class TextConfig:
    hidden_size, num_hidden_layers, num_attention_heads, intermediate_size = 24, 12, 4, 96
    num_key_value_heads, head_dim, rms_norm_eps, max_position_embeddings, vocab_size = 2, 8, 1e-5, 128, VOCAB


def for_target(**changes):
    given = dict(
        method="dflash",
        target="t",
        target_source="s",
        target_revision=None,
        target_fingerprint="f",
        template_hash="h",
        thinking=False,
        mask_token_id=MASK,
        rope_theta=5000,
        **changes,
    )
    return DrafterConfig.for_target(TextConfig, **given)


def test_dimensions_default_to_those_of_the_target():
    made = for_target(num_layers=2, intermediate_size=48)
    assert (made.head_dim, made.num_key_value_heads, made.intermediate_size, made.rms_norm_eps) == (8, 2, 48, 1e-5)
    assert (made.num_proposals, made.taps, made.rope_theta) == (15, (1, 3, 5, 7, 9), 5000.0)
    assert DrafterConfig.from_dict(made.to_dict()) == made


def test_default_taps_are_those_of_released_checkpoints():
    assert default_taps(36, 5) == (1, 9, 17, 25, 33)
    assert default_taps(12, 1) == (6,)
    assert all(max(default_taps(n, 5)) < n for n in range(1, 40))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"taps": (1, 12)}, "layers 0 to 11"),
        ({"intermediate_sise": 3}, r"unknown keys: \['intermediate_sise'\]"),
        ({"num_key_value_heads": 3}, "not a multiple of num_key_value_heads 3"),
        ({"head_dim": 7}, "head_dim is 7"),
        ({"block_size": 3000}, "block_size is 3000, but the context has 128 positions"),
        ({"mask_token_id": VOCAB}, "mask_token_id is 37"),
        ({"taps": (1, 1)}, "each once"),
        ({"num_layers": 0}, "num_layers is 0"),
        ({"head": "domino"}, "head is 'domino', but recipe 'dflash' has 'plain'"),
    ],
)
def test_a_config_that_makes_no_sense_is_refused(change, words):
    with pytest.raises(ValueError, match=words):
        given = {"mask_token_id": MASK, **change}
        DrafterConfig.for_target(
            TextConfig,
            method="dflash",
            target="t",
            target_source="s",
            target_revision=None,
            target_fingerprint="f",
            rope_theta=1e4,
            template_hash="plain",
            thinking=None,
            **given,
        )
