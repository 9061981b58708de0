"""What papers print beside what was measured: which cells meet, and what is said of each."""

from pathlib import Path

import pytest

from harness.report import reproduction
from harness.report.columns import COLUMNS, table_text
from harness.report.inputs import read_reported, read_rows, reported_paths
from harness.report.reproduction import AGREES, DIFFERS, NOT_RUN, OTHER_SUITES, compare, page

REPORTED = Path(__file__).parent.parent / "results" / "reported"


def printed(suite, value, method="dflash", temperature="0", source="paper A", metric="acceptance_length"):
    return {
        "source": source,
        "target": "Qwen3-8B",
        "method": method,
        "temperature": temperature,
        "suite": suite,
        "metric": metric,
        "value": str(value),
    }


def cell(suite, low, value, high, method="dflash", seeds="1"):
    known = {"target": "qwen3-8b", "method": method, "temperature": "0.0", "suite": suite, "seeds": seeds}
    measured = {"tau_unclipped_low": str(low), "tau_unclipped": str(value), "tau_unclipped_high": str(high)}
    return dict.fromkeys(COLUMNS, "") | known | measured


CELLS = [cell("gsm8k", 3.0, 3.2, 3.4), cell("mbpp", 2.0, 2.2, 2.4), cell("avg", 2.5, 2.7, 2.9)]


def verdicts(rows, cells=CELLS):
    return {(line.source, line.suite): line.verdict for line in compare(rows, cells)}


@pytest.mark.parametrize(("value", "verdict"), [(2.99, DIFFERS), (3.0, AGREES), (3.4, AGREES), (3.41, DIFFERS)])
def test_a_number_inside_our_interval_agrees(value, verdict):
    assert verdicts([printed("gsm8k", value)])["paper A", "gsm8k"] == verdict


def test_a_cell_without_a_measurement_is_not_run():
    for row in (printed("math500", 3), printed("gsm8k", 3, method="dflow"), printed("gsm8k", 3, temperature="1")):
        assert set(verdicts([row]).values()) == {NOT_RUN}
    empty = cell("gsm8k", "", "", "")
    assert set(verdicts([printed("gsm8k", 3)], [empty]).values()) == {NOT_RUN}


def test_an_average_is_compared_only_over_the_same_suites():
    ours = [printed("gsm8k", 3.2), printed("mbpp", 2.2), printed("avg", 2.7)]
    more = [*ours, printed("math500", 4.0)]
    assert verdicts(ours)["paper A", "avg"] == AGREES
    assert verdicts(more)["paper A", "avg"] == OTHER_SUITES
    other = [{**row, "source": "paper B"} for row in ours]  # each paper has its own suites
    found = verdicts([*more, *other])
    assert (found["paper A", "avg"], found["paper B", "avg"]) == (OTHER_SUITES, AGREES)


def test_an_average_printed_alone_is_over_the_suites_that_its_paper_prints_elsewhere():
    whole = [printed("gsm8k", 3.2), printed("mbpp", 2.2), printed("avg", 2.7)]
    alone = {**printed("avg", 2.6), "source": "paper Table 3"}
    assert verdicts([*whole, alone])["paper Table 3", "avg"] == AGREES
    assert verdicts([*whole, printed("math500", 4.0), alone])["paper Table 3", "avg"] == OTHER_SUITES
    assert verdicts([alone])["paper Table 3", "avg"] == OTHER_SUITES  # it prints no suite of this target
    assert verdicts([*whole, {**alone, "source": "another Table 3"}])["another Table 3", "avg"] == OTHER_SUITES


def test_ablations_are_found_beside_the_methods(tmp_path, capsys):
    golden = Path(__file__).parent / "golden" / "cells.csv"
    ours = cell("avg", 3.5, 3.6, 3.7, method="dflow_off") | {"target": "Qwen3-1.7B", "temperature": "0"}
    (tmp_path / "ablations.csv").write_text(table_text(COLUMNS, [ours]))
    reproduction.main(["--cells", str(golden), str(tmp_path / "ablations.csv"), "--out", str(tmp_path / "r.md")])
    assert "1 other suites" in capsys.readouterr().out
    (tmp_path / "none.csv").write_text(table_text(COLUMNS, []))
    with pytest.raises(SystemExit) as ended:
        reproduction.main(["--cells", str(tmp_path / "none.csv"), "--out", str(tmp_path / "r.md")])
    assert ended.value.code == 2 and "no rows; decode something first" in capsys.readouterr().err


def test_only_acceptance_lengths_with_temperature_and_suite_are_cells():
    rows = [printed("gsm8k", 99, metric="throughput"), printed("", 3), printed("gsm8k", 3, temperature="")]
    assert compare(rows, CELLS) == []


def test_the_page_says_figures_interval_verdict_and_counts():
    text = page(compare([printed("gsm8k", 4.0), printed("mbpp", 2.2), printed("math500", 5.5)], CELLS))
    assert "| paper A | 3 | 1 | 1 | 0 | 1 |" in text
    assert "4.00 / 3.20 [3.00, 3.40], differs by -20 %" in text
    assert "2.20 / 2.20 [2.00, 2.40], agrees |" in text and "5.50 / not run" in text
    assert "With one seed the interval is over prompts only" in text
    assert "With one seed" not in page(compare([printed("gsm8k", 3)], [cell("gsm8k", 1, 2, 3, seeds="3")]))


def test_the_paper_that_is_reproduced_comes_first_where_several_print_a_cell():
    names = [path.name for path in reported_paths(REPORTED)]
    assert names == [*sorted(n for n in names if n.startswith("dflow_")), "dflash_table1.csv", *names[-2:]]
    value, source = read_reported(REPORTED)["qwen3-8b", "dflash", 0.0, "gsm8k"]
    assert "2609.06498" in source
    others = {float(row["value"]) for path in reported_paths(REPORTED) for row in read_rows(path)
              if (row["target"], row["method"], row["temperature"], row["suite"], row["metric"])
              == ("Qwen3-8B", "dflash", "0", "gsm8k", "acceptance_length")}  # fmt: skip
    assert value in others and len(others) == 4  # four papers' tables, four numbers


def test_every_reported_row_has_known_columns_and_a_number():
    for path in reported_paths(REPORTED):
        for row in read_rows(path):
            assert float(row["value"]) > 0 and row["source"].startswith("arXiv:"), (path.name, row)
            assert row["metric"].startswith(("acceptance_length", "throughput", "speedup", "latency_")), row


def test_the_command_writes_the_page_and_refuses_an_empty_folder(tmp_path, capsys):
    golden = Path(__file__).parent / "golden" / "cells.csv"
    reproduction.main(["--cells", str(golden), "--out", str(tmp_path / "r.md")])
    assert (tmp_path / "r.md").read_text().startswith("# Reproduction")
    assert "not run" in capsys.readouterr().out
    with pytest.raises(SystemExit) as ended:
        reproduction.main(["--cells", str(golden), "--out", str(tmp_path / "r.md"), "--reported", str(tmp_path)])
    assert ended.value.code == 2 and "holds no reported numbers" in capsys.readouterr().err
