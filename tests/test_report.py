"""Reports: pure functions of files, compared with golden files made from tiny hand-made records."""

from __future__ import annotations

import csv
import io
from dataclasses import replace
from pathlib import Path

import pytest

from harness.report import inputs as reading
from harness.report.cells import Settings, build_cells
from harness.report.columns import COLUMNS, cells_text
from harness.report.inputs import Inputs, Key, read_reported
from harness.report.table1 import table_csv, table_md

GOLDEN = Path(__file__).parent / "golden"
SETTINGS = Settings(resamples=200)
#: Accepted proposals by step, for each prompt; every response commits six tokens behind the prefill's.
STEPS = {
    "ar": [[0] * 6] * 3,
    "dflash": [[2, 0, 3], [3, 1], [1, 0, 0, 1]],
    "dflow": [[3, 1], [4, 0], [2, 0, 1]],
}
SCORES = {"a": (1.0, "right"), "b": (None, None)}


def record(method, suite, prompt, seed, temperature=0.0, like=None):
    """Every other verify row behind a rejected token still names the token that is committed there.

    like: the method of STEPS whose steps these are (default: `method` itself).
    """
    like = like or method
    accepted = list(STEPS[like][(prompt + seed) % 3 if like == "dflow" else prompt])
    committed = [a + 1 for a in accepted]
    committed[-1] -= sum(committed) - 6
    output = [10 + prompt, 1, 2, 3, 4, 5, 6]
    score, verdict = SCORES[suite]
    if prompt == 2 and score is not None:
        score, verdict = 0.0, "no_answer"
    trace, at = None if like == "ar" else {"proposals": [], "argmax": []}, 1
    for a in accepted if trace else ():
        true = [*output[at:], *[77] * 10]
        trace["proposals"].append([true[k] if k < a else 99 for k in range(4)])
        trace["argmax"].append([true[k] if k <= a or k % 2 else 98 for k in range(5)])
        at += a + 1
    return {"target": "tiny", "method": method, "suite": suite, "temperature": temperature, "seed": seed,
            "prompt_id": f"{suite}/{prompt}", "turn": 0, "prompt_sha": "0", "prompt_tokens": 3,
            "output_ids": output, "accepted": accepted, "committed": committed, "stop": "budget", "text": "",
            "score": score, "verdict": verdict, "trace": trace, "seconds": 0.1}  # fmt: skip


def timing_rows():
    machine = {"device": "two cores", "threads": 2, "torch": "2.13", "git_sha": None}
    rows = []
    for method, seconds, (verify, draft, committed) in (
        ("ar", 2.0, (0.6, 0.0, 60)),
        ("dflash", 1.0, (0.4, 0.1, 120)),
        ("dflow", 0.8, (0.4, 0.1, 180)),
    ):
        base = {"target": "tiny", "method": method, "temperature": 0.0, "machine": machine}
        if method == "ar":
            rows += [
                {
                    "kind": "run",
                    **base,
                    "method": "generate",
                    "suite": "a",
                    "prompt_id": "p",
                    "repeat": r,
                    "tokens": 7,
                    "seconds": 2.5,
                    "same_as_ar": True,
                }
                for r in range(3)
            ]
        rows.append({"kind": "first", **base, "suite": "a", "seconds": 9.0, "tokens": 7})
        for repeat in range(3):
            for suite in "ab":
                rows.append({"kind": "run", **base, "suite": suite, "repeat": repeat, "prompt_id": "p",
                             "tokens": 7, "seconds": seconds + repeat / 10})  # fmt: skip
        phases = {"verify": verify, "draft": draft, "accept": 0.01, "commit": 0.01, "observe": 0.0}
        rows.append({"kind": "phases", **base, "suite": "a", "steps": 60, "committed": committed,
                     "rounds_seconds": verify + draft + 0.05, "whole_seconds": 0.5, "phases": phases})  # fmt: skip
    return rows


@pytest.fixture(scope="module")
def inputs():
    records = {}
    for method in STEPS:
        for suite in "ab":
            rows = [record(method, suite, p, s) for s in (0, 1) for p in range(3)]
            records[Key("tiny", method, 0.0, suite)] = rows
    return Inputs(
        targets=("tiny",),
        methods=tuple(STEPS),
        temperatures=(0.0,),
        suites=("a", "b"),
        records=records,
        digests={key: "0123456789ab" for key in records},
        timing=timing_rows(),
        done={("tiny", "dflash"): [{"plateau": False}, {"plateau": True, "walk_gain_last_third": 0.01}]},
        origins={
            key: [{"git_sha": "0123456789abcdef", "dirty": False, "dtype": "float32", "target_fingerprint": "f0"}]
            for key in records
        },
        reported={("tiny", "dflash", 0.0, "a"): (3.5, "paper Table 1")},
    )


@pytest.fixture(scope="module")
def cells(inputs):
    return read(build_cells(inputs, SETTINGS))


def cell(cells, method, suite):
    return next(c for c in cells if (c["method"], c["suite"]) == (method, suite))


def read(rows):
    return list(csv.DictReader(io.StringIO(cells_text(rows))))


def compare(name, text):
    """Equal to the golden file. To accept a wanted change: write the new text there and read the difference."""
    assert text == (GOLDEN / name).read_text(encoding="utf-8")


def test_cells_equal_the_golden_file(inputs):
    compare("cells.csv", cells_text(build_cells(inputs, SETTINGS)))


def test_tables_equal_the_golden_files(cells, inputs):
    compare("table1.csv", table_csv(cells))
    compare("table1.md", table_md(cells, dict(inputs.reported)))


def test_a_report_does_not_depend_on_the_order_of_lines(inputs):
    turned = {key: rows[::-1] for key, rows in reversed(inputs.records.items())}
    again = replace(inputs, records=turned, timing=inputs.timing[::-1])
    assert cells_text(build_cells(again, SETTINGS)) == cells_text(build_cells(inputs, SETTINGS))


def test_hand_counted_numbers(cells):
    ours = cell(cells, "dflash", "a")
    # two seeds of 6 committed tokens in 3, 2 and 4 steps; the third step of the first accepted 3 and was cut to 2
    assert float(ours["tau"]) == pytest.approx(18 / 9, abs=1e-5)
    assert float(ours["tau_macro"]) == pytest.approx((2 + 3 + 1.5) / 3, abs=1e-5)
    assert float(ours["tau_unclipped"]) == pytest.approx((8 / 3 + 3 + 1.5) / 3, abs=1e-5)
    assert float(ours["tau_with_prefill"]) == pytest.approx(21 / 9, abs=1e-5)
    assert ours["histogram"] == "6 6 2 4"
    assert float(ours["accuracy"]) == pytest.approx(2 / 3, abs=1e-5) and ours["no_answer"] == "2"
    assert ours["outputs_unlike_ar"] == "0" and ours["reported"] == "3.5"
    assert ours["flags"] == "under-trained: 1 of 2 drafters had not reached their plateau"
    assert cell(cells, "ar", "a")["tau"] == "1" and cell(cells, "ar", "a")["relay_rounds"] == ""
    assert cell(cells, "dflash", "b")["accuracy"] == "" and cell(cells, "dflash", "avg")["reported"] == ""
    assert float(cell(cells, "dflow", "avg")["gain"]) == pytest.approx(9 / 7 - 1, abs=1e-5)
    assert cell(cells, "dflash", "a")["gain"] == ""


def test_outputs_and_verdicts_unlike_plain_decoding_are_counted(inputs):
    key = Key("tiny", "dflash", 0.0, "a")
    rows = [dict(r) for r in inputs.records[key]]
    rows[0] |= {"output_ids": [0] * 7, "verdict": "wrong", "score": 0.0}
    changed = replace(inputs, records={**inputs.records, key: rows})
    row = next(r for r in build_cells(changed, SETTINGS) if (r["method"], r["suite"]) == ("dflash", "a"))
    assert (row["outputs_unlike_ar"], row["verdicts_unlike_ar"]) == (1, 1)


def test_the_wide_table_has_the_papers_columns(cells):
    lines = table_csv(cells).splitlines()
    assert lines[0] == "temperature,target,method,a,b,avg" and lines[1] == "0,tiny,ar,1.000,1.000,1.000"


def test_every_method_has_its_gain_over_the_baseline_and_what_its_verifier_knew(inputs):
    more = {"domino": "dflash", "dflow_domino": "dflow", "dflash_rounds": "dflow"}  # steps like those of
    records = {**inputs.records}
    for name, like in more.items():
        for suite in "ab":
            rows = [record(name, suite, p, s, like=like) for s in (0, 1) for p in range(3)]
            records[Key("tiny", name, 0.0, suite)] = rows
    names = (*STEPS, *more)
    done = {("tiny", "dflash_rounds"): [{"plateau": False}]}
    found = read(build_cells(replace(inputs, methods=names, records=records, done=done), SETTINGS))
    parts = {part.split("\n")[0]: part for part in table_md(found, {}).split("\n## ")}

    def named(title):
        return [line.split(" | ")[2] for line in parts[title].splitlines() if line.startswith("| 0 ")]

    assert named("Gain over dflash") == [name for name in names if name not in ("ar", "dflash")]
    none = "0.0 % [0.0, 0.0]"  # the same steps as the baseline's
    assert f"| domino | {none} | {none} | {none} | 2 | 0.0 %, 0.0 % |" in parts["Gain over dflash"]
    assert named("What the verifier knew") == [name for name in names[1:] for _ in "ab"]
    assert [line.split(",")[2] for line in table_csv(found).splitlines()[1:]] == list(names)
    assert "* tiny dflash_rounds: **under-trained: 1 of 1 drafters" in table_md(found, {})


def test_reported_averages_stand_beside_ours_only_over_the_same_suites(inputs):
    both = {**inputs.reported, ("tiny", "dflash", 0.0, "b"): (2.5, "paper Table 1")}
    rows = build_cells(replace(inputs, reported=both), SETTINGS)
    row = next(r for r in rows if (r["method"], r["suite"]) == ("dflash", "avg"))
    assert row["reported"] == 3.0 and row["reported_source"] == "our mean of paper Table 1"
    assert "our mean over these suites" in table_md(read(rows), {})


def test_reports_without_timing_or_matching_numbers_still_stand(inputs):
    rows = build_cells(replace(inputs, timing=(), reported={}, done={}), SETTINGS)
    bare = read(rows)
    elsewhere = {("Qwen3-1.7B", "dflash", 0.0, "avg"): (3.56, "arXiv:2609.06498 Table 1")}
    text = table_md(bare, elsewhere)
    assert "Reported elsewhere" in text and "3.56" in text
    assert "## Speed\n\nNot timed: T = 0. Only the temperatures of `timing.temperatures`" in text


def test_a_temperature_that_was_not_timed_is_named_beside_one_that_was(inputs):
    warm = {replace(key, temperature=1.0): rows for key, rows in inputs.records.items()}
    both = replace(inputs, temperatures=(0.0, 1.0), records={**inputs.records, **warm})
    text = table_md(read(build_cells(both, SETTINGS)), {})
    assert "slowest, fastest repeat" in text and "Not timed: T = 1. " in text


def test_an_average_over_some_of_the_suites_is_left_out_and_said_to_be(inputs):
    part = {key: rows for key, rows in inputs.records.items() if (key.method, key.suite) != ("dflow", "b")}
    found = read(build_cells(replace(inputs, records=part), SETTINGS))
    average = cell(found, "dflow", "avg")
    assert {average[name] for name in ("tau", "gain", "accuracy", "tau_macro", "steps")} == {""}
    assert average["flags"] == "no average: b missing" and cell(found, "dflow", "a")["tau"] != ""
    text = table_md(found, {})
    assert "* tiny dflow, avg, T = 0: **no average: b missing**" in text
    assert table_csv(found).splitlines()[3] == "0,tiny,dflow,2.571,,"


def test_an_under_trained_drafter_is_flagged_with_what_its_walk_still_gained(inputs):
    marks = [(True, 0.01), (False, 0.061), (True, None)]
    done = {("tiny", "dflow"): [{"plateau": flat, "walk_gain_last_third": gain} for flat, gain in marks]}
    found = read(build_cells(replace(inputs, done=done), SETTINGS))
    flag = (
        "under-trained: 1 of 3 drafters had not reached their plateau "
        "(accept_walk gained up to 6.1% since the evaluation before the last third)"
    )
    assert cell(found, "dflow", "a")["flags"] == flag and cell(found, "dflash", "a")["flags"] == ""


def test_the_baseline_is_compared_with_generate_on_the_prompts_both_answered_alike(inputs):
    def average(timing):
        found = read(build_cells(replace(inputs, timing=timing), SETTINGS))
        at = cell(found, "ar", "avg")
        said = [line for line in table_md(found, {}).splitlines() if "`generate`" in line and "`ar` on" in line]
        return at["speedup_over_generate"], at["generate_same"], at["generate_timed"], said[0]

    timing = [row for row in inputs.timing if row["method"] != "generate"]
    given = [row for row in inputs.timing if row["method"] == "generate"]
    # The suite without `generate`, b, runs ten times as fast: it must not enter the comparison.
    fast = [row | {"seconds": row["seconds"] / 10} if row.get("suite") == "b" else row for row in timing]
    ratio, same, counted, text = average([*fast, *given])
    assert (float(ratio), same, counted) == (pytest.approx(2.5 / 2.1, rel=1e-3), "1", "1") and "1 of 1 prompts" in text
    other = [row | {"prompt_id": "q", "seconds": 99.0, "same_as_ar": False} for row in given]
    assert average([*fast, *given, *other])[:3] == (ratio, "1", "2")
    nothing = average([*fast, *(row | {"same_as_ar": False} for row in given)])
    assert nothing[:3] == ("", "0", "1") and "all 1 outputs differ" in nothing[3]


def test_one_seed_is_said_to_prove_nothing_and_several_are_listed(inputs):
    single = {key: [r for r in rows if r["seed"] == 0] for key, rows in inputs.records.items()}
    warning = "**With one seed the interval is over prompts only.**"
    text = table_md(read(build_cells(replace(inputs, records=single), SETTINGS)), {})
    assert text.count(warning) == 2 and text.index(warning) < text.index("| T |") < text.rindex(warning)
    assert "| 0 | tiny | dflow | 2.57 [2.25, 3.00] |" in text and "28.6 % |\n" in text
    records = {**inputs.records}
    records[Key("tiny", "dflow", 0.0, "a")] = [
        r if r["seed"] else record("dflow", "a", i % 3, 0) | {"accepted": [5], "committed": [6], "trace": None}
        for i, r in enumerate(inputs.records[Key("tiny", "dflow", 0.0, "a")])
    ]
    found = read(build_cells(replace(inputs, records=records), SETTINGS))
    assert cell(found, "dflow", "a")["gain_by_seed"] == "2 0.285714"
    text = table_md(found, {})
    assert warning not in text and "| 2 | 114.3 %, 28.6 % |" in text


def test_provenance_names_commit_dtype_target_and_hashes_the_parts_of_an_average(inputs):
    key = Key("tiny", "dflow", 0.0, "b")
    other = {"git_sha": None, "dtype": "bfloat16", "target_fingerprint": "f0"}
    origins, digests = {**inputs.origins, key: [other]}, {**inputs.digests, key: "other"}
    found = read(build_cells(replace(inputs, origins=origins, digests=digests), SETTINGS))
    assert "decoded at commit 0123456789ab, float32, target f0" in cell(found, "dflow", "a")["provenance"]
    assert "at commit unknown, bfloat16, target f0" in cell(found, "dflow", "avg")["provenance"]
    hashes = {cell(found, method, "avg")["provenance"].split(";")[0] for method in ("dflash", "dflow")}
    assert len(hashes) == 2 and all(text.startswith("records ") for text in hashes)
    assert "\nDecoded at commit 0123456789ab, float32, target f0." in table_md(found, {})


@pytest.mark.parametrize("suites", ["b", "ab"])
def test_code_that_was_not_run_leaves_accuracy_empty_and_is_said_under_it(inputs, suites):
    records = {
        key: [row | {"score": None, "verdict": "not_run"} if key.suite in suites else row for row in rows]
        for key, rows in inputs.records.items()
    }
    cells = read(build_cells(replace(inputs, records=records), SETTINGS))
    assert not cell(cells, "dflow", "b")["accuracy"] and bool(cell(cells, "dflow", "a")["accuracy"]) == (suites == "b")
    said = table_md(cells, {}).partition("## Accuracy")[2].partition("\n## ")[0]
    assert f"{', '.join(suites)}: no accuracy: its code was not run (run_code: false)." in said


def test_every_reported_number_has_a_source_and_the_papers_averages_agree():
    found = read_reported(reading.project_path(reading.REPORTED))
    assert all(source.startswith("arXiv:") for _, source in found.values())
    assert found["qwen3-1.7b", "dflow", 0.0, "gsm8k"][0] == 4.83
    for (target, method, temperature, suite), (value, _) in found.items():
        parts = [
            v for (t, m, x, s), (v, _) in found.items() if (t, m, x) == (target, method, temperature) and s != "avg"
        ]
        if suite == "avg" and len(parts) == 6:
            assert value == pytest.approx(sum(parts) / 6, abs=0.011)


def test_columns_are_documented():
    text = (reading.project_path("results") / "README.md").read_text(encoding="utf-8")
    plain = [c for c in COLUMNS if not c.endswith(("_low", "_high"))]
    missing = [c for c in plain if f"`{c}`" not in text and c not in ("target", "method", "temperature", "suite")]
    assert missing == []


def test_what_was_made_for_another_target_is_said_at_the_drafters_cells(inputs):
    key = Key("tiny", "dflow", 0.0, "a")
    decoded = replace(inputs, origins={key: [{"other": {"thinking": [True, False]}}]})
    flags = {(row["method"], row["suite"]): row["flags"] for row in build_cells(decoded, SETTINGS)}
    assert "made for another target: thinking" in flags["dflow", "a"] and "another" not in flags["dflash", "a"]
    assert "**made for another target: thinking**" in table_md(read(build_cells(decoded, SETTINGS)), {})
    trained = replace(inputs, done={("tiny", "dflash"): [{"other": {"fingerprint": ["a", "b"]}}]})
    flags = {(row["method"], row["suite"]): row["flags"] for row in build_cells(trained, SETTINGS)}
    assert "made for another target: fingerprint" in flags["dflash", "b"]
