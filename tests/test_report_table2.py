"""Table 2: medians over repeats, speed-ups over the baseline of the same repeat and level, and what is said of them."""

from __future__ import annotations

import csv
import json

import pytest
from matplotlib import pyplot as plt

from harness.config import load_config
from harness.report import table2
from harness.report.columns import CONCURRENCY, read_table, table_text
from harness.report.figures_concurrency import draw_concurrency
from harness.report.inputs import ReportError
from harness.report.table2 import build_rows, read_printed, rows_of, table_csv, table_md

MACHINE = {"device": "a machine", "dtype": "float32"}
#: Tokens a second by method and level, a value a repeat.
SPEEDS = {
    "ar": {1: (100, 100, 200), 8: (400, 400, 400)},
    "dflash": {1: (200, 150, 500), 8: (300, 300, 300)},
    "dflow": {1: (300, 330, 360), 8: (380, 420, 440)},
}


def measured(speeds=SPEEDS, target="pocket", suite="pocket_word", **over):
    rows = []
    for method, levels in speeds.items():
        for level, values in levels.items():
            about = {"target": target, "method": method, "suite": suite, "concurrency": level, "max_proposals": None}
            about |= {"prompts": 20, "machine": MACHINE}
            rows.append(about | {"kind": "first", "seconds": 9.0})
            for repeat, value in enumerate(values):
                row = {"kind": "load", "repeat": repeat, "tokens": 1020, "seconds": 1020 / value}
                rows.append(about | row | {"steps": 500, "rounds": 500 // level, "unlike_ar": 0} | over)
    return rows


def test_speed_ups_are_those_of_one_repeat_and_medians_of_them():
    rows = {(row["method"], row["concurrency"]): row for row in build_rows(measured(), {})}
    flash = rows["dflash", 1]
    assert flash["tokens_per_s"] == pytest.approx(200) and flash["speedup"] == pytest.approx(2.0)
    assert (flash["speedup_low"], flash["speedup_high"]) == (pytest.approx(1.5), pytest.approx(2.5))
    assert (flash["tokens_per_s_low"], flash["tokens_per_s_high"]) == (pytest.approx(150), pytest.approx(500))
    assert rows["dflow", 8]["speedup"] == pytest.approx(1.05) and rows["ar", 8]["speedup"] == 1
    assert flash["tau"] == pytest.approx(2.0), "tokens of the prefill are no step's"
    assert rows["dflow", 8]["busy_rows"] == pytest.approx(500 / 62) and flash["first_s"] == 9


def test_without_the_baseline_there_is_no_speed_up():
    rows = build_rows(measured({"dflow": SPEEDS["dflow"]}, unlike_ar=None), {})
    assert {row["speedup"] for row in rows} == {None} == {row["unlike_ar"] for row in rows}
    assert "(" not in table_md(rows, {}).split("| pocket | pocket_word | dflow |")[1].split("\n")[0]


def test_the_wide_table_has_a_column_a_level():
    lines = list(csv.DictReader(table_csv(build_rows(measured(), {})).splitlines()))
    assert list(lines[0]) == ["target", "suite", "method", "1", "8", "speedup_1", "speedup_8"]
    assert lines[1] == dict(zip(lines[0], ["pocket", "pocket_word", "dflash", "200", "300", "2", "0.75"], strict=True))
    missing = measured() + measured({"ar": {16: (1, 1, 1)}}, suite="other")
    assert list(csv.DictReader(table_csv(build_rows(missing, {})).splitlines()))[0]["16"] == ""


def test_where_drafting_stops_paying_is_said():
    text = table_md(build_rows(measured(), {}), {})
    said = {
        line.split(" | ")[2]: line.split(" | ")[-1].removesuffix(" |")
        for line in text.splitlines()
        if "pocket_" in line
    }
    assert said["dflash"] == "below 8"
    assert said["dflow"] == "at every level; repeats differ at 8"
    slow = SPEEDS | {"dflash": {1: (50, 50, 50), 8: (50, 50, 50)}}
    assert "| nowhere |" in table_md(build_rows(measured(slow), {}), {})


def test_outputs_unlike_the_baselines_are_said_loudly_and_the_others_once():
    good = table_md(build_rows(measured(), {}), {})
    assert "every output of every method is that of `ar`" in good and "**pocket" not in good
    bad = build_rows(measured(unlike_ar=3), {})
    assert "**pocket, pocket_word, dflow at 8: 3 of 20 outputs are not those of `ar`**" in table_md(bad, {})


def test_a_cap_of_the_draft_length_is_said():
    rows = build_rows(measured(max_proposals=7), {})
    assert "8 at a time: 20 prompts a suite, 8.1 to 8.1 rows busy; at most 7 proposals a round" in table_md(rows, {})


def test_the_papers_numbers_stand_beside_ours_for_its_own_targets_alone():
    printed = read_printed(table2.project_path("results/reported"))
    assert printed["qwen3-4b", "gsm8k", "dflow", 32][0] == 3208.95
    ours = build_rows(measured({"ar": {1: (1,)}, "dflow": {1: (2,)}}, "Qwen3-4B", "gsm8k"), printed)
    assert ours[1]["reported"] == 376.26 and ours[1]["reported_speedup"] == pytest.approx(376.26 / 146.25)
    assert {row["reported"] for row in build_rows(measured(), printed)} == {None}
    text = table_md(ours, printed)
    assert "| qwen3-4b | gsm8k | dflow | 2.57 |" in text and "## Reported" not in table_md(ours, {})


def written(tmp_path, rows):
    path = tmp_path / "out" / "throughput" / "pocket.jsonl"
    path.parent.mkdir(parents=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    over = {"output_dir": str(tmp_path / "out"), "methods": ["ar", "dflow", "dflash"]}
    return load_config("pocket", over | {"concurrency": {"suites": ["pocket_word"]}})


def test_rows_stand_in_the_order_of_the_configuration(tmp_path):
    rows = rows_of(written(tmp_path, measured()[::-1]))
    assert [(row["method"], row["concurrency"]) for row in rows] == [
        (method, level) for method in ("ar", "dflow", "dflash") for level in (1, 8)
    ]


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        (
            [row for row in measured() if row["method"] != "dflash"],
            "has no row of dflash for pocket_word, concurrency 1",
        ),
        (measured()[:3] + measured()[4:], "has no row of ar for pocket_word, concurrency 1, repeat 2"),
        ([{k: v for k, v in row.items() if k != "tokens"} for row in measured()], "row 2 has no field tokens"),
    ],
)
def test_a_file_that_is_not_whole_is_refused(tmp_path, rows, words):
    with pytest.raises(ReportError, match=f"pocket.jsonl.*{words}.*measure again"):
        rows_of(written(tmp_path, rows))


def test_missing_files_and_tables_are_said(tmp_path):
    with pytest.raises(ReportError, match="is missing; make it with python -m harness.throughput"):
        rows_of(load_config("pocket", {"output_dir": str(tmp_path)}))
    with pytest.raises(ReportError, match="names no suite"):
        rows_of(load_config("pocket", {"concurrency": {"suites": []}}))


def test_the_figure_shows_every_method_within_its_axes(tmp_path):
    rows = build_rows(measured() + measured(suite="pocket_complete"), {})
    path = tmp_path / "concurrency.csv"
    path.write_text(table_text(CONCURRENCY, rows))
    figure = draw_concurrency(read_table(path, CONCURRENCY, "x"))
    for axis in figure.axes:
        top, highs = axis.get_ylim()[1], [row["speedup_high"] for row in rows if row["method"] != "ar"]
        assert top > max(highs) and axis.get_ylim()[0] == 0
        assert [text.get_text() for text in axis.get_xticklabels()] == ["1", "8"]
    assert [text.get_text() for text in figure.axes[-1].get_legend().get_texts()] == ["dflash", "dflow"]
    plt.close("all")
    with pytest.raises(ReportError, match="no speed-up over 'ar'"):
        draw_concurrency([row for row in read_table(path, CONCURRENCY, "x") if row["method"] == "ar"])
