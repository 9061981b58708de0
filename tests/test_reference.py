"""Acceptance numbers do not move: committed drafters take the committed steps, and training gives such drafters."""

import copy
import json
import subprocess
import sys
from pathlib import Path

import pytest

from harness.config import load_config
from harness.reference import BAND, DRAFTERS, REFERENCE, STEPS, check, differences, limits

ROOT = Path(__file__).parent.parent
CONFIG = load_config("pocket")
METHODS = [name for name in CONFIG.methods if name != "ar"]


@pytest.mark.parametrize("method", METHODS)
def test_the_reference_drafter_takes_the_steps_of_the_reference_exactly(method):
    assert check(CONFIG, "pocket", REFERENCE, [method]) == []


def test_the_reference_is_about_every_method_and_every_suite_and_something_is_accepted():
    steps = json.loads((REFERENCE / STEPS).read_text())["steps"]
    assert sorted(steps) == sorted(METHODS)
    for method, suites in steps.items():
        assert sorted(suites) == sorted(CONFIG.suites)
        for label in ("T0", "T1"):
            counts = [n for suite in suites.values() for prompt in suite[label].values() for n in prompt["accepted"]]
            assert len(counts) > 50 and sum(counts) / len(counts) > 0.3, (method, label)


def test_a_single_other_step_is_named():
    steps = json.loads((REFERENCE / STEPS).read_text())["steps"]["dflow"]
    other = copy.deepcopy(steps)
    prompt = next(iter(other["pocket_word"]["T0"]))
    other["pocket_word"]["T0"][prompt]["accepted"][3] += 1
    (line,) = differences(steps, other, "dflow")
    assert f"dflow pocket_word T0 {prompt}" in line
    del other["pocket_word"]["T0"][prompt]
    (line,) = differences(steps, other, "dflow")
    assert line.endswith("None now")


def test_the_fixtures_are_small():
    size = sum(path.stat().st_size for path in (REFERENCE / DRAFTERS).rglob("*") if path.is_file())
    assert 0 < size <= 8e6


def test_the_band_tells_a_lost_drafter_from_another_seed():
    low, high = limits([1.50, 1.52, 1.48])
    assert low < 1.45 < 1.55 < high and not low < 1.2 < high


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_retraining_lies_in_the_band_of_the_seeds(method, tmp_path_factory):
    """Trained anew with a seed of its own, in the profile that made the band."""
    band = json.loads((REFERENCE / BAND).read_text())["methods"][method]
    folder = tmp_path_factory.getbasetemp() / "reference"
    out = folder / "drafters" / method
    settings = folder / "mine.yaml"
    folder.mkdir(exist_ok=True)
    paths = "".join(f"{key}: {folder / key}\n" for key in ("output_dir", "work_dir", "figures_dir"))
    settings.write_text(f"extends: reference\nprofile: mine\n{paths}")
    words = ["--config", str(settings), "--target", "pocket"]
    answers = folder / "trajectories"
    if not (answers / "manifest.json").is_file():
        run("harness.train.trajectories", *words, "--out", str(answers))
    run("harness.train", *words, "--method", method, "--seed", "7", "--trajectories", str(answers), "--out", str(out))
    done = json.loads((out / "done.json").read_text())
    low, high = limits(band["accept_walk"])
    assert done["steps"] == band["steps"] and low < done["accept_walk"] < high


def run(module: str, *words: str) -> None:
    done = subprocess.run([sys.executable, "-m", module, *words], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
