"""The decoder: one loop for every drafter, every temperature, batch 1 to N.

    propose -> verify in one target forward -> accept -> stop and budget -> commit -> observe

It hands the whole verdict, rejected rows included, to whatever drafter it was given, and does not know what that
drafter makes of it; without a drafter the same loop is the autoregressive baseline.  It knows tokens, rows and rounds;
it does not know text prompts, suites or files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from harness.accept import Draws, accept_exact, accept_rejection, stream_key
from harness.cache import RaggedCache
from harness.stops import StopRule
from harness.target import Target
from methods.contract import SENTINEL, Drafter, Proposal, Sampling, Verdict
from methods.heads import DraftError

ACCEPT_RULES = ("exact", "rejection")
PROPOSALS = ("greedy", "sampled")


@dataclass(frozen=True)
class Prompt:
    """Token ids to continue.  `id` and `turn` name the response and, with the seed, fix its random numbers."""

    id: str
    ids: tuple[int, ...]
    turn: int = 0


@dataclass(frozen=True)
class DecodeSettings:
    """How to decode.  Raises ``ValueError`` for a combination that would silently decode something else.

    accept: "exact" (the target's own choice decides) or "rejection" (residual sampling; needs temperature > 0).
    proposals: "greedy" (the drafter's argmax) or "sampled" (drawn at `temperature`; rejection only).
    trace: keep, per step, the proposals and the target's argmax at every verify row.
    """

    temperature: float
    seed: int
    max_new_tokens: int
    stop_ids: tuple[int, ...] = ()
    stop_strings: tuple[str, ...] = ()
    accept: str = "exact"
    proposals: str = "greedy"
    trace: bool = False

    def __post_init__(self) -> None:
        if self.accept not in ACCEPT_RULES:
            raise ValueError(f"accept is {self.accept!r}; use one of {', '.join(ACCEPT_RULES)}")
        if self.proposals not in PROPOSALS:
            raise ValueError(f"proposals is {self.proposals!r}; use one of {', '.join(PROPOSALS)}")
        if not self.temperature >= 0:
            raise ValueError(f"temperature is {self.temperature}; it must be at least 0")
        if self.max_new_tokens < 1:
            raise ValueError(f"max_new_tokens is {self.max_new_tokens}; it must be at least 1")
        if self.accept == "rejection" and self.temperature == 0:
            raise ValueError("accept is 'rejection' at temperature 0; greedy decoding is accept: exact")
        if self.proposals == "sampled" and self.accept != "rejection":
            raise ValueError("proposals: sampled needs accept: rejection; exact match verifies greedy proposals")


@dataclass
class Response:
    """One finished response and the step list that made it.

    output_ids: the prefill's token first, the stop token included if one ended it.
    accepted: proposals accepted by each verification (raw); committed: tokens it really added, bonus included, after
    stops and budget.  ``sum(committed) + 1 == len(output_ids)``.
    stop: "stop_id", "stop_string" or "budget".
    trace: None, or {"proposals": [[K] per step], "argmax": [[K+1] per step]}.
    """

    prompt_id: str
    turn: int
    prompt_ids: tuple[int, ...]
    output_ids: list[int]
    accepted: list[int]
    committed: list[int]
    stop: str
    trace: dict[str, list[list[int]]] | None = None


@dataclass
class _Row:
    """A sequence in flight."""

    order: int
    prompt: Prompt
    key: int
    output: list[int]
    accepted: list[int] = field(default_factory=list)
    committed: list[int] = field(default_factory=list)
    proposals: list[list[int]] = field(default_factory=list)
    argmax: list[list[int]] = field(default_factory=list)

    @property
    def anchor(self) -> int:
        """Absolute position of the last committed token."""
        return len(self.prompt.ids) + len(self.output) - 1


class Clock:
    """A stopwatch the decoder offers its phases to; this one measures nothing."""

    def phase(self, name: str) -> AbstractContextManager[None]:
        return nullcontext()


class Decoder:
    """Decodes prompts with a target and, if given, a drafter, `rows` at a time.

    Rows are refilled as they end.  `capacity` (cells per row) defaults to what the longest prompt needs.
    `shared_prefix` is computed once and copied into each row whose prompt starts with it.
    """

    def __init__(
        self,
        target: Target,
        drafter_factory: Callable[[int, int], Drafter] | None,
        settings: DecodeSettings,
        rows: int = 1,
        shared_prefix: Sequence[int] = (),
        clock: Clock | None = None,
    ) -> None:
        """`drafter_factory(rows, capacity)` builds the drafter's own caches; None is plain autoregressive decoding."""
        if rows < 1:
            raise ValueError(f"rows is {rows}; a decoder needs at least 1")
        self.target, self.settings, self.rows = target, settings, rows
        self.drafter_factory, self.shared_prefix = drafter_factory, tuple(shared_prefix)
        self.clock = clock or Clock()
        self.rule = StopRule(settings.stop_ids, settings.stop_strings, settings.max_new_tokens, target.decode)

    # -- the run -------------------------------------------------------------------------------------------------

    def run(self, prompts: Sequence[Prompt]) -> Iterator[Response]:
        """Yield one response per prompt, in the order of `prompts`.

        Raises ``ValueError`` before any work for an empty prompt, a repeated id, or a prompt that leaves no room for
        `max_new_tokens` in the target's context; `DraftError` for prompts whose drafts cannot be verified, when all
        others are answered.
        """
        prompts = list(prompts)
        self._check(prompts)
        if not prompts:
            return
        self._allocate(max(len(p.ids) for p in prompts))
        waiting, active = list(enumerate(prompts))[::-1], {}
        finished: dict[int, Response | None] = {}
        faults: list[str] = []
        emitted = 0
        while waiting or active:
            for row in range(self.rows):
                if row not in active and waiting:
                    order, prompt = waiting.pop()
                    state, stop = self._prefill(row, order, prompt)
                    if stop is None:
                        active[row] = state
                    else:
                        finished[order] = self._finish(state, stop)
            try:
                for state, stop in self._round(active) if active else ():
                    finished[state.order] = self._finish(state, stop)
            except DraftError as fault:  # of one row: it goes, and the others draft once more
                if fault.row is None:
                    raise
                row = sorted(active)[fault.row]
                faults.append(f"prompt {active[row].prompt.id!r}: {fault}")
                finished[active.pop(row).order] = None
                self._release(row)
            while emitted in finished:
                if (response := finished.pop(emitted)) is not None:
                    yield response
                emitted += 1
        if faults:
            raise DraftError(f"{len(faults)} of {len(prompts)} prompts could not be decoded; {faults[0]}")

    def _check(self, prompts: Sequence[Prompt]) -> None:
        seen: set[tuple[str, int]] = set()
        for prompt in prompts:
            name = f"prompt {prompt.id!r} (turn {prompt.turn})"
            if not prompt.ids:
                raise ValueError(f"{name} is empty")
            if (prompt.id, prompt.turn) in seen:
                raise ValueError(f"{name} occurs twice; ids name responses and seed their random numbers")
            seen.add((prompt.id, prompt.turn))
            need = len(prompt.ids) + self.settings.max_new_tokens
            if need > self.target.max_positions:
                raise ValueError(
                    f"{name} has {len(prompt.ids)} tokens; with max_new_tokens {self.settings.max_new_tokens} that is "
                    f"{need}, past the context of {self.target.name} ({self.target.max_positions}); shorten either"
                )

    def _allocate(self, longest: int) -> None:
        # A drafter's K is needed for the capacity and the capacity for the drafter: blocks are short, so ask for both.
        capacity = longest + self.settings.max_new_tokens
        self.drafter = self.drafter_factory(self.rows, capacity) if self.drafter_factory else None
        self.num_proposals = self.drafter.num_proposals if self.drafter else 0
        self.taps = tuple(self.drafter.taps) if self.drafter else ()
        capacity += self.num_proposals + 1
        self.cache = RaggedCache(self.rows, capacity, self.target.device)
        self._prefix: tuple[RaggedCache, Tensor | None] | None = None
        if self.shared_prefix:
            cache = RaggedCache(1, len(self.shared_prefix), self.target.device)
            ids = torch.tensor([self.shared_prefix], device=self.target.device)
            taps = self.target.forward(ids, cache, [0], taps=self.taps, logits="none").taps
            cache.commit(0, len(self.shared_prefix))
            self._prefix = (cache, taps)

    # -- a new sequence ------------------------------------------------------------------------------------------

    def _prefill(self, row: int, order: int, prompt: Prompt) -> tuple[_Row, str | None]:
        self.cache.reset(row)
        known, pieces = 0, []
        if self._prefix and prompt.ids[: len(self.shared_prefix)] == self.shared_prefix:
            # The last prompt token is always run, since its logits are wanted.
            known = min(len(self.shared_prefix), len(prompt.ids) - 1)
            self.cache.copy_row(self._prefix[0], 0, row)
            self.cache.lengths[row] = known
            if self._prefix[1] is not None:
                pieces.append(self._prefix[1][0, :known])
        ids = torch.tensor([prompt.ids[known:]], device=self.target.device)
        out = self.target.forward(ids, self.cache, [row], taps=self.taps, logits="last")
        self.cache.commit(row, ids.shape[1])

        key = stream_key(self.settings.seed, prompt.id, prompt.turn)
        empty = torch.zeros(1, 0, dtype=torch.int64, device=self.target.device)
        draws = Draws(np.array([key], dtype=np.uint64), np.array([len(prompt.ids) - 1]))
        _, first = accept_exact(out.logits, empty, self.settings.temperature, draws)
        state = _Row(order, prompt, key, [int(first)])
        stop = self.rule.first_stop([], state.output)[1]
        if stop is None and self.drafter is not None:
            pieces.append(out.taps[0])
            self.drafter.start(torch.tensor([row]), [torch.cat(pieces)], first)
        return state, stop

    # -- a round -------------------------------------------------------------------------------------------------

    def _round(self, active: dict[int, _Row]) -> list[tuple[_Row, str]]:
        """Advance every active row by one verification; returns and removes the rows that ended."""
        rows = sorted(active)
        states = [active[row] for row in rows]
        device = self.target.device
        anchors = torch.tensor([s.output[-1] for s in states], device=device)
        draws = Draws(np.array([s.key for s in states], dtype=np.uint64), np.array([s.anchor for s in states]))
        row_index = torch.tensor(rows)  # stays on the host: a drafter asks for its numbers, and must not wait for them
        with self.clock.phase("draft"):
            proposal = self._propose(row_index, draws)
        with self.clock.phase("verify"):
            # A slot nobody drafted is noticed below, with all else that is transferred; until then it is no valid id.
            tokens = proposal.tokens.clamp(min=0)
            ids = torch.cat([anchors[:, None], tokens], dim=1)
            out = self.target.forward(ids, self.cache, rows, taps=self.taps)
        with self.clock.phase("accept"):
            accepted, chosen = self._accept(out.logits, tokens, proposal.q, draws)
            # The decoder's one transfer of a round (a trace is another): accepted, next token, proposals.
            host = torch.cat([accepted[:, None], chosen[:, None], proposal.tokens], dim=1).tolist()
            if any(SENTINEL in drafted for _, _, *drafted in host):
                raise ValueError("a slot of the proposals was never drafted (sentinel left); the drafter is at fault")
            argmax = out.logits.argmax(dim=-1).tolist() if self.settings.trace else None
        with self.clock.phase("commit"):
            ended, going = [], []
            for index, (row, state, (count, token, *drafted)) in enumerate(zip(rows, states, host, strict=True)):
                if argmax is not None:
                    state.proposals.append(drafted)
                    state.argmax.append(argmax[index])
                stop = self._commit(row, state, count, [*drafted[:count], token])
                if stop is None:
                    going.append(index)
                else:
                    ended.append((row, state, stop))
        with self.clock.phase("observe"):
            counts = torch.tensor([count for count, *_ in host])
            self._observe(row_index, going, Verdict(counts, chosen, tokens, out.taps))
        for row, _, _ in ended:
            del active[row]
            self._release(row)
        return [(state, stop) for _, state, stop in ended]

    def _propose(self, rows: Tensor, draws: Draws) -> Proposal:
        if self.drafter is None:
            return Proposal(torch.zeros(len(rows), 0, dtype=torch.int64, device=self.target.device))
        sampling = None
        if self.settings.proposals == "sampled":
            drawn = draws.at("draft", self.num_proposals, self.target.device)
            sampling = Sampling(self.settings.temperature, drawn)
        proposal = self.drafter.propose(rows, sampling)
        if proposal.tokens.shape != (len(rows), self.num_proposals):
            raise ValueError(
                f"drafter returned proposals of shape {tuple(proposal.tokens.shape)}, "
                f"expected {(len(rows), self.num_proposals)}"
            )
        if sampling is not None and proposal.q is None:
            raise ValueError("sampled proposals came without their distribution q; rejection sampling needs it")
        return proposal

    def _accept(self, logits: Tensor, tokens: Tensor, q: Tensor | None, draws: Draws) -> tuple[Tensor, Tensor]:
        """Proposals accepted and the token after them, both [B] int64, by the rule of the settings; shapes as there."""
        if self.settings.accept == "exact":
            return accept_exact(logits, tokens, self.settings.temperature, draws)
        return accept_rejection(logits, tokens, q, self.settings.temperature, draws)

    def _commit(self, row: int, state: _Row, accepted: int, tokens: list[int]) -> str | None:
        """Apply stops and budget to what the verification offers, then and only then make it part of the row."""
        keep, stop = self.rule.first_stop(state.output, tokens)
        state.accepted.append(accepted)
        state.committed.append(keep)
        state.output.extend(tokens[:keep])
        if stop is None:
            self.cache.commit(row, accepted + 1)  # the old anchor and what was accepted; the new one has no cell yet
        return stop

    def _observe(self, rows: Tensor, going: list[int], verdict: Verdict) -> None:
        if self.drafter is None or not going:
            return
        if len(going) < len(rows):
            keep = torch.tensor(going)
            rows = rows[keep]
            verdict = Verdict(
                verdict.accepted[keep], verdict.next_token[keep], verdict.proposals[keep], verdict.taps[keep]
            )
        self.drafter.observe(rows, verdict)

    def _release(self, row: int) -> None:
        self.cache.reset(row)
        if self.drafter is not None:
            self.drafter.release(torch.tensor([row]))

    def _finish(self, state: _Row, stop: str) -> Response:
        trace = {"proposals": state.proposals, "argmax": state.argmax} if self.settings.trace else None
        return Response(
            state.prompt.id,
            state.prompt.turn,
            state.prompt.ids,
            state.output,
            state.accepted,
            state.committed,
            stop,
            trace,
        )
