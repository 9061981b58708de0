"""Provenance says what it can find out, and does without the rest."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import torch

from harness.provenance import SHORT, origin, origin_path, provenance, provenance_short, version, write_origin

ROOT = Path(__file__).parent.parent


def test_record_is_plain_json_and_names_versions_and_machine():
    record = json.loads(json.dumps(provenance(dtype="float32")))
    assert record["torch"] == torch.__version__ and record["dtype"] == "float32"
    assert record["threads"] == torch.get_num_threads() and record["device"]


def test_short_columns_are_part_of_the_whole_record():
    whole, short = provenance(), provenance_short()
    assert set(short) == set(SHORT)
    assert {name for name in SHORT if name != "git_sha" and short[name] != whole[name]} == set()


def test_origin_names_the_target_and_changes_with_the_drafters_weights_alone(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(b"one")
    first = origin(fingerprint="f0", dtype="float32", drafter=tmp_path, accept="exact")
    assert set(provenance()) < set(first)
    assert (first["target_fingerprint"], first["dtype"], first["accept"]) == ("f0", "float32", "exact")
    (tmp_path / "learning_curve.csv").write_text("step")
    assert origin(fingerprint="f0", dtype="float32", drafter=tmp_path)["drafter_sha256"] == first["drafter_sha256"]
    (tmp_path / "model.safetensors").write_bytes(b"two")
    assert origin(fingerprint="f0", dtype="float32", drafter=tmp_path)["drafter_sha256"] != first["drafter_sha256"]
    assert origin(fingerprint="f0", dtype="float32")["drafter_sha256"] is None


def test_an_origin_stands_beside_its_file(tmp_path):
    records = tmp_path / "new" / "gsm8k-T0.7-seed0.jsonl"
    write_origin(records, {"git_sha": None})
    assert origin_path(records).name == "gsm8k-T0.7-seed0.origin.json"
    assert [path.name for path in records.parent.iterdir()] == [origin_path(records).name]
    assert json.loads(origin_path(records).read_text()) == {"git_sha": None}


def test_missing_package_is_none():
    assert version("no-such-package-anywhere") is None


def shown(root: Path, **environment: str) -> dict:
    code = "import json; from harness.provenance import provenance; print(json.dumps(provenance()))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=root,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(done.stdout)


def test_copy_without_repository_and_machine_without_git_have_no_commit(tmp_path):
    (tmp_path / "harness").mkdir()
    for name in ("__init__.py", "provenance.py", "stage.py"):
        shutil.copy(ROOT / "harness" / name, tmp_path / "harness" / name)
    shutil.copytree(ROOT / "methods", tmp_path / "methods", ignore=shutil.ignore_patterns("__pycache__"))
    assert shown(tmp_path)["git_sha"] is None
    assert shown(ROOT, PATH="")["git_sha"] is None
