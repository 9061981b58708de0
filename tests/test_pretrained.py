"""A released checkpoint named in a configuration: who is imported, what depends on what, and what tables say of it."""

from __future__ import annotations

import json
import re
from types import SimpleNamespace
from typing import get_args

import pytest
import yaml

from harness import preflight
from harness.arms import load_arms
from harness.config import ConfigError, load_config
from harness.plan import Plan
from harness.report.cells import training_flags
from harness.report.comparisons import train_minutes, train_steps
from harness.report.inputs import AVERAGE, Inputs, Key
from harness.report.markdown import warnings
from harness.sections import CheckpointFormat, Pretrained
from harness.train.build import build_drafter
from methods.checkpoint import save_drafter
from methods.published import FORMATS
from tests import training
from tests.tiny import tiny_target

VARIANTS = {
    "theirs": {"label": "as released", "method": "dflash"},
    "longer": {"label": "longer", "method": "dflash", "train": {"steps": 13}},
    "off": {"label": "relay off", "weights": "dflow", "relay": "off"},
    "again": {"label": "as released, again", "weights": "theirs"},
}
GIVEN = {"source": "z-lab/some-DFlash", "format": "dflash", "revision": "abc"}
HEAD = {"source": "someone/some-Domino", "format": "domino"}
BOTH = {"tiny": {"theirs": GIVEN, "domino": HEAD}}


@pytest.fixture
def made(tmp_path):
    """made(overrides) -> configuration with two targets, of which `tiny` imports what BOTH names."""
    whole = training.config(tmp_path).model_dump(mode="json")
    targets = {name: {"source": "nobody/tiny"} for name in ("tiny", "other")}
    whole |= {"targets": targets, "variants": VARIANTS, "pretrained": BOTH}
    whole |= {"methods": ["ar", "dflash", "theirs", "domino"], "ablations": ["again", "dflow"]}
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump(whole, sort_keys=False))
    return lambda overrides=None: load_config(path, overrides, check=False)


def job(target, method):
    return SimpleNamespace(target=target, method=method)


# -- configurations -----------------------------------------------------------------------------------------------


def test_one_line_names_a_release_and_nothing_else_changes():
    line = {"pretrained": {"qwen3-8b": {"dflash": {"source": "z-lab/Qwen3-8B-DFlash-b16", "format": "dflash"}}}}
    config, before = load_config("paper", line, check=False), load_config("paper", check=False)
    assert config.pretrained_for("qwen3-8b", "dflash") == Pretrained(**line["pretrained"]["qwen3-8b"]["dflash"])
    assert config.pretrained_for("qwen3-4b", "dflash") is None and config.pretrained_for("qwen3-8b", "dflow") is None
    assert config.model_copy(update={"pretrained": {}}) == before


def test_a_borrower_has_its_lenders_import(made):
    config = made()
    assert config.pretrained_for("tiny", "again") == config.pretrained_for("tiny", "theirs") == Pretrained(**GIVEN)
    assert config.pretrained_for("tiny", "dflash") is None and config.pretrained_for("other", "theirs") is None
    assert config.pretrained_for("tiny", "ar") is None


@pytest.mark.parametrize(
    ("target", "name", "given", "words"),
    [
        ("tyni", "dflash", GIVEN, ["pretrained: no target 'tyni'", "did you mean 'tiny'", "tiny, other"]),
        ("tiny", "dflahs", GIVEN, ["pretrained.tiny.dflahs", "did you mean 'dflash'"]),
        ("tiny", "ar", GIVEN, ["pretrained.tiny.ar", "valid methods: dflash"]),
        ("tiny", "off", GIVEN, ["pretrained.tiny.off", "'off'"]),
        ("tiny", "dflow", GIVEN, ["pretrained.tiny.dflow", "format 'dflash' holds no drafter of recipe 'dflow'"]),
        ("tiny", "domino", GIVEN, ["pretrained.tiny.domino", "recipe 'domino'"]),
        ("tiny", "theirs", HEAD, ["pretrained.tiny.theirs", "format 'domino' holds no drafter of recipe 'dflash'"]),
        ("tiny", "longer", GIVEN, ["pretrained.tiny.longer", "settings of train and drafter would change nothing"]),
        ("tiny", "dflash", GIVEN | {"format": "dflsh"}, ["pretrained.tiny.dflash.format", "'dflsh'", "'domino'"]),
        ("tiny", "dflash", {"source": "x/y"}, ["pretrained.tiny.dflash.format", "missing"]),
        ("tiny", "dflash", GIVEN | {"sorce": "x"}, ["unknown key 'sorce'", "did you mean 'source'"]),
    ],
)
def test_an_import_that_cannot_be_is_refused_by_its_place(made, target, name, given, words):
    with pytest.raises(ConfigError) as caught:
        made({"pretrained": {target: {name: given}}})
    assert all(word in str(caught.value) for word in words), caught.value


def test_a_folder_that_is_not_there_is_an_error_before_anything_runs():
    given = {"pocket": {"dflash": GIVEN | {"source": "./nowhere"}}}
    with pytest.raises(ConfigError, match=r"pretrained.pocket.dflash.source './nowhere': no such file or folder"):
        load_config("pocket", {"pretrained": given})
    assert load_config("pocket", {"pretrained": {"pocket": {"dflash": GIVEN}}})  # a hub id is left for the hub


def test_formats_are_those_that_can_be_read():
    assert get_args(CheckpointFormat) == tuple(FORMATS)


# -- what is made, and from what ----------------------------------------------------------------------------------


def test_an_imported_drafter_has_files_and_a_mark_and_no_curve(made):
    plan = Plan(made())
    assert plan.imported == [("tiny", "theirs"), ("tiny", "domino")]
    assert plan.trained == ["dflash", "theirs", "domino", "dflow"]  # the other target trains them all
    assert plan.drafter("tiny", "again", 0) == plan.drafter("tiny", "theirs", 0) != []
    folders = [f"{plan.out}/drafters/{target}/{name}-seed0" for target in ("tiny", "other") for name in plan.lenders]
    assert sorted(plan.marks("done.json", plan.entrants)) == sorted(f"{folder}/done.json" for folder in folders)
    curves = [f"{folder}/learning_curve.csv" for folder in folders if not re.search("tiny/(theirs|domino)-", folder)]
    assert sorted(plan.marks("learning_curve.csv", plan.entrants)) == sorted(curves)


def test_each_drafter_has_exactly_one_rule_that_makes_it(made):
    plan = Plan(made())
    for target in plan.config.targets:
        for name in (*plan.lenders, "theirs-seed0"):  # a name that looks like another's folder
            path = f"{target}/{name}-seed0/model.safetensors"
            by = {kind: re.match(f"(?:{plan.targets_of(imported=kind)})/", path) for kind in (True, False)}
            assert bool(by[True]) == ((target, name) in plan.imported) != bool(by[False]), path


def test_without_imports_the_rule_for_them_matches_nothing(made):
    plan = Plan(made({"pretrained": None}))
    assert plan.imported == [] and re.match(plan.targets_of(imported=True), "tiny/dflash-seed0/x") is None
    assert re.match(plan.targets_of(imported=False), "tiny/dflash-seed0/x")


def test_without_a_training_there_is_no_figure_of_one(made):
    given = {target: {"dflash": GIVEN} for target in ("tiny", "other")}
    plan = Plan(made({"methods": ["ar", "dflash"], "ablations": [], "pretrained": given}))
    assert plan.trained == [] and plan.lenders == ["dflash"]
    assert "training" not in " ".join(plan.figures_made()) and "acceptance" in " ".join(plan.figures_made())


def test_an_import_depends_on_its_source_and_the_target_alone(made, tmp_path):
    folder = tmp_path / "release"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    local = {"pretrained": {"tiny": {"theirs": {"source": str(folder), "revision": None}}}}

    def slice_of(overrides=None):
        return Plan(made(overrides)).pretrained(job("tiny", "theirs"))

    before, hub = slice_of(local), slice_of()
    for other in ({"train": {"steps": 99}}, {"drafter": {"block_size": 4}}, {"methods": ["ar", "theirs"]}):
        assert slice_of(local | other) == before
    assert hub != before and json.loads(hub)["pretrained"]["revision"] == "abc"
    assert slice_of({"pretrained": {"tiny": {"theirs": {"revision": "abd"}}}}) != hub
    assert slice_of(local | {"targets": {"tiny": {"revision": "x"}}}) != before
    (folder / "config.json").write_text("[]")
    assert slice_of(local) != before


def test_an_import_leaves_trajectories_and_other_methods_alone(made):
    with_it, without = Plan(made()), Plan(made({"pretrained": None}))
    for slice_of in ("trajectories", "train", "decode"):
        found = [getattr(plan, slice_of)(job("tiny", "dflash")) for plan in (with_it, without)]
        assert found[0] == found[1], slice_of


# -- decoding and checks ------------------------------------------------------------------------------------------


def test_an_imported_arm_brings_its_own_head_and_a_trained_one_must_have_the_configured(made, tmp_path):
    target = tiny_target()
    target.name = "tiny"
    config = made({"drafter": {"head": {"rank": 7, "pure_prefix": 0}}})
    other = made()  # of another rank and prefix
    save_drafter(tmp_path / "domino-seed0", build_drafter(other, target, "domino", 0, []))
    runner = load_arms(config, target, ["domino"], tmp_path, 0)["domino"](1, 32)
    assert runner.drafter.config.head_options.rank == 6
    trained = config.model_copy(update={"pretrained": {}})
    with pytest.raises(ValueError, match=r"(?s)head_options is .*rank=6.*rank=7.* in this run"):
        load_arms(trained, target, ["domino"], tmp_path, 0)
    save_drafter(tmp_path / "domino-seed1", build_drafter(other, tiny_target(seed=1), "domino", 0, []))
    with pytest.raises(ValueError, match="target_fingerprint is"):
        load_arms(config, target, ["domino"], tmp_path, 1)


def test_what_only_a_training_needs_is_not_asked_of_an_import(made, monkeypatch):
    target, asked = tiny_target(), []
    target.name = "tiny"
    monkeypatch.setattr(preflight, "refuse_suites", lambda *_: None)
    monkeypatch.setattr(preflight, "build_prompts", lambda *_: [])
    monkeypatch.setattr(preflight, "split", lambda *_: None)
    seen = preflight.drafter_config
    monkeypatch.setattr(preflight, "drafter_config", lambda *given: asked.append(given[2]) or seen(*given))
    preflight.refuse_unusable(made(), target, [])
    assert asked == ["dflash", "dflow"]
    target.name = "other"
    preflight.refuse_unusable(made(), target, [])
    assert asked[2:] == ["dflash", "dflash", "domino", "dflow"]


# -- tables -------------------------------------------------------------------------------------------------------

MARK = {"imported": GIVEN | {"revision": "0123456789abcdef", "sha256": "f" * 64}, "dtype": "bfloat16"}


def flags(*marks):
    empty = Inputs(("tiny",), ("dflash",), (0.0,), ("a",), {}, {}, done={("tiny", "dflash"): list(marks)})
    return empty, training_flags(empty, Key("tiny", "dflash", 0.0, AVERAGE))


def test_tables_say_that_a_drafter_was_imported_and_claim_nothing_of_its_training():
    inputs, found = flags(MARK)
    assert found == ["imported from z-lab/some-DFlash (dflash, revision 0123456789ab)"]
    assert train_steps(inputs, "tiny", "dflash") is None and train_minutes(inputs, "tiny", "dflash") is None
    cell = {"target": "tiny", "method": "dflash", "suite": "a", "temperature": "0", "flags": "; ".join(found)}
    assert warnings([cell, cell | {"suite": "b"}]) == f"* tiny dflash: **{found[0]}**"


def test_several_seeds_of_one_import_are_said_to_be_one_drafter():
    _, found = flags(MARK, MARK)
    assert found == ["imported from z-lab/some-DFlash (dflash, revision 0123456789ab), one drafter under all 2 seeds"]


def test_an_import_without_a_commit_is_told_by_its_content():
    _, found = flags({"imported": MARK["imported"] | {"revision": None, "source": "release"}})
    assert found == ["imported from release (dflash, sha256 ffffffffffff)"]


def test_a_trained_drafter_is_flagged_as_before():
    assert flags({"plateau": False})[1] == ["under-trained: 1 of 1 drafters had not reached their plateau"]
    assert flags({"plateau": True})[1] == []
