"""The GPU checks: one step after another within a time, a log each, and no failure that stops the others."""

from __future__ import annotations

import json
import sys
import time

import pytest
import torch

from harness.bench import gpu
from harness.bench.__main__ import BENCHMARKS
from harness.bench.gpu import NOT_RUN, Step, main, page, run_steps, steps


def step(name, code, makes=None):
    return Step(name, (sys.executable, "-c", code), makes)


def test_a_failure_stops_no_other_step_and_each_has_its_log(tmp_path):
    todo = [step("Good one", "print('said')"), step("bad", "import sys; print('why'); sys.exit(3)"), step("last", "")]
    found = run_steps(todo, tmp_path, 60)
    assert [result.ended for result in found] == ["ok", "failed (3)", "ok"]
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {
        "1-good-one.log": "said\n",
        "2-bad.log": "why\n",
        "3-last.log": "",
    }


def test_a_step_that_takes_too_long_is_ended_and_what_has_no_time_is_not_begun(tmp_path, monkeypatch):
    monkeypatch.setattr(gpu, "LEAST_SECONDS", 0.5)
    begun = time.monotonic()
    found = run_steps([step("long", "import time; time.sleep(60)"), step("late", "")], tmp_path, 2)
    assert [result.ended for result in found] == ["out of time", NOT_RUN] and time.monotonic() - begun < 20
    assert not (tmp_path / "2-late.log").exists()


def test_every_step_is_a_command_that_exists(tmp_path):
    for one in steps(tmp_path, tmp_path / "scratch", "cuda"):
        if "harness.bench" in one.command:
            assert one.command[3] in BENCHMARKS and one.command[-2:] == ("--out", str(tmp_path / one.makes))
            assert one.command[3] == "train" or one.command[-4:-2] == ("--device", "cuda")


@pytest.mark.parametrize("name", [n for n in BENCHMARKS if n != "gpu"])
def test_benchmarks_take_the_options_that_are_given_to_them(name, tmp_path, monkeypatch, capsys):
    """Their own parsers are asked, with one option more that none of them knows."""
    for one in steps(tmp_path, tmp_path / "scratch", "cpu"):
        if "harness.bench" in one.command and one.command[3] == name:
            with pytest.raises(SystemExit):
                BENCHMARKS[name][0]([*one.command[4:], "--unheard-of"])
            assert capsys.readouterr().err.strip().endswith("unrecognized arguments: --unheard-of")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_without_a_gpu_it_ends_with_one_line(tmp_path, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["--out", str(tmp_path)])
    said = capsys.readouterr().err
    assert ended.value.code == 2 and said.count("\n") == 1 and "device 'cuda' cannot be used" in said
    assert list(tmp_path.iterdir()) == []


def test_the_page_says_what_ran_and_on_what(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(gpu, "steps", lambda *_: [step("good", ""), step("bad", "raise SystemExit(1)", "x.csv")])
    with pytest.raises(SystemExit) as ended:
        main(["--device", "cpu", "--out", str(tmp_path)])
    (folder,) = tmp_path.iterdir()
    assert ended.value.code == 1 and folder.name.startswith("cpu-20")
    assert json.loads(capsys.readouterr().out) == {"good": "ok", "bad": "failed (1)"}
    text = (folder / "README.md").read_text()
    assert "| bad | failed (1) | 0 | x.csv |" in text or "| bad | failed (1) | 1 | x.csv |" in text
    assert "scripted acceptance" in text and json.loads((folder / "provenance.json").read_text())["torch"] in text


def test_no_time_is_refused(tmp_path, capsys):
    with pytest.raises(SystemExit):
        main(["--minutes", "0", "--out", str(tmp_path)])
    assert "--minutes is 0; give more than 0" in capsys.readouterr().err
    assert "gpu --minutes 8`" in page([], {}, 8)
