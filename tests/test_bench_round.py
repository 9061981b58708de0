"""The benchmark of rounds: scripts are followed to the token, every slice is its own, and what cannot be is refused."""

from __future__ import annotations

import csv
import re
from types import SimpleNamespace

import pytest
import torch

from harness import budget, decode
from harness.bench import clock, random_models, rounds
from harness.bench.__main__ import main
from harness.bench.acceptance import geometric
from harness.bench.clock import Timing, in_turn
from harness.bench.scripted import LEAD, ScriptedDecoder
from harness.clocks import PhaseClock
from harness.sections import DrafterSettings
from harness.shapes import Shape
from harness.target import Target
from tests.drafting import METHODS

CPU = torch.device("cpu")
TINY = Shape(32, 5, 4, 2, 8, 48, 97, False, max_position_embeddings=512)
SETTINGS = DrafterSettings(
    block_size=6, num_layers=1, taps=[0, 3], head={"gru_size": 12, "rank": 6}, relay={"mlp_width": 20}
)
EVERY = ["ar", *METHODS]


@pytest.fixture(scope="module")
def target():
    return random_models.build_target(TINY, "tiny", torch.float32, CPU)


@pytest.fixture(scope="module")
def drafters(target):
    configs = {name: random_models.config_of(TINY, "tiny", SETTINGS, name) for name in METHODS}
    built = {name: random_models.build_drafter(c, target.binding, torch.float32, CPU) for name, c in configs.items()}
    return {"ar": None, **built}


@pytest.fixture
def now(monkeypatch):
    """A clock that stands still unless it is moved, so that a busy machine changes nothing."""
    hand = SimpleNamespace(at=100.0)
    monkeypatch.setattr(clock.time, "perf_counter", lambda: hand.at)

    def takes(owner, name, seconds):
        genuine = getattr(owner, name)

        def call(*given, **named):
            hand.at += seconds
            return genuine(*given, **named)

        monkeypatch.setattr(owner, name, call)

    hand.takes = takes
    return hand


# -- scripts -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", EVERY)
def test_a_script_is_followed_by_counts_caches_and_positions(method, target, drafters, monkeypatch):
    script = torch.tensor([[0, 5], [3, 0], [5, 5], [1, 2], [0, 4]])
    judged, genuine = [], decode.accept_exact
    monkeypatch.setattr(decode, "accept_exact", lambda *given: judged.append(given) or genuine(*given))
    decoder = rounds.decoders(target, {method: drafters[method]}, 2, 12, script)[method]
    expected = script if drafters[method] else torch.zeros_like(script)
    for _ in range(2):  # a restart leaves nothing of the block before
        judged.clear()
        decoder.restart()
        assert len(judged) == 2 and decoder.cache.lengths == [12, 12]  # a prefill a row
        decoder.advance(len(script))
        assert [state.accepted for state in decoder.active.values()] == expected.T.tolist()
        assert [state.committed for state in decoder.active.values()] == (expected + 1).T.tolist()
        ends = (12 + (expected + 1).sum(0)).tolist()
        assert decoder.cache.lengths == ends == [state.anchor for state in decoder.active.values()]
        assert decoder.drafter is None or decoder.drafter.lengths == ends
        assert len(judged) == 2 + len(script), "the accept rule does its work all the same"


def test_a_script_that_accepts_more_than_is_proposed_is_refused(target):
    with pytest.raises(ValueError, match="accepts 1 proposals of 0"):
        ScriptedDecoder(target, None, range(5), torch.tensor([[0], [1]]))


def test_all_methods_begin_at_the_same_prefix_with_the_same_target_and_fusion(target, drafters):
    made = rounds.decoders(target, drafters, 1, 30, torch.zeros(3, 1, dtype=torch.int64))
    assert len({decoder.prompts[0].ids for decoder in made.values()}) == 1
    for decoder in made.values():
        decoder.restart()
    assert len({decoder.active[0].output[0] for decoder in made.values()}) == 1
    weights = [drafter.fusion.state_dict() for drafter in drafters.values() if drafter]
    assert all(torch.equal(a, b) for w in weights for a, b in zip(w.values(), weights[0].values(), strict=True))


# -- clocks ------------------------------------------------------------------------------------------------------


def test_everybody_is_in_turn_first():
    assert list(in_turn("abc", 4)) == [*"abc", *"bca", *"cab", *"abc"]


def work(now, drafters, **more):
    """Every part of a round takes its own time; more: seconds beside that by part."""
    seconds = {"backbone": 0.004, "head": 0.002, "inputs": 0.001, "state": 0.0005, "verify": 0.016, "accept": 0.00025}
    seconds = {name: took + more.get(name, 0) for name, took in seconds.items()}
    for drafter in filter(None, drafters.values()):
        now.takes(drafter.backbone, "forward", seconds["backbone"])
        now.takes(drafter.head, "draft", seconds["head"])
        now.takes(drafter.backbone, "project_context", 0.008)
        if drafter.relay.uses_states:
            now.takes(drafter.relay, "block_inputs", seconds["inputs"])
            now.takes(drafter.relay, "state", seconds["state"])
    now.takes(Target, "forward", seconds["verify"])
    now.takes(decode, "accept_exact", seconds["accept"])
    now.takes(decode.StopRule, "first_stop", 0.000125)


def measured(target, drafters, batch=2):
    script = geometric(2, 5).script(LEAD + 3, batch, 0)
    return rounds.measure(rounds.decoders(target, drafters, batch, 12, script), rounds=3, blocks=2)


@pytest.mark.parametrize("late", ["backbone", "head", "inputs", "state", "verify", "accept"])
def test_five_milliseconds_more_in_one_part_grow_its_slice_alone(late, target, drafters, now):
    work(now, drafters, **{late: 0.005})
    slice_of = {"backbone": "draft", "inputs": "relay", "state": "relay"}
    for name, found in measured(target, drafters).items():
        shares = {"verify": 16.0, "accept": 0.25, "commit": 0.25, "draft": 0.0, "observe": 0.0}  # two rows to commit
        if drafters[name]:
            shares |= {"draft": 4.0, "head": 2.0, "observe": 8.0} | ({"relay": 1.5} if "dflow" in name else {})
        where = slice_of.get(late, late)
        if where in shares and (where in ("verify", "accept") or drafters[name]):
            shares[where] += 5.0
        assert found["slices"] == pytest.approx(shares, abs=1e-9), name
        assert found["ms"] == Timing(*[pytest.approx(sum(shares.values()))] * 3)
        row = rounds.row_of(found, read=1000, copied=1e6)
        assert row["slices"] == pytest.approx(sum(shares.values())) and row["gap_percent"] == pytest.approx(0)


def test_what_stands_between_slices_is_in_the_gap_and_in_no_slice(target, drafters, now):
    work(now, drafters)
    now.takes(decode, "Draws", 0.01)  # before the first phase of a round
    found = measured(target, drafters)
    for name in EVERY:
        row = rounds.row_of(found[name], 1000, 1e6)
        assert row["ms"] == pytest.approx(row["slices"] + 10) and row["gap_percent"] < -20


def test_a_clock_that_costs_time_shows_in_the_gap_and_not_in_the_round(target, drafters, now):
    work(now, drafters)
    found = measured(target, drafters)["ar"]
    now.takes(PhaseClock, "_stamp", 0.001)
    slow = measured(target, drafters)["ar"]
    assert slow["ms"].median == pytest.approx(found["ms"].median) and rounds.row_of(slow, 1000, 1e6)["gap_percent"] > 20


def test_rounds_at_the_start_of_a_block_and_the_first_block_of_all_are_not_timed(target, now, monkeypatch):
    ar, calls, genuine = {"ar": None}, [], ScriptedDecoder._round

    def late_at_first(self, active):
        calls.append(self._turn)
        now.at += 1.0 if self._turn < LEAD or len(calls) <= LEAD + 1 else 0.001
        return genuine(self, active)

    monkeypatch.setattr(ScriptedDecoder, "_round", late_at_first)
    assert measured(target, ar)["ar"]["ms"].slowest == pytest.approx(1.0)
    assert LEAD > 0 and calls[: LEAD + 1] == list(range(LEAD + 1))


# -- numbers -----------------------------------------------------------------------------------------------------


def test_the_floor_of_a_verify_pass_is_its_weights_at_the_speed_of_a_copy():
    found = {"ms": Timing(10.0, 9.0, 12.0), "slices": {"draft": 1.0, "relay": 0.5, "verify": 8.0}}
    row = rounds.row_of(found, read=16_000_000_000, copied=4e12)
    assert (row["floor_ms"], row["verify_over_floor"], row["weights_gb"], row["copy_gb_s"]) == (4, 2, 16, 4000)
    assert (row["slices"], row["gap_percent"]) == (9.5, pytest.approx(-5))
    assert row["relay_percent"] == pytest.approx(100 * 0.5 / 9.5) and row["head"] is None
    with pytest.raises(ValueError, match="no column shows: lunch"):
        rounds.row_of({**found, "slices": {**found["slices"], "lunch": 1.0}}, 1, 1.0)


def test_a_copy_moves_each_byte_twice(monkeypatch):
    copies = []
    monkeypatch.setattr(budget, "_best", lambda call, place: copies.append(call()) or 0.25)
    assert budget.copy_speed(CPU, 4096) == 2 * 4096 / 0.25
    assert copies[0].nbytes == 4096 and copies[0].all(), "of zeros, a system may hold a single page"


@pytest.mark.parametrize("tied", [True, False])
def test_a_pass_reads_all_weights_but_an_embedding_that_is_no_head(tied):
    shape = Shape(32, 5, 4, 2, 8, 48, 97, tied)
    built = random_models.build_target(shape, "tiny", torch.bfloat16, CPU)
    norms = (2 * 5 + 1) * 32 + 5 * 2 * 8
    assert random_models.weights_read(built) == 2 * (shape.body + shape.head + norms)
    assert sum(p.numel() for p in built.model.parameters()) == shape.parameters + norms


def test_a_random_target_has_its_dimensions_and_weights_that_depend_on_the_seed(target):
    state = torch.get_rng_state()
    again, other = (random_models.build_target(TINY, "tiny", torch.float32, CPU, seed) for seed in (0, 1))
    assert torch.equal(torch.get_rng_state(), state)
    ids = torch.arange(6)[None]
    logits = target.logits(ids)
    assert torch.equal(again.logits(ids), logits) and not torch.equal(other.logits(ids), logits)
    assert torch.isfinite(logits).all() and logits.std() > 0 and target._lean is not None
    assert (target.rope_theta, target.max_positions) == (TINY.rope_theta, 512)


def test_drafters_are_those_of_the_profile_that_the_dimensions_belong_to():
    pocket, eight = random_models.shape_of("pocket"), random_models.shape_of("qwen3-8b")
    assert (pocket.hidden_size, pocket.num_hidden_layers, pocket.vocab_size, pocket.tied) == (128, 12, 576, True)
    small = random_models.config_of(pocket, "pocket", random_models.drafter_settings("pocket"), "dflow_domino")
    large = random_models.config_of(eight, "qwen3-8b", random_models.drafter_settings("qwen3-8b", 512), "dflow")
    assert (small.num_layers, small.head_options.gru_size, small.relay_options.mlp_width) == (2, 128, 128)
    assert (large.num_layers, large.hidden_size, large.relay_options.mlp_width, large.target) == (
        5,
        4096,
        512,
        "qwen3-8b",
    )
    assert random_models.drafter_settings("qwen3-8b").relay.mlp_width is None


def test_memory_is_that_of_all_weights_and_caches(target, drafters):
    configs = [drafter.config for drafter in drafters.values() if drafter]
    held = sum(p.numel() for one in (target.model, *filter(None, drafters.values())) for p in one.parameters())
    need = random_models.bytes_needed(TINY, configs, 5, rows=0, capacity=0, itemsize=4)
    assert need == pytest.approx(4 * held, rel=0.01)
    cells = 5 * TINY.cache_bytes(4) + 4 * 2 * 1 * 2 * 8 * 4  # five caches of the target, four of one drafter layer
    more = random_models.bytes_needed(TINY, configs, 5, rows=3, capacity=100, itemsize=4) - need
    assert more == 4 * 100 * cells + 2 * 3 * 6 * 97 * 4


# -- the command -------------------------------------------------------------------------------------------------


@pytest.fixture
def tiny(monkeypatch):
    monkeypatch.setitem(random_models.KNOWN, "tiny", TINY)
    monkeypatch.setattr(rounds, "drafter_settings", lambda name, width: SETTINGS)
    monkeypatch.setattr(rounds, "COPIED", {"cpu": 2**16})
    return ["round", "--shapes", "tiny", "--rounds", "2", "--blocks", "2", "--prefix", "20", "--device", "cpu"]


def test_every_row_and_the_header_say_what_was_measured_and_where(tiny, tmp_path, capsys):
    main([*tiny, "--batches", "1", "3", "--acceptance", "0,0,1", "--out", str(tmp_path / "round.csv")])
    with (tmp_path / "round.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["batch"], row["method"]) for row in rows] == [(b, m) for b in "13" for m in rounds.METHODS]
    for row in rows:
        assert row["acceptance"] == "scripted acceptance: given chances, mean 2.00 of 5"
        assert (row["shapes"], row["dtype"], row["prefix"]) == ("tiny", "float32", "20")
        assert row["git_sha"] and row["device"] and row["threads"] and row["torch"]
        assert row["mlp_width"] == ("20" if "dflow" in row["method"] else "")
        assert row["accepted"] == ("0" if row["method"] == "ar" else "2")
        assert bool(row["relay"]) == bool(row["relay_percent"]) == ("dflow" in row["method"])
        assert float(row["slices"]) == pytest.approx(sum(float(row[name] or 0) for name in rounds.SLICES), rel=2e-3)
        assert float(row["ms_fastest"]) <= float(row["ms"]) <= float(row["ms_slowest"])
    said = capsys.readouterr().out
    for words in ("scripted acceptance: given chances", "shapes tiny, float32, relay MLP width 20", rows[0]["device"]):
        assert words in said.split("\nmethod")[0]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--shapes", "qwen3-17b"], r"--shapes is 'qwen3-17b' \(did you mean 'qwen3-1.7b'\?\); known shapes: .*pocket"),
        (["--methods", "dflush"], "unknown method 'dflush'; known methods"),
        (["--methods", "ar", "ar"], "--methods names a value twice"),
        (["--batches", "0"], "--batches is 0; it must be at least 1"),
        (
            ["--rounds", "400"],
            r"--prefix 20 and --rounds 400 ask for \d+ positions, past the 512 of tiny; lower either",
        ),
        (["--acceptance", "5.5"], "mean of 5.5; a round makes 5 proposals here, so take 0 to 5"),
        (["--acceptance", ","], "empty distribution"),
        (["--device", "nowhere"], "device 'nowhere' cannot be used"),
    ],
)
def test_what_cannot_be_measured_is_one_line_that_says_why(options, said, tiny, capsys, monkeypatch):
    monkeypatch.setattr(rounds, "build_target", lambda *_: pytest.fail("nothing may be built"))
    with pytest.raises(SystemExit) as ended:
        main([*tiny, "--acceptance", "2", *options])
    lines = capsys.readouterr().err.strip().splitlines()
    assert ended.value.code == 2 and len(lines) == 1
    assert re.search(said, lines[0]), lines[0]


def test_a_model_that_memory_will_not_hold_is_never_built(tiny, capsys, monkeypatch):
    monkeypatch.setattr(rounds, "build_target", lambda *_: pytest.fail("nothing may be built"))
    monkeypatch.setattr(random_models.psutil, "virtual_memory", lambda: SimpleNamespace(available=3 * 2**30))
    with pytest.raises(SystemExit) as ended:
        main([*tiny, "--acceptance", "2", "--shapes", "qwen3-8b", "--dtype", "bfloat16"])
    said = capsys.readouterr().err
    assert ended.value.code == 2 and "qwen3-8b in bfloat16 with 4 drafters wants about 1" in said
    assert " GB on cpu" in said and "and 3.0 GB are; take smaller --shapes, fewer --methods" in said
