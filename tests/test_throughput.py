"""Throughput rows: interleaved passes, warm-ups apart, prompts that are all different, and outputs those of batch 1."""

from __future__ import annotations

import json
from collections import Counter
from itertools import product

import pytest
from drafting import config, drafter
from tiny import tiny_target

from harness import throughput
from harness.config import ConfigError, load_config
from harness.data import DataError
from harness.decode import DecodeSettings, Prompt
from harness.plan import Plan
from harness.target import Target
from harness.throughput import Load, loads, measure
from tests.test_latency import Watch
from tests.test_timing import Untapped

LEVELS = (1, 2, 4)


@pytest.fixture(scope="module")
def target():
    return tiny_target()


def load(level, count=5, budget=6, cap=None):
    prompts = tuple(Prompt(f"p{i}", tuple(range(40, 46 + i))) for i in range(count))
    return Load("s", level, prompts, DecodeSettings(0.0, 0, budget), (), cap)


@pytest.fixture(scope="module")
def rows(target):
    arms = {None: {"ar": None, "guess": Untapped, "other": Untapped}}
    return list(measure(target, arms, [load(level) for level in LEVELS], repeats=3))


def test_every_method_decodes_every_prompt_once_a_repeat_and_takes_its_turn_to_go_first(rows):
    passes = [row for row in rows if row["kind"] == "load"]
    methods = ("ar", "guess", "other")
    assert Counter((r["method"], r["concurrency"], r["repeat"]) for r in passes) == dict.fromkeys(
        product(methods, LEVELS, range(3)), 1
    )
    for level in LEVELS:
        mine = [row for row in passes if row["concurrency"] == level]
        assert [row["method"] for row in mine[::3]] == list(methods)
    assert {(row["prompts"], row["tokens"]) for row in passes} == {(5, 30)}


def test_outputs_at_any_concurrency_are_those_of_plain_decoding(rows):
    assert {row["unlike_ar"] for row in rows if row["kind"] == "load"} == {0}


def test_an_output_that_is_not_the_baselines_is_counted(target, monkeypatch):
    genuine = throughput._pass

    def bent(target, factory, asked, sync):
        row, outputs = genuine(target, factory, asked, sync)
        if factory is not None and "p1" in outputs:
            outputs["p1"] = [*outputs["p1"][:-1], -7]
        return row, outputs

    monkeypatch.setattr(throughput, "_pass", bent)
    found = list(measure(target, {None: {"ar": None, "guess": Untapped}}, [load(2)], 1))
    assert {r["method"]: r["unlike_ar"] for r in found if r["kind"] == "load"} == {"ar": 0, "guess": 1}
    alone = list(measure(target, {None: {"guess": Untapped}}, [load(2)], 1))
    assert [r["unlike_ar"] for r in alone if r["kind"] == "load"] == [None]


def test_rounds_are_of_the_batch_and_steps_of_its_rows(rows):
    for row in rows:
        if row["kind"] == "load" and row["method"] == "ar":
            full, level = row["steps"] / row["rounds"], row["concurrency"]
            assert row["steps"] == 25 and 1 <= full <= level
            assert (full == 1) == (level == 1)


def test_a_slow_first_pass_changes_no_row_that_counts(target, monkeypatch):
    watch = Watch()
    monkeypatch.setattr(throughput, "time", watch)

    class Late(Untapped):
        made = 0

        def __init__(self, *args):
            Late.made += 1
            watch.sleep(0.2 * (Late.made == 1))

    found = list(measure(target, {None: {"late": Late}}, [load(2)], repeats=2))
    first, *counted = [row["seconds"] for row in found]
    assert found[0]["kind"] == "first" and first >= 0.2 and max(counted) < 0.001


def test_prompts_are_all_different_and_those_of_a_level_begin_with_those_below_it():
    config = load_config("smoke", {"concurrency": {"levels": [4, 1], "prompts_per_row": 3, "least_prompts": 5}})
    target = Target.load(config.target("pocket"), "pocket", check=False)
    word = [one for one in loads(config, target) if one.suite == "pocket_word"]
    assert [(one.level, len(one.prompts)) for one in word] == [(1, 5), (4, 12)]
    few, many = (one.prompts for one in word)
    assert many[:5] == few and len({prompt.ids for prompt in many}) == 12


def test_a_suite_with_too_few_prompts_is_refused(monkeypatch):
    config = load_config("smoke", {"concurrency": {"levels": [32], "prompts_per_row": 4}})

    def small(name, spec, data_dir):
        raise DataError(f"{spec.prompts} prompts asked for, there are 80")

    monkeypatch.setattr(throughput, "suite_prompts", small)
    with pytest.raises(DataError, match="128 prompts asked for"):
        loads(config, tiny_target())


def test_draft_lengths_are_capped_from_a_level_on():
    asked = load_config("smoke", {"concurrency": {"max_proposals": {"8": 7, "32": 3}}}).concurrency
    assert [asked.cap_at(level) for level in (1, 4, 8, 16, 32, 64)] == [None, None, 7, 7, 3, 3]


def test_each_level_is_decoded_under_its_own_cap(target):
    seen = []

    def arm(cap):
        return lambda rows, capacity: seen.append((cap, rows)) or Untapped(rows, capacity)

    arms = {cap: {"guess": arm(cap)} for cap in (None, 3)}
    rows = list(measure(target, arms, [load(1), load(4, cap=3)], 1))
    assert set(seen) == {(None, 1), (3, 4)} and {row["max_proposals"] for row in rows} == {None, 3}


@pytest.mark.parametrize("method", ["dflash", "domino", "dflow", "dflow_domino"])
@pytest.mark.parametrize("alignment", ["same", "next"])
def test_a_shortened_drafter_is_the_drafter_with_its_block_cut(method, alignment):
    whole = drafter(config(method, alignment=alignment))
    short = whole.shortened(2)
    assert short.layout.num_proposals == 2 and short.layout.block_size == 2 + whole.layout.first_slot
    weights, others = dict(whole.named_parameters()), dict(short.named_parameters())
    assert weights.keys() == others.keys() and all(w.data_ptr() == others[n].data_ptr() for n, w in weights.items())
    assert whole.shortened(whole.layout.num_proposals) is whole and not short.training == whole.training is False
    with pytest.raises(ValueError, match="num_proposals is 0"):
        whole.shortened(0)


@pytest.mark.parametrize(
    ("over", "words"),
    [
        ({"concurrency": {"suites": ["pocket_wrod"]}}, "no suite 'pocket_wrod' .did you mean 'pocket_word'"),
        ({"concurrency": {"levels": [1, 1]}}, "names a value twice"),
        ({"concurrency": {"levels": []}}, "is empty"),
        ({"concurrency": {"levels": [0]}}, "greater than 0"),
        ({"concurrency": {"max_proposals": {4: 0}}}, "greater than 0"),
    ],
)
def test_settings_that_mean_nothing_are_refused(over, words):
    with pytest.raises(ConfigError, match=words):
        load_config("smoke", over)


def test_an_interrupted_run_goes_on_behind_its_last_level(tmp_path, monkeypatch):
    over = {"methods": ["ar"], "variants": None, "ablations": [], "comparisons": [], "work_dir": str(tmp_path)}
    asked = {"levels": [1, 2], "prompts_per_row": 1, "least_prompts": 2, "repeats": 1, "suites": ["pocket_word"]}
    config = load_config("smoke", over | {"concurrency": asked})
    genuine, done = throughput.measure, []

    def once(target, arms, work, repeats):
        if done:
            raise KeyboardInterrupt
        done.append(work[0].level)
        return genuine(target, arms, work, repeats)

    monkeypatch.setattr(throughput, "measure", once)
    with pytest.raises(KeyboardInterrupt):
        throughput.run(config, "pocket", tmp_path / "drafters")
    monkeypatch.setattr(throughput, "measure", lambda t, a, w, r: done.append(w[0].level) or genuine(t, a, w, r))
    rows = throughput.run(config, "pocket", tmp_path / "drafters")
    assert done == [1, 2], "the first level was measured once"
    assert [row["concurrency"] for row in rows if row["kind"] == "load"] == [1, 2]
    assert all(row["target"] == "pocket" and row["machine"]["torch"] for row in rows)
    changed = load_config("smoke", over | {"concurrency": asked | {"repeats": 2}})
    throughput.run(changed, "pocket", tmp_path / "drafters")
    assert done == [1, 2, 1, 2], "other settings are measured anew"


def test_without_suites_there_is_nothing_to_measure(tmp_path, capsys):
    path = tmp_path / "mine.yaml"
    path.write_text("extends: smoke\nprofile: mine\nconcurrency: {suites: []}\n")
    with pytest.raises(SystemExit) as ended:
        throughput.main(["--config", str(path), "--target", "pocket", "--out", str(tmp_path / "x.jsonl")])
    assert ended.value.code == 2 and "names no suite" in capsys.readouterr().err
    plan = Plan(load_config(path))
    assert not any("table2" in name for name in plan.tables() + plan.figures_made())


def test_the_plan_asks_for_table_2_and_tells_its_settings_from_others():
    wildcards = type("W", (), {"target": "pocket"})
    plan = Plan(load_config("smoke"))
    assert f"{plan.out}/table2.csv" in plan.tables() and f"{plan.figures}/concurrency.pdf" in plan.figures_made()
    base = json.loads(plan.throughput(wildcards))
    fewer = Plan(
        load_config("smoke", {"suites": {"pocket_word": {"prompts": 3}, "pocket_chat": {"max_new_tokens": 9}}})
    )
    assert json.loads(fewer.throughput(wildcards)) == base, "neither how many are recorded nor other suites matter"
    for over in ({"suites": {"pocket_word": {"max_new_tokens": 9}}}, {"decode": {"max_proposals": 3}}, {"seeds": [4]}):
        assert json.loads(Plan(load_config("smoke", over)).throughput(wildcards)) != base
