"""The parity check itself: it passes on sound code, and it sees a difference.

pytest tests/test_parity.py
"""

from __future__ import annotations

import pytest
import torch

from harness.config import load_config
from harness.decode import DecodeSettings, Prompt
from harness.parity import Comparison, compare, decode, main, report, suite_parity
from methods.config import DrafterConfig
from methods.drafter import BlockDrafter
from methods.runner import BlockDraftRunner
from tests.drafting import HEAD, METHODS, RELAY
from tests.tiny import tiny_target


def arm_of(target, method="dflash"):
    config = DrafterConfig.for_target(
        target.config,
        method=method,
        target=target.name,
        target_source=target.source,
        target_revision=target.revision,
        target_fingerprint=target.fingerprint,
        template_hash=target.template_hash,
        thinking=None,
        mask_token_id=260,
        rope_theta=target.rope_theta,
        head_options=HEAD,
        relay_options=RELAY,
        block_size=6,
        num_layers=1,
        taps=(0, 2),
    )
    torch.manual_seed(0)
    drafter = BlockDrafter(config, target.binding).to(target.dtype).eval()
    for parameter in drafter.parameters():
        if not parameter.any():  # a relay starts as nothing at all
            torch.nn.init.normal_(parameter, std=0.2)
    return lambda rows, capacity: BlockDraftRunner(drafter, rows, capacity)


@pytest.fixture(scope="module", params=[torch.float32, torch.float64])
def target(request):
    return tiny_target("llama", request.param)


@pytest.mark.parametrize("method", METHODS)
def test_a_real_drafter_writes_what_the_target_writes_in_the_same_steps_at_every_batch_size(target, method):
    suites = {
        "pocket_word": {"prompts": 3, "max_new_tokens": 14},
        "pocket_chat": {"prompts": 2, "max_new_tokens": 14},
    }
    config = load_config("smoke", {"suites": suites}, check=False)
    arms = {"ar": None, method: arm_of(target, method)}
    for suite, responses in (("pocket_word", 3), ("pocket_chat", 4)):
        for temperature in (0.0, 1.0):
            found = suite_parity(config, target, arms, suite, temperature, 0, [1, 3])
            assert [(r.method, r.batch) for r in found] == [("ar", 3), (method, 1), (method, 3)]
            assert all(r.responses == r.equal == responses for r in found)
            assert found[-1].steps_equal == responses
            assert report(found, "float64") == 0


def test_batch_1_is_run_though_only_others_are_named(target):
    config = load_config("smoke", {"suites": {"pocket_word": {"prompts": 2, "max_new_tokens": 8}}}, check=False)
    found = suite_parity(config, target, {"dflash": arm_of(target)}, "pocket_word", 0.0, 0, [3])
    assert [(r.batch, r.steps_equal) for r in found] == [(1, None), (3, 2)]


def test_rejection_sampling_is_held_to_its_own_batch_1(target):
    overrides = {
        "suites": {"pocket_word": {"prompts": 3, "max_new_tokens": 14}},
        "decode": {"accept": "rejection", "proposals": "sampled"},
    }
    config = load_config("smoke", overrides, check=False)
    arms = {"ar": None, "dflash": arm_of(target)}
    found = suite_parity(config, target, arms, "pocket_word", 1.0, 0, [2])
    assert [(r.method, r.batch, r.accept, r.proposals) for r in found] == [
        (method, 2, "rejection", "sampled") for method in arms
    ]
    assert all(r.equal == r.steps_equal == r.responses == 3 for r in found) and report(found, "float64") == 0
    greedy = suite_parity(config, target, arms, "pocket_word", 0.0, 0, [1])
    assert [(r.method, r.accept, r.proposals, r.equal) for r in greedy] == [("dflash", "exact", "greedy", 3)]


def test_an_unknown_suite_is_refused_before_the_target_is_loaded(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["--config", "smoke", "--target", "pocket", "--suites", "pocket_wrod"])
    assert ended.value.code == 2 and "pocket_wrod" in capsys.readouterr().err


def test_a_difference_is_located_and_fails(target, capsys):
    prompts = [Prompt("p", tuple(range(20, 40)))]
    settings = DecodeSettings(temperature=0.0, seed=0, max_new_tokens=8)
    reference = decode(target, None, prompts, settings, 1)
    got = decode(target, None, prompts, settings, 1)
    got["p", 0].output_ids[5] += 1
    result = Comparison("x", "s", 0.0, 1)
    compare(target, prompts, reference, got, settings, result)
    assert (result.responses, result.equal) == (1, 0) and result.divergences[0]["token"] == 5
    ids = [[*prompts[0].ids, *reference["p", 0].output_ids[:5]]]
    top = target.logits(torch.tensor(ids))[0, -1].topk(2).values
    assert result.divergences[0]["closeness"] == pytest.approx(float(top[0] - top[1]), abs=1e-6)
    assert report([result], "float32") == 1
    assert "token 5" in capsys.readouterr().out


def test_other_steps_fail_in_float64_and_are_only_listed_in_float32():
    result = Comparison("x", "s", 0.0, 8, responses=2, equal=2, steps_equal=1, step_differences=["p turn 0"])
    assert report([result], "float64") == 1
    assert report([result], "float32") == 0
