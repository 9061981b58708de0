"""What a run will cost: shapes, parameters, and how hours follow from settings."""

import json

import pytest
import torch
from transformers import AutoConfig

from harness import budget
from harness.budget import Budget, Speed, drafter_parameters, measure_speed, totals
from harness.config import load_config
from harness.shapes import SHAPES, Shape
from harness.train.build import build_drafter
from harness.train.corpus import Trajectory
from tests.tiny import tiny_model, tiny_target
from tests.training import config as tiny_config

SLOW = Speed(flops=1e9, bytes_per_s=1e9, operation=1e-6)
EIGHT = SHAPES["qwen/qwen3-8b"]


def costs(shape=EIGHT, speed=SLOW, **over):
    config = load_config("paper", {"targets": {"qwen3-1.7b": None, "qwen3-4b": None}, **over}, check=False)
    found = Budget(config, {"qwen3-8b": shape}, {("cuda", "bfloat16"): speed}, "cuda").costs()
    return {(cost.rule, cost.what.removeprefix("qwen3-8b").strip()): cost for cost in found}


@pytest.fixture(autouse=True)
def nothing_measured(monkeypatch, tmp_path):
    monkeypatch.setattr(budget, "ROOT", tmp_path)


@pytest.mark.parametrize("kind", ["qwen3", "llama", "gemma3"])
def test_a_shape_counts_the_weights_of_a_real_model(kind):
    model = tiny_model(kind)
    shape = Shape.of(model.config)
    products = sum(p.numel() for p in model.parameters() if p.ndim == 2)
    assert shape.parameters == products


def test_known_shapes_are_those_of_the_published_models():
    """Billions as their cards state them: 1.7, 4.0, 8.2; without embeddings 1.4, 3.6, 6.95."""
    stated = {"1.7b": (1.72, 1.41), "4b": (4.02, 3.63), "8b": (8.19, 6.95)}
    for name, (whole, body) in stated.items():
        shape = SHAPES[f"qwen/qwen3-{name}"]
        assert (round(shape.parameters / 1e9, 2), round(shape.body / 1e9, 2)) == (whole, body)


def test_a_configuration_without_dimensions_is_refused():
    with pytest.raises(ValueError, match="states no"):
        Shape.of(AutoConfig.for_model("t5"))


@pytest.mark.parametrize("vocab", [None, 40])
@pytest.mark.parametrize("method", ["dflash", "dflow", "domino", "dflow_domino"])
def test_parameters_are_those_of_the_drafter_that_will_be_built(method, vocab, tmp_path):
    target, config = tiny_target(), tiny_config(tmp_path, {"draft_vocab_size": vocab})
    lines = [Trajectory("p", (1,), tuple(range(60)), 0.0)]
    built = build_drafter(config, target, method, 0, lines)
    assert built.config.draft_vocab_size == vocab
    shape = Shape.of(target.model.config)
    assert drafter_parameters(config, shape, method) == sum(p.numel() for p in built.parameters())


def test_a_published_drafter_has_its_published_size():
    config = load_config("paper", check=False)
    assert drafter_parameters(config, EIGHT, "dflash") == pytest.approx(1.049e9, rel=1e-3)
    domino = drafter_parameters(config, EIGHT, "domino") - drafter_parameters(config, EIGHT, "dflash")
    assert domino == pytest.approx(55.9e6, rel=0.01)


def test_hours_follow_the_settings():
    base = costs()
    assert set(base) >= {("trajectories", ""), ("train", "dflow"), ("decode", "ar"), ("decode", "dflow_off")}
    assert base["train", "dflow"].hours > 2.5 * base["train", "dflash"].hours  # three rounds, and the target between
    assert base["decode", "ar"].hours > base["decode", "dflash"].hours / 10
    twice = costs(train={"steps": 60000}, seeds=[0, 1])
    assert twice["train", "dflash"].hours == pytest.approx(4 * base["train", "dflash"].hours)
    assert twice["decode", "dflash"].jobs == 2 * base["decode", "dflash"].jobs == 4
    faster = costs(speed=Speed(1e12, 1e12, 1e-9))
    assert faster["train", "dflow"].hours == pytest.approx(base["train", "dflow"].hours / 1000, rel=1e-3)
    fewer = costs(train={"anchors": 128})
    assert fewer["train", "dflash"].memory_gb < base["train", "dflash"].memory_gb
    kept = costs(train={"feature_cache_gb": 1e9})
    assert kept["train", "dflash"].hours < base["train", "dflash"].hours
    assert kept["train", "dflow"].hours == base["train", "dflow"].hours  # its keys are still too many
    hours, memory, disk = totals(base.values())
    assert hours == sum(c.hours for c in base.values()) and memory == max(c.memory_gb for c in base.values())
    assert disk > 0


def test_an_imported_drafter_is_not_trained():
    given = {"qwen3-8b": {"dflash": {"source": "z-lab/Qwen3-8B-DFlash-b16", "format": "dflash"}}}
    found = costs(pretrained=given)
    assert ("train", "dflash") not in found and ("train", "dflow") in found and ("decode", "dflash") in found


def test_what_a_training_took_here_is_taken_over_and_scaled_for_its_controls(tmp_path):
    over = {"output_dir": str(tmp_path / "out")}
    folder = tmp_path / "out" / "drafters" / "qwen3-8b" / "dflow-seed3"
    folder.mkdir(parents=True)
    (folder / "done.json").write_text(json.dumps({"seconds": 720.0, "steps": 100}))
    control = {"k1": {"method": "dflow", "label": "k = 1", "train": {"rounds": 1}}}
    guessed, known = costs(), costs(**over, variants=control, ablations=["dflow", "k1"])
    assert known["train", "dflow"].hours == pytest.approx(30000 * 7.2 / 3600)
    assert known["train", "dflow"].note == "measured: out/drafters/qwen3-8b/dflow-seed3/done.json"
    assert 0.4 < known["train", "k1"].hours / known["train", "dflow"].hours < 0.9
    assert known["train", "k1"].note.startswith("scaled from ")
    assert known["train", "dflash"].hours == guessed["train", "dflash"].hours
    for damaged in ("", "{}", '{"seconds": 3, "steps": 0}', '{"seconds": "x", "steps": 2}'):
        (folder / "done.json").write_text(damaged)
        assert costs(**over)["train", "dflow"].note == "arithmetic"


def test_speed_is_measured():
    speed = measure_speed("cpu", "float32")
    assert 1e8 < speed.flops < 1e13 and 1e8 < speed.bytes_per_s < 1e12 and 1e-8 < speed.operation < 1e-3
    assert measure_speed("cpu", "float32") is speed
    assert torch.get_default_dtype() == torch.float32
