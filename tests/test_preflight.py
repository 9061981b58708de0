"""What would stop a later stage is refused before the first response is written."""

import pytest

from harness.config import load_config
from harness.data import build_prompts
from harness.preflight import refuse_unusable
from harness.target import Target
from harness.train import trajectories
from harness.train.prompts import tasks_of
from tests.tiny import tiny_target

SMALL = {"methods": ["ar", "dflash"], "trajectories": {"prompts": 20}}


def config(**over):
    return load_config("smoke", {**SMALL, **over})


@pytest.fixture(scope="module")
def target():
    settings = config()
    return Target.load(settings.target("pocket"), "pocket", check=False)


def asked(settings, target):
    refuse_unusable(settings, target, tasks_of(settings, target))


def test_a_sound_configuration_passes(target):
    asked(config(), target)


@pytest.mark.parametrize(
    ("over", "words"),
    [
        ({"suites": {"pocket_word": {"max_new_tokens": 100_000}}}, "max_new_tokens"),
        ({"suites": {"pocket_chat": {"max_new_tokens": 1_000}}}, "2 answers of up to 1000"),
        ({"drafter": {"block_size": 2048}}, "block_size is 2048.*2048 positions.*smaller block"),
        ({"drafter": {"taps": [0, 99]}}, "taps are .0, 99., but the target has layers 0 to 11"),
        ({"drafter": {"mask_token_id": 100_000}}, "drafter.mask_token_id is 100000"),
        ({"train": {"heldout_prompts": 20}}, "all 20 usable trajectories are held out"),
        ({"train": {"max_length": 5}}, "no supervised tokens.*train.max_length 5"),
    ],
)
def test_what_a_later_stage_would_refuse_is_refused_first(target, over, words):
    with pytest.raises(ValueError, match=words):
        asked(config(**over), target)


@pytest.mark.parametrize("list_", ["methods", "ablations"])
def test_variants_are_asked_about_too(target, list_):
    def with_taps(taps):
        variant = {"method": "dflash", "label": "other taps", "drafter": {"taps": taps}}
        return config(**({"variants": {"mine": variant}, "ablations": []} | {list_: ["dflash", "mine"]}))

    asked(with_taps([1, 2]), target)
    with pytest.raises(ValueError, match="taps are .0, 99., but the target has layers 0 to 11"):
        asked(with_taps([0, 99]), target)


def test_a_mask_token_that_prompts_use_is_refused(target):
    used = build_prompts(tasks_of(config(), target), target)[0].ids[1]
    with pytest.raises(ValueError, match=f"mask token {used} occurs in prompt"):
        asked(config(drafter={"mask_token_id": used}), target)


def test_a_suite_without_a_plain_form_wants_a_template():
    with pytest.raises(ValueError, match="no chat template and this task no plain form"):
        asked(config(), tiny_target(template=None))


def test_the_stage_asks_before_it_writes(target, tmp_path, monkeypatch):
    monkeypatch.setattr(Target, "load", lambda *_: target)
    settings = config(drafter={"block_size": 2048}, work_dir=str(tmp_path / "work"))
    with pytest.raises(ValueError, match="smaller block"):
        trajectories.run(settings, "pocket", tmp_path / "out")
    assert not (tmp_path / "work").exists() and not (tmp_path / "out").exists()
