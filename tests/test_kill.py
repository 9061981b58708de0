"""Kills under Snakemake: the documented command goes on and ends with the same bits, and nothing writes on
alone."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import yaml

from tests.tiny import tiny_target

ROOT = Path(__file__).parent.parent
STEPS, EVERY = 90, 10
PATIENCE = 300.0


@pytest.fixture(scope="module")
def tree(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("killed")
    for name in ("Snakefile", "environment.yml"):
        shutil.copy(ROOT / name, root / name)
    for package in ("harness", "methods"):
        shutil.copytree(ROOT / package, root / package, ignore=shutil.ignore_patterns("target", "__pycache__"))
    (root / "results" / "reported").mkdir(parents=True)
    target = tiny_target()
    target.model.save_pretrained(root / "model")
    target.tokenizer.save_pretrained(root / "model")
    train = {"steps": STEPS, "checkpoint_every": EVERY, "eval_every": 30, "walk_prompts": 2, "heldout_prompts": 6}
    settings = {
        "extends": "smoke",
        "profile": "mine",
        "targets": {"pocket": {"source": "./model"}},
        "trajectories": {"prompts": 24, "max_new_tokens": 32},
        "train": train,
    }
    (root / "mine.yaml").write_text(yaml.safe_dump(settings))
    return root


def command(work: str, *arguments: str) -> list[str]:
    goal = f"{work}/out/drafters/pocket/dflash-seed0/done.json"
    base = [sys.executable, "-m", "snakemake", goal, "--cores", "1", *arguments, "--configfile", "mine.yaml"]
    return [*base, "--config", f"output_dir={work}/out", f"work_dir={work}/work"]


def start(root: Path, work: str) -> psutil.Popen:
    """Snakemake as a user would start it, in a process group of its own."""
    log = (root / f"{work}.log").open("a")
    return psutil.Popen(command(work, "--rerun-incomplete"), cwd=root, stdout=log, stderr=log, start_new_session=True)


def until(condition, what: str):
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        found = condition()
        if found:
            return found
        time.sleep(0.05)
    raise AssertionError(f"waited {PATIENCE:g} s for {what}")


def trainer_of(pipeline: psutil.Popen) -> psutil.Process | None:
    for child in pipeline.children():
        try:
            line = child.cmdline()
        except psutil.Error:  # it ended while we looked
            continue
        if "harness.train" in line and "-m" in line and "harness.launch" not in line:
            return child
    return None


def state(root: Path, work: str) -> Path:
    return root / work / "work" / "train" / "pocket" / "dflash-seed0" / "state.pt"


def stamp(path: Path) -> float:
    return path.stat().st_mtime if path.is_file() else 0.0


def weights(root: Path, work: str) -> bytes:
    return (root / work / "out" / "drafters" / "pocket" / "dflash-seed0" / "model.safetensors").read_bytes()


def finish(root: Path, work: str) -> None:
    pipeline = start(root, work)
    assert pipeline.wait(PATIENCE) == 0, (root / f"{work}.log").read_text()[-4000:]


@pytest.mark.slow
def test_three_kills_and_a_resume_end_with_the_weights_of_an_uninterrupted_run(tree):
    finish(tree, "whole")
    for victims in ({"trainer"}, {"pipeline"}, {"trainer", "pipeline"}):
        before = stamp(state(tree, "killed"))
        pipeline = start(tree, "killed")
        trainer = until(lambda running=pipeline: trainer_of(running), "the trainer to start")
        until(lambda seen=before: stamp(state(tree, "killed")) > seen, "a checkpoint of this run")
        for name, process in (("trainer", trainer), ("pipeline", pipeline)):
            if name in victims:
                process.send_signal(signal.SIGKILL)
        code = pipeline.wait(PATIENCE)
        assert code != 0, f"killed {victims}, and the pipeline called it a success"
        until(lambda process=trainer: not process.is_running() or process.status() == "zombie", "the trainer to end")
        assert not (tree / "killed" / "out" / "drafters" / "pocket" / "dflash-seed0" / "done.json").exists()
        left = stamp(state(tree, "killed"))
        time.sleep(2)
        assert stamp(state(tree, "killed")) == left, "somebody goes on writing checkpoints"
        unlock = subprocess.run(command("killed", "--unlock"), cwd=tree, capture_output=True, text=True)
        assert unlock.returncode == 0, unlock.stdout + unlock.stderr
    finish(tree, "killed")
    assert weights(tree, "killed") == weights(tree, "whole")


def test_second_claim_waits_for_the_gpu_and_a_dead_holder_frees_it(tmp_path):
    """The lock belongs to the process: it holds through exec, and goes with the process, however that
    ends."""
    from harness.launch import claim_gpu

    code = (
        "import os, sys, pathlib; from harness.launch import claim_gpu; "
        "print(claim_gpu(['0', '1'], pathlib.Path(sys.argv[1]))[0], flush=True); "
        "os.execvp('sleep', ['sleep', '600'])"
    )
    holders = []
    try:
        for expected in ("0", "1"):
            holder = subprocess.Popen(
                [sys.executable, "-c", code, str(tmp_path)], cwd=ROOT, stdout=subprocess.PIPE, text=True
            )
            holders.append(holder)
            assert holder.stdout.readline().strip() == expected
        with pytest.raises(TimeoutError, match="none of the GPUs 0, 1"):
            claim_gpu(["0", "1"], tmp_path, patience=0)
        holders[1].kill()
        holders[1].wait()
        name, descriptor = claim_gpu(["0", "1"], tmp_path, patience=10)
        os.close(descriptor)
        assert name == "1"
    finally:
        for holder in holders:
            holder.kill()
            holder.wait()


def test_stage_ends_when_its_parent_is_killed(tmp_path):
    """A parent that starts a stage through the launcher and is killed outright takes the stage with it."""
    stage = tmp_path / "stage_that_sleeps.py"
    stage.write_text("import os, sys, time\nprint(os.getpid(), flush=True)\ntime.sleep(600)\n")
    code = (
        "import subprocess, sys; "
        "subprocess.run([sys.executable, '-m', 'harness.launch', '--threads', '1', 'stage_that_sleeps'])"
    )
    path = os.pathsep.join([str(ROOT), str(tmp_path)])
    parent = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": path}
    )
    child = psutil.Process(int(parent.stdout.readline()))
    assert child.is_running()
    parent.kill()
    parent.wait()
    until(lambda: not child.is_running() or child.status() == "zombie", "the stage to end")
