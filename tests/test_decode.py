"""The decoder: losslessness, stops, budgets, ragged rows.  Driven by a scripted drafter that knows the answer.

pytest tests/test_decode.py
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from harness.decode import Decoder, DecodeSettings, Prompt
from methods.contract import Proposal, Sampling, Verdict
from methods.heads import DraftError
from tests.tiny import VOCAB, tiny_target

K = 5


class ScriptedDrafter:
    """Proposes the true continuation, spoilt behind a scripted number of tokens; records what it is shown.

    It keeps to the contract strictly: features must arrive for every position exactly once, in order.
    """

    num_proposals = K
    taps = (1,)

    def __init__(self, truth: dict[int, Sequence[int]], script: Sequence[int]):
        self.truth, self.script = truth, list(script)
        self.at: dict[int, list[int]] = {}  # row -> [which truth, anchor index in its output, round]
        self.cached: dict[int, int] = {}
        self.shown: list[tuple[int, Verdict]] = []
        self.released: list[int] = []
        self.prompt_taps: dict[int, Tensor] = {}  # by length of the prompt

    def start(self, rows: Tensor, prompt_taps: Sequence[Tensor], anchors: Tensor) -> None:
        for row, taps, anchor in zip(rows.tolist(), prompt_taps, anchors.tolist(), strict=True):
            which = next(n for n, ids in self.truth.items() if n == taps.shape[0])
            assert self.truth[which][0] == anchor
            self.at[row] = [which, 0, 0]
            self.cached[row] = taps.shape[0]
            self.prompt_taps[which] = taps

    def propose(self, rows: Tensor, sampling: Sampling | None = None) -> Proposal:
        tokens = []
        for row in rows.tolist():
            which, index, rnd = self.at[row]
            assert self.cached[row] == which + index, "context features must end right before the anchor"
            right = self.script[rnd % len(self.script)]
            ahead = (list(self.truth[which]) + [0] * K)[index + 1 : index + 1 + K]
            tokens.append([t if i < right else (t + 1) % VOCAB for i, t in enumerate(ahead)])
        return Proposal(torch.tensor(tokens))

    def observe(self, rows: Tensor, verdict: Verdict) -> None:
        for i, row in enumerate(rows.tolist()):
            accepted = int(verdict.accepted[i])
            which, index, _ = self.at[row]
            assert verdict.taps.shape[1] == K + 1
            assert int(verdict.next_token[i]) == self.truth[which][index + accepted + 1], "another row's verdict"
            self.cached[row] += accepted + 1
            self.at[row][1] += accepted + 1
            self.at[row][2] += 1
            self.shown.append((row, Verdict(*(x[i] for x in vars(verdict).values()))))

    def release(self, rows: Tensor) -> None:
        self.released += rows.tolist()


@pytest.fixture(scope="module", params=["qwen3", "gemma3", "llama"])
def target(request):
    return tiny_target(request.param)


@pytest.fixture(scope="module")
def llama():
    return tiny_target("llama")


def prompts(count: int, start: int = 9) -> list[Prompt]:
    """Prompts of different lengths: the scripted drafter tells them apart by length."""
    return [Prompt(f"p{n}", tuple((7 * n + 3 * i) % 256 for i in range(start + n))) for n in range(count)]


def settings(temperature: float = 0.0, new: int = 30, **kw) -> DecodeSettings:
    return DecodeSettings(temperature=temperature, seed=3, max_new_tokens=new, **kw)


def plain(target, ps, cfg):
    return list(Decoder(target, None, cfg).run(ps))


def scripted(target, ps, cfg, script, rows=1, shared_prefix=()):
    truth = {len(r.prompt_ids): r.output_ids for r in plain(target, ps, settings(cfg.temperature, cfg.max_new_tokens))}
    made: list[ScriptedDrafter] = []

    def factory(_rows: int, _capacity: int) -> ScriptedDrafter:
        made.append(ScriptedDrafter(truth, script))
        return made[-1]

    return list(Decoder(target, factory, cfg, rows=rows, shared_prefix=shared_prefix).run(ps)), made[0]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("rows", [1, 3])
def test_output_equals_autoregressive_for_every_acceptance(target, temperature, rows):
    ps, cfg = prompts(5), settings(temperature)
    expected = plain(target, ps, cfg)
    got, _ = scripted(target, ps, cfg, script=[0, K, 2, 1, K, K, 0, 3], rows=rows)
    assert [r.prompt_id for r in got] == [p.id for p in ps]
    assert [r.output_ids for r in got] == [r.output_ids for r in expected]


def test_plain_decoding_equals_transformers_generate(target):
    prompt = prompts(1)[0]
    ours = plain(target, [prompt], settings(new=24))[0].output_ids
    target.use_our_attention(False)
    try:
        theirs = target.model.generate(
            torch.tensor([prompt.ids]),
            attention_mask=torch.ones(1, len(prompt.ids)),
            max_new_tokens=24,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
        )[0, len(prompt.ids) :].tolist()
    finally:
        target.use_our_attention(True)
    assert ours == theirs


def test_steps_follow_the_script_and_add_up(llama):
    got, drafter = scripted(llama, prompts(1), settings(new=30), script=[0, 2, K])
    response = got[0]
    assert response.accepted[:3] == [0, 2, K]
    assert sum(response.committed) + 1 == len(response.output_ids) == 30
    assert response.committed[:-1] == [a + 1 for a in response.accepted[:-1]]
    assert drafter.released == [0]


@pytest.mark.parametrize("rows", [2, 4])
def test_step_lists_do_not_depend_on_the_batch_in_float64(rows):
    target = tiny_target("llama", torch.float64)
    ps, cfg = prompts(6), settings(new=25)
    single, _ = scripted(target, ps, cfg, script=[1, K, 0, 3])
    batched, _ = scripted(target, ps, cfg, script=[1, K, 0, 3], rows=rows)
    assert [(r.output_ids, r.accepted, r.committed) for r in single] == [
        (r.output_ids, r.accepted, r.committed) for r in batched
    ]


@pytest.mark.parametrize("budget", [1, 2, K, K + 1, K + 2, 2 * (K + 1) + 1])
def test_length_never_exceeds_the_budget(llama, budget):
    got, _ = scripted(llama, prompts(3), settings(new=budget), script=[K], rows=2)
    for response in got:
        assert len(response.output_ids) == budget and response.stop == "budget"
        assert sum(response.committed) + 1 == budget


@pytest.mark.parametrize("at", [0, 1, 4, 9])
def test_a_stop_id_inside_an_accepted_block_ends_there(llama, at):
    prompt = prompts(1)
    free = plain(llama, prompt, settings(new=20))[0].output_ids
    stop = free[at]
    first = free.index(stop)
    cfg = settings(new=20, stop_ids=(stop,))
    expected = plain(llama, prompt, cfg)[0]
    got, _ = scripted(llama, prompt, cfg, script=[K])
    assert got[0].output_ids == expected.output_ids == free[: first + 1]
    assert got[0].stop == "stop_id" and sum(got[0].committed) == first


def test_a_stop_string_ends_both_arms_at_the_same_token(llama):
    prompt = prompts(1)
    free = plain(llama, prompt, settings(new=20))[0].output_ids
    string = llama.decode(free[6:8])
    if not string.strip("�"):
        string = llama.decode(free[:20])[3:5]
    cfg = settings(new=20, stop_strings=(string,))
    expected = plain(llama, prompt, cfg)[0]
    got, _ = scripted(llama, prompt, cfg, script=[K])
    assert got[0].stop == expected.stop == "stop_string"
    assert got[0].output_ids == expected.output_ids and len(expected.output_ids) < 20


def test_rows_that_go_on_are_shown_their_own_verdicts_when_others_stop(llama):
    ps = prompts(4)
    free = [r.output_ids for r in plain(llama, ps, settings())]
    cfg = settings(stop_ids=tuple(ids[5 * n + 2] for n, ids in enumerate(free)))
    expected = [r.output_ids for r in plain(llama, ps, cfg)]
    got, _ = scripted(llama, ps, cfg, script=[1, 0, 2], rows=4)
    assert [r.output_ids for r in got] == expected
    ends = [len(r.accepted) for r in got]
    assert len(set(ends)) > 2 and ends[0] < max(ends), "rows must stop in different rounds, an early one in front"


def test_rows_reused_by_later_prompts_start_clean(llama):
    ps = prompts(7)
    got, drafter = scripted(llama, ps, settings(new=12), script=[2, 0], rows=2)
    assert [r.output_ids for r in got] == [r.output_ids for r in plain(llama, ps, settings(new=12))]
    assert len(drafter.released) == len(ps) and set(drafter.released) == {0, 1}, "each sequence frees its row, once"


def test_verdict_carries_the_states_of_rejected_rows(llama):
    """Row j of the taps is the target's state at proposal j, a wrong one included: compared with a fresh full pass."""
    got, drafter = scripted(llama, prompts(1), settings(new=8), script=[1])
    _, verdict = drafter.shown[0]
    history = list(got[0].prompt_ids) + got[0].output_ids[:1] + verdict.proposals.tolist()
    full = llama.features(torch.tensor([history]), (1,))[0]
    assert int(verdict.accepted) == 1
    torch.testing.assert_close(verdict.taps, full[-(K + 1) :], atol=1e-4, rtol=1e-4)


def test_poisoned_cells_never_matter(llama, monkeypatch):
    ps, cfg = prompts(4), settings(new=16)
    expected = [r.output_ids for r in plain(llama, ps, cfg)]
    begin = Decoder._round

    def poisoned(self, active):
        self.cache.poison()
        return begin(self, active)

    monkeypatch.setattr(Decoder, "_round", poisoned)
    got, _ = scripted(llama, ps, cfg, script=[0, 3, K, 1], rows=3)
    assert [r.output_ids for r in got] == expected


def test_shared_prefix_changes_nothing(llama):
    prefix = tuple(range(40, 52))
    ps = [Prompt(p.id, prefix + p.ids) for p in prompts(3)] + [Prompt("bare", prefix), Prompt("other", (1, 2, 3))]
    cfg = settings(new=10)
    expected = [r.output_ids for r in plain(llama, ps, cfg)]
    got = [r.output_ids for r in Decoder(llama, None, cfg, rows=2, shared_prefix=prefix).run(ps)]
    assert got == expected
    drafted, drafter = scripted(llama, ps, cfg, script=[2], rows=2, shared_prefix=prefix)
    assert [r.output_ids for r in drafted] == expected
    for prompt in ps:
        whole = llama.features(torch.tensor([prompt.ids]), drafter.taps)[0]
        torch.testing.assert_close(drafter.prompt_taps[len(prompt.ids)], whole, atol=1e-4, rtol=1e-4)


def test_one_seed_gives_one_output_and_another_seed_another(llama):
    def sample(seed):
        cfg = DecodeSettings(temperature=1.0, seed=seed, max_new_tokens=20)
        return plain(llama, prompts(1), cfg)[0].output_ids

    assert sample(0) == sample(0) != sample(1)


def test_trace_holds_proposals_and_argmax_of_every_row(llama):
    got, _ = scripted(llama, prompts(1), settings(new=12, trace=True), script=[1, 0])
    response = got[0]
    assert [len(p) for p in response.trace["proposals"]] == [K] * len(response.accepted)
    for accepted, argmax, proposals in zip(response.accepted, *reversed(response.trace.values()), strict=True):
        assert argmax[:accepted] == proposals[:accepted] and argmax[accepted] != proposals[accepted]


@pytest.mark.parametrize(
    ("bad", "what"),
    [
        ([Prompt("a", ())], "empty"),
        ([Prompt("a", (1,)), Prompt("a", (2,))], "twice"),
        ([Prompt("a", tuple([1] * 2040))], "context"),
    ],
)
def test_bad_prompts_are_refused_before_any_work(llama, bad, what):
    with pytest.raises(ValueError, match=what):
        list(Decoder(llama, None, settings()).run(bad))


@pytest.mark.parametrize(
    ("kw", "what"),
    [
        (dict(accept="typical"), "accept"),
        (dict(accept="rejection"), "temperature 0"),
        (dict(proposals="sampled"), "rejection"),
        (dict(proposals="typical"), "proposals"),
        (dict(temperature=-1.0), "temperature"),
        (dict(new=0), "max_new_tokens"),
    ],
)
def test_unsupported_settings_are_refused(kw, what):
    with pytest.raises(ValueError, match=what):
        settings(**kw)


def test_a_slot_nobody_drafted_is_an_error(llama):
    class Lazy(ScriptedDrafter):
        def propose(self, rows, sampling=None):
            return Proposal(torch.tensor([[1, 2, -1, 3, 4]] * len(rows)))

    truth = {len(r.prompt_ids): r.output_ids for r in plain(llama, prompts(1), settings())}
    with pytest.raises(ValueError, match="sentinel"):
        list(Decoder(llama, lambda _r, _c: Lazy(truth, [0]), settings()).run(prompts(1)))


@pytest.mark.parametrize("rows", [1, 2, 5])
@pytest.mark.parametrize("bad", [{2}, {0, 1, 4}, {0, 1, 2, 3, 4}])
def test_prompts_that_cannot_be_drafted_are_named_when_all_others_are_answered(llama, rows, bad):
    class Breaks(ScriptedDrafter):
        def propose(self, rows, sampling=None):
            for index, row in enumerate(rows.tolist()):
                which, _, rnd = self.at[row]
                if which - 9 in bad and rnd == 2:
                    raise DraftError(f"row {row} is not finite", index)
            return super().propose(rows, sampling)

    asked, cfg = prompts(5), settings()
    whole = plain(llama, asked, cfg)
    truth = {len(r.prompt_ids): r.output_ids for r in whole}
    found = []
    with pytest.raises(
        DraftError, match=rf"{len(bad)} of 5 prompts could not be decoded; prompt 'p\d': row \d"
    ) as fault:
        for response in Decoder(llama, lambda _r, _c: Breaks(truth, [1, 0, 3]), cfg, rows=rows).run(asked):
            found.append((response.prompt_id, response.output_ids))
    assert found == [(r.prompt_id, r.output_ids) for n, r in enumerate(whole) if n not in bad]
    assert fault.value.row is None


def test_an_error_of_no_single_row_ends_the_run(llama):
    class Gone(ScriptedDrafter):
        def propose(self, rows, sampling=None):
            raise DraftError("all of it")

    truth = {len(r.prompt_ids): r.output_ids for r in plain(llama, prompts(2), settings())}
    with pytest.raises(DraftError, match="^all of it$"):
        list(Decoder(llama, lambda _r, _c: Gone(truth, [0]), settings(), rows=2).run(prompts(2)))
