"""Timing rows: interleaved, warm-up left out, one counter of tokens, slices that sum to the rounds."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import replace

import pytest
import torch
from tiny import VOCAB, byte_tokenizer, tiny_target
from transformers import Gemma2Config, Gemma2ForCausalLM

from harness import timing
from harness.config import load_config
from harness.decode import DecodeSettings, Prompt
from harness.report.speed import round_parts, speed_columns
from harness.target import Target
from harness.timing import Workload, measure, workloads
from methods.contract import Proposal


class Guess:
    """A drafter that always proposes token 65; it is right now and then."""

    num_proposals, taps = 3, ()

    def __init__(self, rows, capacity):
        pass

    def start(self, rows, prompt_taps, anchors):
        pass

    def propose(self, rows, sampling=None):
        return Proposal(torch.full((len(rows), 3), 65))

    def observe(self, rows, verdict):
        pass

    def release(self, rows):
        pass


class Untapped(Guess):
    """The decoder hands taps over; without any, it needs a target that is asked for one."""

    taps = (0,)


class Certain(Untapped):
    """The same guess as a distribution, for a decoder that samples proposals."""

    def propose(self, rows, sampling=None):
        q = torch.zeros(len(rows), 3, VOCAB).index_fill(-1, torch.tensor([65]), 1.0)
        return Proposal(torch.full((len(rows), 3), 65), q)


@pytest.fixture(scope="module")
def target():
    return tiny_target()


def load(temperature=0.0, budget=6):
    prompts = tuple(Prompt(f"p{i}", tuple(range(40, 46 + i))) for i in range(2))
    return Workload("s", prompts, DecodeSettings(temperature, 0, budget), ())


@pytest.fixture(scope="module")
def rows(target):
    arms = {"ar": None, "guess": Untapped}
    measured = measure(target, arms, [load()], repeats=3, warmup=2, with_generate=True)
    return [{"target": "tiny", "machine": {}, **row} for row in measured]


def test_every_method_is_timed_on_every_prompt_and_repeat_and_warm_ups_are_not(rows):
    runs = [row for row in rows if row["kind"] == "run"]
    counts = Counter((row["method"], row["prompt_id"], row["repeat"]) for row in runs)
    wanted = itertools.product(("ar", "guess", timing.GENERATE), ("p0", "p1"), range(3))
    assert counts == dict.fromkeys(wanted, 1)


def test_methods_alternate_and_take_turns_to_go_first(rows):
    runs = [row for row in rows if row["kind"] == "run"]
    groups = [[r["method"] for r in runs[i : i + 3]] for i in range(0, len(runs), 3)]
    assert all(len(set(group)) == 3 for group in groups)
    assert len({group[0] for group in groups}) == 3


def test_tokens_are_counted_alike_and_outputs_compared(rows):
    runs = [row for row in rows if row["kind"] == "run"]
    assert {row["tokens"] for row in runs} == {6} and all(row["same_as_ar"] for row in runs)
    assert all(row["committed"] + 1 == row["tokens"] for row in runs)
    assert all(row["steps"] == 5 for row in runs if row["method"] != "guess")


def test_the_first_response_stands_apart_once_for_each_method(rows):
    assert Counter(row["method"] for row in rows if row["kind"] == "first") == Counter(["ar", "guess", timing.GENERATE])


def test_slices_of_a_round_sum_to_the_rounds(rows):
    parts = [row for row in rows if row["kind"] == "phases"]
    assert {(row["method"], row["prompt_id"]) for row in parts} == set(itertools.product(("ar", "guess"), ("p0", "p1")))
    for row in parts:
        assert set(row["phases"]) == {"draft", "verify", "accept", "commit", "observe"}
        assert 0 < row["phases"]["verify"] < sum(row["phases"].values()) <= row["rounds_seconds"]
        assert 0 < row["whole_seconds"]
    part = round_parts(parts, "guess")
    whole = 1000 * sum(r["rounds_seconds"] for r in parts if r["method"] == "guess")
    steps = sum(r["steps"] for r in parts if r["method"] == "guess")
    assert (part["verify"] + part["draft"] + part["host"]) * steps == pytest.approx(whole)


def test_generate_is_timed_only_where_it_does_the_same_work_and_leaves_the_target_as_it_was(target, rows):
    stopped = replace(load(), settings=replace(load().settings, stop_strings=("zz",)))
    for other in (load(1.0), stopped, replace(load(), shared_prefix=(40, 41))):
        timed = list(measure(target, {"ar": None}, [other], 1, 1, with_generate=True))
        assert {row["method"] for row in timed} == {"ar"}
    again = [r for r in measure(target, {"ar": None}, [load()], 1, 1)]
    assert all(row["same_as_ar"] for row in again if row["kind"] == "run")


def soft_capped_target() -> Target:
    """Gemma 2, scaled so that the cap decides: attention without it writes something else."""
    torch.manual_seed(0)
    config = Gemma2Config(
        vocab_size=VOCAB, hidden_size=32, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2, head_dim=8,
        intermediate_size=48, max_position_embeddings=2048, eos_token_id=None, pad_token_id=None, bos_token_id=None,
        attn_logit_softcapping=1.0, query_pre_attn_scalar=1,
    )  # fmt: skip
    model = Gemma2ForCausalLM(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if any(part in name for part in ("embed_tokens", "q_proj", "k_proj")):
                parameter.mul_(20)
    return Target(model, byte_tokenizer(), "gemma2")


def test_generate_keeps_the_soft_cap_of_a_target_that_has_one():
    rows = list(measure(soft_capped_target(), {"ar": None}, [load(budget=24)], 1, 1, with_generate=True))
    runs = [row for row in rows if row["kind"] == "run"]
    assert {row["method"] for row in runs} == {"ar", timing.GENERATE} and all(row["same_as_ar"] for row in runs)


def test_attention_is_switched_outside_the_clock(target, monkeypatch):
    late = [0.0]
    now, switch = timing.time.perf_counter, target.use_our_attention

    def slow(ours):
        late[0] += 1000
        switch(ours)

    monkeypatch.setattr(target, "use_our_attention", slow)
    monkeypatch.setattr(timing.time, "perf_counter", lambda: now() + late[0])
    rows = list(measure(target, {"ar": None}, [load()], 1, 1, with_generate=True))
    assert late[0] >= 4000 and all(row["seconds"] < 1000 for row in rows if "seconds" in row)


def test_timing_decodes_by_the_accept_rule_of_the_configuration(target):
    overrides = {
        "suites": {"pocket_word": {"prompts": 3, "max_new_tokens": 8, "stop_strings": ["%"]}},
        "decode": {"accept": "rejection", "proposals": "sampled"},
        "timing": {"temperatures": [0, 1], "prompts": 2},
    }
    config = load_config("smoke", overrides, check=False)
    loads = [load for load in workloads(config, target) if load.suite == "pocket_word"]
    assert [(load.fields["accept"], load.fields["proposals"]) for load in loads] == [
        ("exact", "greedy"),
        ("rejection", "sampled"),
    ]
    assert all(load.settings.stop_strings == ("%",) and len(load.prompts) == 2 for load in loads)
    rows = list(measure(target, {"ar": None, "guess": Certain}, loads[1:], 1, 1))
    assert [row["same_as_ar"] for row in rows if row["kind"] == "run"] == [None] * 4, "there is nothing to compare"


def run_row(method, repeat, tokens, seconds, suite="a"):
    return {"kind": "run", "prompt_id": "p", "target": "t", "method": method, "temperature": 0.0, "suite": suite,
            "repeat": repeat, "tokens": tokens, "seconds": seconds}  # fmt: skip


def test_speed_up_is_total_over_total_within_a_repeat_and_its_median():
    rows = [
        *(run_row("ar", r, 10, 1.0) for r in range(3)),
        *(run_row("ar", r, 30, 3.0, "b") for r in range(3)),
        *(run_row("dflash", r, 10, seconds) for r, seconds in enumerate((0.5, 0.25, 1.0))),
        *(run_row("dflash", r, 30, 0.5, "b") for r in range(3)),
    ]
    one = speed_columns(rows, "t", "dflash", 0.0, "a")
    assert (one["speedup"], one["speedup_low"], one["speedup_high"], one["timed_repeats"]) == (2, 1, 4, 3)
    assert one["tokens_per_s"] == 20
    both = speed_columns(rows, "t", "dflash", 0.0, None)
    assert both["speedup"] == pytest.approx(40 / 1.0 / 10)
    assert speed_columns(rows, "t", "ar", 0.0, None)["speedup"] == 1
    assert speed_columns(rows, "t", "dflash", 1.0, None)["tokens_per_s"] is None


def test_the_predicted_speed_up_is_tau_times_a_plain_forward_over_a_round():
    def phases(method, steps, committed, **seconds):
        return {"kind": "phases", "target": "t", "method": method, "temperature": 0.0, "suite": "a",
                "steps": steps, "committed": committed, "phases": seconds, "rounds_seconds": 1.0}  # fmt: skip

    rows = [
        phases("ar", 10, 10, verify=0.1, accept=0.01),
        phases("dflash", 10, 40, verify=0.15, draft=0.04, observe=0.01),
        run_row("ar", 0, 1, 1),
    ]
    got = speed_columns(rows, "t", "dflash", 0.0, "a")
    assert got["t_ar_ms"] == pytest.approx(10) and got["t_draft_ms"] == pytest.approx(5)
    assert got["speedup_predicted"] == pytest.approx(4 * 10 / 20)
    assert got["host_ms"] == pytest.approx(100 - 20)
