"""Table 3, comparisons and positions from files: which entrants, in which order, with whose training, and what is
missing."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
import yaml

from harness.config import load_config
from harness.pocket.world import SUITES
from harness.report.cells import main as cells_main
from harness.report.columns import COMPARED, POSITIONS, read_cells, read_table
from harness.report.figures import main as figures_main
from harness.report.figures_training import read_curves
from harness.report.inputs import ReportError, drafter_folder, read_inputs, record_path
from harness.report.latency import main as latency_main
from harness.report.positions import build_positions, positions_of
from harness.report.positions import main as positions_main
from harness.report.table3 import decoded_pairs, describe
from harness.report.table3 import main as table_main
from tests.test_report import compare, record, timing_rows

SEEDS = (0, 1)
#: Entrant -> whose steps of tests.test_report its records have.
LIKE = {"ar": "ar", "dflash": "dflash", "dflow": "dflow", "rounds": "dflash", "off": "dflash"}
MARKS = {"dflash": (True, 600, 100), "dflow": (False, 1200, 100), "rounds": (True, 900, 150)}
CURVE = "step,loss,accept_walk\n1,3.0,1.0\n2,2.0,1.5\n"


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.fixture
def folder(tmp_path):
    """A configuration file and everything that it asks for, in tmp_path/out."""
    suite = {"source": "pocket", "prompts": 3, "max_new_tokens": 9}
    config = {
        "extends": "smoke",
        "profile": "small",
        "output_dir": str(tmp_path / "out"),
        "figures_dir": str(tmp_path / "figures"),
        "methods": ["ar", "dflash", "dflow"],
        "variants": {
            "rounds": {"method": "dflash", "train": {"rounds": 2}, "label": "more | rounds"},
            "off": {"weights": "dflow", "relay": "off", "label": "relay off"},
            "never": {"method": "dflow", "label": "not run"},
        },
        "ablations": ["off", "dflow", "rounds", "dflash"],
        "comparisons": [["dflow", "dflash"], ["dflow", "off"], ["never", "dflash"]],
        "temperatures": [0],
        "seeds": list(SEEDS),
        "report": {"bootstrap": 200, "figure_formats": ["png"]},
        "targets": {"pocket": None, "tiny": {"source": "tiny/model"}},
        "suites": {**dict.fromkeys(SUITES), "a": suite, "b": suite},
        "concurrency": {"suites": []},
    }
    (tmp_path / "small.yaml").write_text(yaml.safe_dump(config))
    for entrant, like in LIKE.items():
        for suite in "ab":
            for seed in SEEDS:
                rows = [record(entrant, suite, prompt, seed, like=like) for prompt in range(3)]
                path = record_path(tmp_path / "out", "tiny", entrant, suite, 0, seed)
                write(path, "".join(json.dumps(row) + "\n" for row in rows))
    for entrant, (plateau, seconds, steps) in MARKS.items():
        for seed in SEEDS:
            at = drafter_folder(tmp_path / "out", "tiny", entrant, seed)
            marks = {"plateau": plateau, "seconds": seconds + 60 * seed, "steps": steps}
            write(at / "done.json", json.dumps(marks))
            write(at / "learning_curve.csv", CURVE)
    write(tmp_path / "out" / "timing" / "tiny.jsonl", "".join(json.dumps(row) + "\n" for row in timing_rows()))
    return tmp_path


@pytest.fixture
def config(folder):
    return load_config(folder / "small.yaml", check=False)


def run(command, folder, *arguments):
    command(["--config", str(folder / "small.yaml"), *arguments])


def rows_of(path):
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_tables_equal_the_golden_files(folder, capsys):
    run(table_main, folder)
    for name in ("table3.csv", "table3.md", "comparisons.csv"):
        compare(name, (folder / "out" / name).read_text())
    assert "comparisons.csv and" in capsys.readouterr().out


def test_a_row_has_the_training_of_the_drafter_that_decoded(folder):
    run(table_main, folder, "--out", str(folder / "t.csv"))
    rows = rows_of(folder / "t.csv")
    assert [row["entrant"] for row in rows] == ["off", "dflow", "rounds", "dflash"]  # as `ablations` has them
    assert [(row["recipe"], row["weights"], row["relay"]) for row in rows] == [
        ("dflow", "dflow", "off"),
        ("dflow", "dflow", "on"),
        ("dflash", "rounds", "none"),
        ("dflash", "dflash", "none"),
    ]
    assert [row["steps"] for row in rows] == ["100", "100", "150", "100"]
    assert [float(row["train_minutes"]) for row in rows] == [20.5, 20.5, 15.5, 10.5]
    flags = [row["flags"].split(":")[0] for row in rows]
    assert flags == ["under-trained", "under-trained", "", ""]
    assert [row["avg"] for row in rows] == ["2.000", "2.571", "2.000", "2.000"]
    assert list(rows[0])[:4] == ["temperature", "target", "entrant", "label"]
    assert rows[0]["avg_by_seed"] == "2.000 2.000"
    assert (folder / "comparisons.csv").is_file() and (folder / "ablations.csv").is_file()  # beside --out


def test_cells_of_an_ablation_are_those_of_table_1(folder, config):
    run(cells_main, folder)
    ours = {cell["suite"]: cell["tau"] for cell in rows_of(folder / "out/cells.csv") if cell["method"] == "dflow"}
    run(table_main, folder)
    found = read_cells(folder / "out/ablations.csv")
    assert {cell["suite"]: cell["tau"] for cell in found if cell["method"] == "dflow"} == ours
    assert [cell["method"] for cell in found[::3]] == ["off", "dflow", "rounds", "dflash"]  # three rows each
    assert {cell["method"] for cell in rows_of(folder / "out/cells.csv")} == {"ar", "dflash", "dflow"}


def test_cells_need_no_records_of_ablations_and_table_3_names_those_it_misses(folder, config, capsys):
    gone = record_path(folder / "out", "tiny", "off", "b", 0, 1)
    gone.unlink()
    run(cells_main, folder)
    with pytest.raises(SystemExit) as left:
        run(table_main, folder)
    assert left.value.code == 2 and "off/b-T0-seed1.jsonl is missing" in capsys.readouterr().err
    for path in gone.parent.glob("*"):
        path.unlink()
    run(table_main, folder, "--allow-missing")
    rows, text = rows_of(folder / "out/table3.csv"), (folder / "out/table3.md").read_text()
    assert rows[0]["entrant"] == "off" and rows[0]["flags"] == "no records" and rows[0]["avg"] == rows[0]["seeds"] == ""
    assert "* tiny, T = 0: no records of `off`." in text
    assert "* `dflow` over `off` on tiny, T = 0 is left out: they have no records of the same suite and seed." in text


def test_a_suite_that_an_ablation_lacks_is_a_hole_and_no_shift(folder):
    for seed in SEEDS:
        record_path(folder / "out", "tiny", "off", "a", 0, seed).unlink()
    run(table_main, folder, "--allow-missing")
    rows = rows_of(folder / "out/table3.csv")
    assert (rows[0]["a"], rows[0]["b"], rows[0]["avg"], rows[0]["avg_by_seed"]) == ("", "2.000", "", "")
    assert rows[0]["flags"].startswith("no average: a missing")
    assert "no average, for both have no records of a" in (folder / "out/table3.md").read_text()


def test_pairs_that_nobody_decodes_are_named(config):
    pairs, notes = decoded_pairs(config)
    assert pairs == [("dflow", "dflash"), ("dflow", "off")]
    assert notes == ["`never` over `dflash` is left out: `never` is neither among `methods` nor `ablations`."]


def test_a_seed_that_only_one_side_has_is_left_out_and_one_seed_says_so(folder):
    for suite in "ab":
        record_path(folder / "out", "tiny", "off", suite, 0, 1).unlink()
    run(table_main, folder, "--allow-missing")
    seeds = {(row["first"], row["second"]): row["seeds"] for row in rows_of(folder / "out/comparisons.csv")}
    assert seeds == {("dflow", "dflash"): "2", ("dflow", "off"): "1"}
    text = (folder / "out/table3.md").read_text()
    assert "left out, for only `dflow` has it: seed 1." in text
    assert text.count("**With one seed the interval is over prompts only.**") == 2  # of the table, of comparisons


def test_relay_is_told_from_the_recipe_and_the_variant(config):
    assert describe(config, "ar") == {"label": "ar", "recipe": "ar", "weights": "ar", "relay": "none"}
    assert describe(config, "off") == {"label": "relay off", "recipe": "dflow", "weights": "dflow", "relay": "off"}


def test_the_papers_table_stands_beside_with_its_own_gains(folder):
    run(table_main, folder)
    text = (folder / "out/table3.md").read_text()
    assert "| 0 | Qwen3-1.7B | dflow | 3.93 | +10.4 % | arXiv:2609.06498 Table 3 |" in text
    assert "| 0 | Qwen3-1.7B | dflow_domino_teacher | 2.22 |  | arXiv:2609.06498 Section 6 |" in text
    run(table_main, folder, "--reported", str(folder / "nowhere"))
    assert "Reported elsewhere" not in (folder / "out/table3.md").read_text()


def test_a_configuration_without_ablations_and_comparisons_is_told(folder, capsys):
    settings = yaml.safe_load((folder / "small.yaml").read_text()) | {"ablations": [], "comparisons": []}
    (folder / "small.yaml").write_text(yaml.safe_dump(settings))
    with pytest.raises(SystemExit):
        run(table_main, folder)
    assert "neither ablations nor comparisons" in capsys.readouterr().err


def test_positions_have_every_entrant_that_drafts_and_a_sum_over_suites(folder, config):
    run(positions_main, folder)
    rows = read_table(folder / "out/positions.csv", POSITIONS, "harness.report.positions")
    assert list(dict.fromkeys(row["entrant"] for row in rows)) == ["dflash", "dflow", "off", "rounds"]
    first = [row for row in rows if row["entrant"] == "dflow" and row["position"] == "1"]
    assert [row["suite"] for row in first] == ["a", "b", "all"] and {row["seeds"] for row in first} == {"2"}
    for name in ("rounds", "accepted", "relayed", "rescued", "bare", "bare_tried"):
        assert int(first[2][name]) == int(first[0][name]) + int(first[1][name])
    # each of both seeds has responses that accept 3 1, 4 0 and 2 0 1, and a first proposal in 5 of 7 rounds
    assert (first[0]["rounds"], first[0]["accepted"]) == ("14", "10")
    assert float(first[0]["accepted_prefix"]) == pytest.approx(10 / 14, abs=1e-5)


def test_positions_without_a_suite_have_no_sum(folder, config):
    inputs = read_inputs(config, entrants=["dflash"], timing=False)
    del inputs.records[next(key for key in inputs.records if key.suite == "b")]
    assert {row["suite"] for row in build_positions(inputs)} == {"a"}


def test_positions_that_cannot_be_are_told(config):
    plain = config.model_copy(update={"methods": ["ar"], "ablations": []})
    with pytest.raises(ReportError, match=r"\['ar'\], of which none drafts"):
        positions_of(plain)
    named = config.model_copy(update={"suites": {"all": config.suites["a"]}})
    with pytest.raises(ReportError, match="'all' would be taken for the sum"):
        positions_of(named)


def test_positions_of_records_without_traces_are_told(folder, config):
    for path in (folder / "out/records").rglob("*.jsonl"):
        rows = [json.loads(line) | {"trace": None} for line in path.read_text().splitlines()]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(ReportError, match="decode.trace: true"):
        positions_of(config)


def test_another_or_a_missing_table_is_named_with_its_stage(tmp_path):
    path = tmp_path / "comparisons.csv"
    with pytest.raises(ReportError, match="is missing; make it with python -m harness.report.table3"):
        read_table(path, COMPARED, "harness.report.table3")
    path.write_text("target,first\n")
    with pytest.raises(ReportError, match="no column temperature, second, suite"):
        read_table(path, COMPARED, "harness.report.table3")
    path.write_text(",".join(COMPARED) + "\n")
    assert read_table(path, COMPARED, "harness.report.table3") == []


def test_every_figure_is_drawn_from_the_files_of_a_run(folder):
    for command in (cells_main, table_main, positions_main, latency_main):
        run(command, folder)
    run(figures_main, folder)
    assert sorted(path.stem for path in (folder / "figures").iterdir()) == [
        "acceptance",
        "dose",
        "latency_breakdown",
        "position",
        "training",
    ]


def test_one_figure_is_drawn_from_the_paths_given(folder):
    for command, name in ((table_main, "table3"), (positions_main, "positions")):
        run(command, folder, "--out", str(folder / "else" / f"{name}.csv"))
    run(figures_main, folder, "--only", "position", "--positions", str(folder / "else/positions.csv"))
    run(figures_main, folder, "--only", "dose", "--comparisons", str(folder / "else/comparisons.csv"))
    assert sorted(path.name for path in (folder / "figures").iterdir()) == ["dose.png", "position.png"]


def test_dose_is_left_out_where_nothing_is_compared_with_the_baseline_unless_asked_for(folder, capsys):
    settings = yaml.safe_load((folder / "small.yaml").read_text()) | {"comparisons": [["dflow", "off"]]}
    (folder / "small.yaml").write_text(yaml.safe_dump(settings))
    for command in (cells_main, table_main, positions_main, latency_main, figures_main):
        run(command, folder)
    assert not (folder / "figures" / "dose.png").exists()
    with pytest.raises(SystemExit):
        run(figures_main, folder, "--only", "dose")
    assert "holds no gain over 'dflash'" in capsys.readouterr().err


def test_curves_are_those_of_drafters_that_were_trained_here(config):
    entrants = list(dict.fromkeys(name for _, name, _ in read_curves(config)))
    assert entrants == ["dflash", "dflow", "rounds"]  # off decodes with those of dflow
