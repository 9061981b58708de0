"""Variants: a recipe under settings of its own, or another entrant's drafter; what each is made of, and no more."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
import yaml

from harness.arms import load_arms, others
from harness.config import ConfigError, load_config
from harness.plan import Plan
from harness.settings import Entrant
from harness.train.build import build_drafter, build_rounds
from methods.checkpoint import save_drafter
from methods.recipes import RECIPES
from tests import training
from tests.tiny import tiny_target

VARIANTS = {
    "mixed": {
        "label": "rows mixed",
        "method": "dflow",
        "drafter": {"relay": {"shuffle": True}},
        "train": {"rounds": 1},
    },
    "off": {"label": "relay off", "weights": "dflow", "relay": "off"},
    "mixed_off": {"label": "mixed, then off", "weights": "mixed", "relay": "off"},
    "again": {"label": "the same again", "weights": "dflow"},
    "rounds": {"label": "plain masks over rounds", "method": "dflash", "train": {"rounds": 2}},
    "teacher": {"label": "forced", "method": "dflow_domino", "train": {"rollout": "teacher"}},
    "blind": {"label": "trained, decoded without", "method": "dflow", "relay": "off"},
}


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A profile of its own, so that nobody's choice of entrants decides what is tested."""
    folder = tmp_path_factory.mktemp("variants")
    whole = training.config(folder).model_dump(mode="json")
    whole |= {"methods": ["ar", *(n for n in RECIPES if n != "ar")], "variants": VARIANTS, "targets": {"tiny": {}}}
    whole["targets"]["tiny"]["source"] = "nobody/tiny"
    whole["ablations"], whole["comparisons"] = ["off", "mixed_off", "rounds", "teacher"], [["off", "dflow"]]
    path = folder / "mine.yaml"
    path.write_text(yaml.safe_dump(whole))
    return path


@pytest.fixture
def made(written):
    """made(overrides) -> configuration."""
    return lambda overrides=None: load_config(written, overrides, check=False)


def job(method):
    return SimpleNamespace(target="tiny", method=method)


def slice_of(stage, config, method):
    return json.loads(getattr(Plan(config), stage)(job(method)))


# -- what a name stands for ---------------------------------------------------------------------------------------


def test_an_entrant_is_a_recipe_with_weights_a_relay_and_a_label(made):
    config = made()
    assert config.entrant("dflow") == Entrant("dflow", "dflow", "dflow", True, "dflow")
    assert config.entrant("mixed") == Entrant("mixed", "dflow", "mixed", True, "rows mixed")
    assert config.entrant("off") == Entrant("off", "dflow", "dflow", False, "relay off")
    assert config.entrant("mixed_off") == Entrant("mixed_off", "dflow", "mixed", False, "mixed, then off")
    assert config.entrant("again") == Entrant("again", "dflow", "dflow", True, "the same again")
    assert config.entrant("blind") == Entrant("blind", "dflow", "blind", False, "trained, decoded without")
    with pytest.raises(
        ConfigError, match=r"unknown method 'mixd' \(did you mean 'mixed'\?\); valid methods: ar, .*off"
    ):
        config.entrant("mixd")
    assert config.entrants == [*config.methods, "off", "mixed_off", "rounds", "teacher"]


def test_settings_of_a_variant_are_laid_over_nested_ones_and_no_others_move(made):
    config = made({"drafter": {"relay": {"boundary": False}}, "train": {"chains": 3}})
    mixed = config.settings_of("mixed")
    relay = config.drafter.relay.model_dump() | {"shuffle": True}
    assert mixed.drafter.relay.model_dump() == relay and relay["boundary"] is False
    assert mixed.drafter.model_dump() == config.drafter.model_dump() | {"relay": relay}
    assert mixed.train.model_dump() == config.train.model_dump() | {"rounds": 1}
    assert mixed.model_dump(exclude={"train", "drafter"}) == config.model_dump(exclude={"train", "drafter"})
    assert config.settings_of("mixed_off") == mixed  # the lender's
    for name in ("ar", "dflow", "off", "again", "blind"):
        assert config.settings_of(name) == config
    assert not config.drafter.relay.shuffle and config.train.rounds is None


def test_a_variants_drafter_and_rounds_are_built_from_its_settings(made):
    target, config = tiny_target(), made({"train": {"chains": 2}})
    built = {}
    for name in ("dflow", "mixed", "rounds", "teacher"):
        own, recipe = config.settings_of(name), config.entrant(name).recipe
        drafter = build_drafter(own, target, recipe, 0, [])
        rounds = build_rounds(own.train, drafter, target, 0)
        built[name] = drafter.config, rounds.count, getattr(rounds, "rollout", None), getattr(rounds, "chains", None)
    assert [built[name][1:] for name in built] == [
        (2, "online", 2),
        (1, "online", 2),
        (2, "online", 2),
        (2, "teacher", 2),
    ]
    dflow, mixed = built["dflow"][0].to_dict(), built["mixed"][0].to_dict()
    assert {key for key in dflow if dflow[key] != mixed[key]} == {"relay_options"}
    assert mixed["relay_options"] == dflow["relay_options"] | {"shuffle": True}
    assert built["rounds"][0].relay == "none" and built["teacher"][0].head == "domino"


@pytest.mark.parametrize(
    ("setting", "value"),
    [("first_rejected", False), ("last_row", False), ("anchor_slot", True), ("mlp_width", 9), ("gate", "one_plus")]
    + [("norm", "rms"), ("normalise_boundary", True), ("detach", "taps"), ("states", "drafter"), ("shuffle", True)]
    + [("boundary", False)],
)
def test_every_relay_setting_reaches_the_drafter(setting, value, made):
    target, config = tiny_target(), made()
    plain = build_drafter(config, target, "dflow", 0, []).config.relay_options
    moved = build_drafter(made({"drafter": {"relay": {setting: value}}}), target, "dflow", 0, []).config.relay_options
    assert {key for key, old in vars(plain).items() if old != getattr(moved, key)} == {setting}
    assert getattr(moved, setting) == value
    assert plain.mlp_width == target.hidden_size


# -- mistakes -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ({"variants": {"dflow": {"label": "x", "method": "dflow"}}}, ["variants", "'dflow' is the name of a recipe"]),
        ({"variants": {"a": {"label": "x", "method": "dflwo"}}}, ["variants.a", "'dflwo'", "did you mean 'dflow'"]),
        ({"variants": {"a": {"label": "x", "method": "ar"}}}, ["variants.a", "'ar'", "valid methods: dflash"]),
        ({"variants": {"a": {"label": "x", "method": "mixed"}}}, ["variants.a", "'mixed'", "valid methods: dflash"]),
        ({"variants": {"a": {"label": "x", "weights": "off"}}}, ["variants.a.weights", "'off'", "mixed"]),
        ({"variants": {"a": {"label": "x", "weights": "a"}}}, ["variants.a.weights", "'a'"]),
        ({"variants": {"a": {"label": "x", "weights": "ar"}}}, ["variants.a.weights", "'ar'"]),
        ({"variants": {"a": {"label": "x", "weights": "nobody"}}}, ["variants.a.weights", "'nobody'"]),
        ({"variants": {"a": {"label": "x", "weights": "dflow", "train": {"steps": 3}}}}, ["variants.a", "borrows"]),
        ({"variants": {"a": {"label": "x", "weights": "dflow", "drafter": {"taps": [1]}}}}, ["variants.a", "borrows"]),
        ({"variants": {"a": {"label": "x"}}}, ["variants.a", "one of the two"]),
        ({"variants": {"a": {"label": "x", "weights": "dflow", "method": "dflow"}}}, ["variants.a", "one of the two"]),
        ({"variants": {"a": {"method": "dflow"}}}, ["variants.a.label", "missing"]),
        ({"variants": {"a": {"label": "x", "method": "dflow", "relay": "of"}}}, ["variants.a.relay", "'of'", "'off'"]),
        ({"variants": {"mixed": {"train": {"stpes": 3}}}}, ["variants.mixed.train.stpes"]),
        ({"variants": {"mixed": {"drafter": {"relay": {"shufle": True}}}}}, ["variants.mixed.drafter.relay.shufle"]),
        ({"variants": {"mixed": {"drafter": {"relay": {"states": "both"}}}}}, ["variants.mixed.drafter.relay.states"]),
        ({"variants": {"mixed": {"drafter": {"num_proposals": 6}}}}, ["variants.mixed.drafter: num_proposals is 6"]),
        ({"methods": ["ar", "of"]}, ["methods", "'of'", "did you mean 'off'"]),
        ({"ablations": ["mixd"]}, ["ablations", "'mixd'", "did you mean 'mixed'"]),
        ({"ablations": ["off", "off"]}, ["ablations", "twice"]),
        ({"comparisons": [["dflow", "dflowoff"]]}, ["comparisons", "'dflowoff'", "valid methods: ar, dflash"]),
        ({"comparisons": [["dflow", "off", "dflash"]]}, ["comparisons.0"]),
        ({"comparisons": [["dflow", "dflow"]]}, ["comparisons", "'dflow' is compared with itself"]),
        ({"variants": {"a": {"label": "x", "method": "domino", "relay": "off"}}}, ["variants.a", "has no relay"]),
        ({"variants": {"a": {"label": "x", "weights": "rounds", "relay": "off"}}}, ["variants.a", "has no relay"]),
        (
            {"variants": {"a": {"label": "x", "method": "dflash", "drafter": {"relay": {"shuffle": True}}}}},
            ["variants.a", "'dflash' has no relay"],
        ),
        (
            {"variants": {"a": {"label": "x", "method": "dflow", "drafter": {"head": {"rank": 3}}}}},
            ["variants.a", "a head without settings"],
        ),
        ({"variants": {"generate": {"label": "x", "method": "dflow"}}}, ["'generate' has a meaning"]),
    ],
)
def test_a_variant_that_cannot_be_is_refused_by_its_place(overrides, words, made):
    with pytest.raises(ConfigError) as caught:
        made(overrides)
    assert all(word in str(caught.value) for word in words), caught.value
    assert "Value error" not in str(caught.value)


# -- what is made again -------------------------------------------------------------------------------------------


def test_training_depends_on_the_settings_its_recipe_looks_at_and_on_no_others(made):
    names = ["dflash", "domino", "dflow", "dflow_domino", "rounds", "mixed", "teacher"]
    before = {name: slice_of("train", made(), name) for name in names}
    for overrides, moved in (
        ({"drafter": {"relay": {"gate": "one_plus"}}}, {"dflow", "dflow_domino", "mixed", "teacher"}),
        ({"drafter": {"head": {"rank": 7}}}, {"domino", "dflow_domino", "teacher"}),
        ({"train": {"base_until": 0.5}}, {"domino", "dflow_domino", "teacher"}),
        ({"train": {"chains": 2}}, {"dflow", "dflow_domino", "rounds", "mixed", "teacher"}),
        ({"train": {"after_full": "drop"}}, {"dflow", "dflow_domino", "rounds", "mixed", "teacher"}),
        ({"train": {"rounds": 3}}, set(names) - {"mixed"} - {"rounds"}),
        ({"train": {"rollout": "teacher"}}, {"dflow", "dflow_domino", "rounds", "mixed"}),
        ({"train": {"steps": 13}}, set(names)),
        ({"drafter": {"num_layers": 2}}, set(names)),
        ({"variants": {"mixed": {"train": {"steps": 13}}}}, {"mixed"}),
        ({"variants": {"mixed": {"label": "another"}}, "ablations": ["mixed"], "comparisons": []}, set()),
        ({"methods": ["dflash"], "decode": {"trace": False}}, set()),
    ):
        after = {name: slice_of("train", made(overrides), name) for name in names}
        assert {name for name in names if before[name] != after[name]} == moved, overrides


def test_decoding_depends_on_the_relay_switch_alone(made):
    found = {
        name: slice_of("decode", made(), name) for name in ("dflow", "again", "mixed", "off", "mixed_off", "blind")
    }
    assert found["dflow"] == found["again"] == found["mixed"]
    assert found["off"] == found["mixed_off"] == found["blind"] == found["dflow"] | {"relay": "off"}
    other = made({"variants": {"off": {"label": "x"}, "mixed": {"train": {"steps": 99}}}})
    assert slice_of("decode", other, "off") == found["off"]


def test_a_borrower_decodes_with_its_lenders_files_and_only_lenders_are_trained(made):
    config = made({"methods": ["ar", "off"], "ablations": ["mixed_off", "rounds"]})
    plan = Plan(config)
    assert plan.trained == ["dflow", "mixed", "rounds"]
    assert plan.drafter("tiny", "off", 0) == plan.drafter("tiny", "again", 0) == plan.drafter("tiny", "dflow", 0) != []
    assert plan.drafter("tiny", "mixed_off", 0) == plan.drafter("tiny", "mixed", 0)
    assert all("/mixed-seed0/" in file for file in plan.drafter("tiny", "mixed_off", 0))
    assert plan.drafter("tiny", "ar", 0) == []
    assert plan.drafters("tiny", [0]) == plan.drafter("tiny", "dflow", 0)
    assert plan.marks("done.json", ["off", "mixed_off"]) == [
        f"{plan.out}/drafters/tiny/{name}-seed0/done.json" for name in ("dflow", "mixed")
    ]
    names = {plan.records_of("tiny", name, "0", 0)[0] for name in ("off", "dflow", "again")}
    assert len(names) == 3  # each has records of its own
    assert plan.code("decode", ["off"]) == plan.code("decode", ["dflow"]) != plan.code("decode", ["ar"])


def test_a_borrowed_arm_is_its_lenders_drafter_with_the_relay_it_asks_for(made, tmp_path):
    target, config = tiny_target(), made()
    for seed, lender in enumerate(("dflow", "mixed")):
        built = build_drafter(config.settings_of(lender), target, "dflow", seed, [])
        save_drafter(tmp_path / f"{lender}-seed0", built)
    arms = load_arms(config, target, ["ar", "dflow", "off", "again", "mixed_off"], tmp_path, 0)
    assert arms.pop("ar") is None
    runners = {name: arm(1, 32) for name, arm in arms.items()}
    assert {name: runner._relay is not None for name, runner in runners.items()} == {
        "dflow": True,
        "off": False,
        "again": True,
        "mixed_off": False,
    }
    weights = {name: runner.drafter.fusion.fc.weight for name, runner in runners.items()}
    assert torch.equal(weights["dflow"], weights["off"]) and torch.equal(weights["dflow"], weights["again"])
    assert not torch.equal(weights["dflow"], weights["mixed_off"])
    assert runners["mixed_off"].drafter.config.relay_options.shuffle
    (tmp_path / "dflow-seed0").rename(tmp_path / "mixed-seed1")
    with pytest.raises(ValueError, match=r"(?s)relay_options is .*shuffle=False.*shuffle=True.* in this run"):
        load_arms(config, target, ["mixed"], tmp_path, 1)
    with pytest.raises(ValueError, match="'rounds' drafts"):
        load_arms(config, target, ["rounds"], tmp_path, 0)


def test_a_drafter_of_another_thinking_mode_is_decoded_where_that_is_allowed_by_name(made, tmp_path, caplog):
    target, config = tiny_target(), made()
    built = build_drafter(config.settings_of("dflow"), target, "dflow", 0, [])
    built.config = replace(built.config, thinking=True, template_hash="other")
    save_drafter(tmp_path / "dflow-seed0", built)
    assert others(target, tmp_path / "dflow-seed0") == {
        "thinking": (True, target.thinking),
        "template_hash": ("other", target.template_hash),
    }
    assert others(target, None) == {}

    def arms(*allowed):
        settings = config.targets["tiny"].model_copy(update={"allow_other": list(allowed)})
        named = config.model_copy(update={"targets": {target.name: settings}})
        return load_arms(named, target, ["dflow"], tmp_path, 0)

    with pytest.raises(ValueError, match="template_hash is 'other'"):
        arms("thinking")
    assert arms("thinking", "template_hash")["dflow"](1, 32).num_proposals > 0
    assert "drafter made with thinking True" in caplog.text
