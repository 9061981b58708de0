"""Provenance says what it can find out, and does without the rest."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import torch

from harness.provenance import SHORT, provenance, provenance_short, version

ROOT = Path(__file__).parent.parent


def test_record_is_plain_json_and_names_versions_and_machine():
    record = json.loads(json.dumps(provenance(dtype="float32")))
    assert record["torch"] == torch.__version__ and record["dtype"] == "float32"
    assert record["threads"] == torch.get_num_threads() and record["device"]


def test_short_columns_are_part_of_the_whole_record():
    whole, short = provenance(), provenance_short()
    assert set(short) == set(SHORT)
    assert {name for name in SHORT if name != "git_sha" and short[name] != whole[name]} == set()


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
