"""Reports from files: whole ones make tables, damaged, cut or doubled ones are refused by name."""

from __future__ import annotations

import json

import pytest
import yaml

from harness.config import load_config
from harness.gauge import main as gauge_main
from harness.pocket.world import SUITES
from harness.report.cells import main as cells_main
from harness.report.columns import read_cells
from harness.report.figures import main as figures_main
from harness.report.inputs import Key, ReportError, drafter_folder, read_inputs, record_path
from harness.report.table1 import main as table_main
from tests.test_report import record, timing_rows

METHODS, SEEDS = ("ar", "dflash"), (0, 1)


def write(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.fixture
def small(tmp_path):
    """A configuration file, and whole records, timing rows and marks of it in tmp_path/out."""
    suite = {"source": "pocket", "prompts": 3, "max_new_tokens": 9}
    config = {
        "extends": "smoke",
        "profile": "small",
        "output_dir": str(tmp_path / "out"),
        "figures_dir": str(tmp_path / "figures"),
        "methods": list(METHODS),
        "temperatures": [0],
        "seeds": list(SEEDS),
        "targets": {"pocket": None, "tiny": {"source": "tiny/model"}},
        "suites": {**dict.fromkeys(SUITES), "a": suite, "b": suite},
        "concurrency": {"suites": []},
    }
    (tmp_path / "small.yaml").write_text(yaml.safe_dump(config))
    for method in METHODS:
        for suite in "ab":
            for seed in SEEDS:
                rows = [record(method, suite, prompt, seed) for prompt in range(3)]
                write(record_path(tmp_path / "out", "tiny", method, suite, 0, seed), rows)
    write(tmp_path / "out" / "timing" / "tiny.jsonl", timing_rows())
    write(drafter_folder(tmp_path / "out", "tiny", "dflash", 0) / "done.json", [{"plateau": True}])  # one object
    return tmp_path / "small.yaml"


def path_of(small, method="dflash", suite="b", seed=1):
    return record_path(small.parent / "out", "tiny", method, suite, 0, seed)


def read(small, **more):
    return read_inputs(load_config(small, check=False), **more)


def test_the_commands_make_the_same_tables_from_the_same_files(small, tmp_path):
    made = []
    for name in ("one", "two"):
        folder = tmp_path / name
        cells_main(["--config", str(small), "--out", str(folder / "cells.csv")])
        table_main(["--cells", str(folder / "cells.csv"), "--out", str(folder / "table1.csv")])
        made.append({path.name: path.read_text() for path in sorted(folder.iterdir())})
    assert made[0] == made[1] and set(made[0]) == {"cells.csv", "table1.csv", "table1.md"}
    assert made[0]["table1.csv"].splitlines()[0] == "temperature,target,method,a,b,avg"
    assert len(made[0]["cells.csv"].splitlines()) == 1 + 2 * 3


def test_missing_records_name_the_file_and_the_stage_unless_they_may_be_missing(small):
    path_of(small).unlink()
    with pytest.raises(ReportError, match=r"b-T0-seed1.jsonl is missing; make it with .*run_suite"):
        read(small)
    path_of(small, seed=0).unlink()
    assert Key("tiny", "dflash", 0.0, "b") not in read(small, allow_missing=True).records


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda rows: rows[:1], r"holds 1 of the 3 prompts that the suite asks for; .*decode again"),
        (lambda rows: [], "holds 0 of the 3 prompts"),
        (lambda rows: [*rows, rows[0]], "prompt b/0, turn 0 stands there 2 times"),
        (lambda rows: [rows[0] | {"seed": 0}, *rows[1:]], "record 1: seed is 0, the path says 1"),
        (lambda rows: [*rows[:2], rows[2] | {"temperature": 1.0}], "record 3: temperature is 1.0, the path says 0"),
        (lambda rows: [*rows[:2], rows[2] | {"prompt_id": "b/9"}], r"answer different prompts \(only one has b/2"),
        (lambda rows: [*rows, rows[2] | {"turn": 1}], r"answer different prompts \(only one has b/2, turn 1"),
        (lambda rows: [*rows[:2], {"score": 1.0, **dict(list(rows[2].items())[:-7])}], "row 3 has no field committed"),
        (lambda rows: [5, *rows[1:]], "row 1 has no field target"),
    ],
)  # fmt: skip
def test_records_that_are_not_whole_are_refused_by_name(small, change, message):
    path = path_of(small)
    write(path, change([json.loads(line) for line in path.read_text().splitlines()]))
    for allow_missing in (False, True):
        with pytest.raises(ReportError, match=message) as error:
            read(small, allow_missing=allow_missing)
        assert str(path) in str(error.value)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("records/tiny/dflash/b-T0-seed1.jsonl", '{"half": ', "line 1: not JSON"),
        ("records/tiny/dflash/b-T0-seed1.origin.json", '{"half": ', "damaged .* run python -m harness.run_suite"),
        ("drafters/tiny/dflash-seed0/done.json", '{"half": "', "damaged .* run python -m harness.train again"),
        ("drafters/tiny/dflash-seed0/done.json", "[]", "holds no JSON object"),
        ("timing/tiny.jsonl", '{"kind": "run"}', "row 1 has no field target, method, .* time again"),
        ("timing/tiny.jsonl", json.dumps(timing_rows()[0] | {"kind": "walk"}), "kind 'walk' is unknown"),
        ("timing/tiny.jsonl", json.dumps({**timing_rows()[0], "kind": "phases"}), "row 1 has no field steps"),
    ],
)
def test_damaged_files_are_named_with_the_mend(small, name, text, message):
    path = small.parent / "out" / name
    path.write_text(text)
    with pytest.raises(ReportError, match=message) as error:
        read(small)
    assert str(path) in str(error.value)


def test_origins_beside_record_files_are_read(small):
    path_of(small).with_suffix(".origin.json").write_text('{"git_sha": "abc"}')
    found = read(small)
    assert found.origins[Key("tiny", "dflash", 0.0, "b")] == [{"git_sha": "abc"}]
    assert found.origins[Key("tiny", "dflash", 0.0, "a")] == []


def test_another_table_is_no_cells_file(tmp_path, capsys):
    path = tmp_path / "cells.csv"
    with pytest.raises(ReportError, match="is missing; make it with python -m harness.report.cells"):
        read_cells(path)
    path.write_text("method,score\ndflash,1\n")
    with pytest.raises(SystemExit):
        table_main(["--cells", str(path), "--out", str(tmp_path / "table1.csv")])
    assert "has no column target, temperature, suite" in capsys.readouterr().err


@pytest.mark.parametrize("command", [cells_main, figures_main, gauge_main])
def test_a_misspelt_profile_is_an_error_and_no_traceback(command, capsys):
    with pytest.raises(SystemExit) as left:
        command(["--config", "poket"])
    assert left.value.code == 2 and "unknown profile 'poket'" in capsys.readouterr().err
