"""Walking held-out greedy trajectories as the decoder would, and proving that it does.

The walk drafts at an anchor with the *trainer's* forward (whole-sequence features, block mask), accepts what
agrees with the trajectory, and moves on by accepted + 1.  At temperature 0 the trajectory is what the target
would answer, so the walk's steps are the decoder's steps; `check` decodes the same prompts for real and
raises at the first difference.  It does not know how the drafter was trained.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from harness.data import StopStrings, stops_of
from harness.decode import Decoder, DecodeSettings, Prompt, Response
from harness.target import Target
from harness.train.anchors import blocks_at
from harness.train.corpus import Trajectory, collate
from harness.train.features import FeatureStore
from harness.train.rounds import accepted_run
from harness.train.verify import relay_after
from methods.drafter import BlockDrafter
from methods.relays import RelayState
from methods.runner import BlockDraftRunner

#: Sequences walked side by side.
SIDE_BY_SIDE = 16
#: Two logits closer than this (relative to the larger, at least 1) may swap between two FP32 code paths.
NEAR_TIE = 1e-4


class WalkMismatch(RuntimeError):
    """The decoder did not do what the walk predicted: training and decoding differ somewhere."""


@dataclass(frozen=True)
class Walk:
    """Steps of one trajectory: accepted proposals and committed tokens of each, as `harness.decode.Response` has them.

    The last accepted count stops at the end of the trajectory: what the decoder drafts beyond is never committed.
    proposals: what was drafted in each step, rejected ones included; a relay's next round depends on them.
    """

    accepted: tuple[int, ...]
    committed: tuple[int, ...]
    proposals: tuple[tuple[int, ...], ...] = field(default=(), compare=False)


@dataclass
class WalkReport:
    """What `check` found.  near_ties: differences too close for FP32 to order, each with its gap."""

    prompts: int
    steps: int = 0
    committed: int = 0
    exact: bool = True
    near_ties: list[dict[str, Any]] = field(default_factory=list)

    @property
    def accept(self) -> float:
        return self.committed / self.steps

    def to_dict(self) -> dict[str, Any]:
        return asdict(self) | {"accept_decoded": self.accept if self.steps else None}


@torch.no_grad()
def walk(
    drafter: BlockDrafter,
    store: FeatureStore,
    trajectories: Sequence[Trajectory],
    between: Callable[[], None] = lambda: None,
) -> list[Walk]:
    """Walk every trajectory (indices are those of `store`), in the order given; `between` may raise to stop."""
    order = sorted(range(len(trajectories)), key=lambda i: len(trajectories[i].response_ids))
    walks: dict[int, Walk] = {}
    for start in range(0, len(order), SIDE_BY_SIDE):
        between()
        indices = order[start : start + SIDE_BY_SIDE]
        walks.update(zip(indices, _walk_together(drafter, store, trajectories, indices), strict=True))
    return [walks[i] for i in range(len(trajectories))]


def accept_walk(walks: Sequence[Walk]) -> float:
    """Committed tokens per step over all walks: the decoder's acceptance length at T = 0."""
    steps = sum(len(w.committed) for w in walks)
    return sum(sum(w.committed) for w in walks) / steps if steps else float("nan")


def _walk_together(
    drafter: BlockDrafter, store: FeatureStore, trajectories: Sequence[Trajectory], indices: list[int]
) -> list[Walk]:
    steps: list[tuple[list[int], list[int], list[tuple[int, ...]]]] = [([], [], []) for _ in indices]
    for taken in _rounds(drafter, store, trajectories, indices):
        columns = (taken.going, taken.accepted, taken.committed, taken.proposals)
        for row, accepted, committed, proposals in zip(*(column.tolist() for column in columns), strict=True):
            steps[row][0].append(accepted)
            steps[row][1].append(committed)
            steps[row][2].append(tuple(proposals))
    return [Walk(*map(tuple, step)) for step in steps]


class _Taken(NamedTuple):
    """One round of R sequences that still go on: which ones, and what happened."""

    going: Tensor  # [R]
    hidden: Tensor  # [R, block, H]
    tokens: Tensor  # [R]
    proposals: Tensor  # [R, K]
    accepted: Tensor  # [R]
    committed: Tensor  # [R]


def _rounds(
    drafter: BlockDrafter,
    store: FeatureStore,
    trajectories: Sequence[Trajectory],
    indices: Sequence[int],
    forced: Walk | None = None,
) -> Iterator[_Taken]:
    """One anchor a sequence and round, all sequences at once: a relay may need what the round before left.

    forced: for one sequence alone, proposals to go on with in place of those it makes now.
    """
    batch = collate(trajectories, indices)
    device = next(drafter.parameters()).device
    taps, past = store.batch_with_past(batch) if drafter.relay.uses_taps else (store.batch(batch), None)
    context = drafter.context(taps.to(device))
    ids, last = batch.ids.to(device), (batch.lengths - 1).to(device)
    anchors = batch.prompts.to(device)  # the prefill's token is the first anchor
    going = (anchors < last).nonzero()[:, 0]
    relay: RelayState | None = None
    replayed = itertools.count()
    while len(going):
        at, end, text = anchors[going], last[going], ids[going]
        hidden, tokens = _hidden_at(drafter, context[going], text, at, relay)
        proposals = drafter.draft(hidden, tokens).tokens
        if forced is not None:
            proposals = torch.tensor([forced.proposals[next(replayed)]], device=device)
        blocks = blocks_at(text, at[:, None], torch.ones_like(at[:, None], dtype=torch.bool))
        accepted = accepted_run(text, end + 1, blocks, proposals[:, None])[:, 0]
        yield _Taken(going, hidden, tokens, proposals, accepted, torch.minimum(accepted + 1, end - at))
        anchors[going] = at + accepted + 1
        on = anchors[going] < end
        if drafter.relay.uses_states and on.any():
            relay = relay_after(
                drafter,
                store.target,
                None if past is None else past.rows(going[on]),
                at[on, None],
                blocks.keep[on],
                hidden[on, None],
                proposals[on, None],
                accepted[on, None],
                text[on].gather(1, anchors[going][on, None]),
            )
        going = going[on]


def _hidden_at(
    drafter: BlockDrafter, context: Tensor, ids: Tensor, anchors: Tensor, relay: RelayState | None = None
) -> tuple[Tensor, Tensor]:
    """Denoised blocks [B, block, H] at one anchor [B] per sequence, and the anchors' tokens [B]; relay: [B, 1]."""
    tokens = ids.gather(1, anchors[:, None])
    keep = torch.ones_like(tokens, dtype=torch.bool)
    seen = context[:, : int(anchors.max())]  # nothing at or after an anchor is visible to its block
    return drafter.forward_blocks(seen, anchors[:, None], tokens, keep, relay)[:, 0], tokens[:, 0]


# -- the check ----------------------------------------------------------------------------------------------


def check(
    target: Target,
    drafter: BlockDrafter,
    trajectories: Sequence[Trajectory],
    walks: Sequence[Walk],
    *,
    max_new_tokens: int,
    stop_strings: StopStrings = (),
    rows: int = 8,
) -> WalkReport:
    """Decode the prompts of `trajectories` with `drafter` and compare every step with `walks`.

    stop_strings: those the trajectories were made with, by source where they have several.
    Raises `WalkMismatch` naming the first difference that no near tie explains.  Only float32 and wider is
    held to that; in narrower types differences are listed and ``exact`` says that they were not demanded to vanish.
    """
    strict = target.dtype.itemsize >= 4 and all(p.dtype.itemsize >= 4 for p in drafter.parameters())
    report = WalkReport(prompts=len(trajectories), exact=strict)
    groups: dict[tuple[str, ...], list[int]] = {}
    for index, trajectory in enumerate(trajectories):
        groups.setdefault(stops_of(stop_strings, trajectory.source), []).append(index)
    for stops, indices in groups.items():
        settings = DecodeSettings(
            temperature=0.0,
            seed=0,
            max_new_tokens=max_new_tokens,
            stop_ids=target.stop_ids,
            stop_strings=stops,
            trace=True,
        )
        decoder = Decoder(
            target,
            lambda count, capacity: BlockDraftRunner(drafter, count, capacity),
            settings,
            rows=min(rows, len(indices)),
        )
        chosen = [trajectories[i] for i in indices]
        # Trajectories that were cut short by another budget would end elsewhere; the decoder refuses repeated ids.
        responses = decoder.run([Prompt(t.prompt_id, t.prompt_ids, t.turn) for t in chosen])
        for response, trajectory, index in zip(responses, chosen, indices, strict=True):
            _compare(target, drafter, response, trajectory, walks[index], report)
    return report


def _compare(
    target: Target,
    drafter: BlockDrafter,
    response: Response,
    trajectory: Trajectory,
    expected: Walk,
    report: WalkReport,
) -> None:
    """Add one response to the report.  Raises `WalkMismatch` for a difference that no near tie explains."""
    report.steps += len(response.committed)
    report.committed += sum(response.committed)
    difference = _text_difference(target, response, trajectory) or _step_difference(
        target, drafter, response, trajectory, expected
    )
    if difference is None:
        return
    difference = {"prompt_id": trajectory.prompt_id, "turn": trajectory.turn} | difference
    if report.exact and not difference["gap"] <= NEAR_TIE:
        raise WalkMismatch(
            f"{difference['what']} of prompt {trajectory.prompt_id!r} (turn {trajectory.turn}), "
            f"{difference['place']}: the walk has {difference['walk']}, the decoder "
            f"{difference['decoder']}, and the two best logits there are {difference['gap']:.3g} apart "
            "(relative), so rounding does not explain it. "
            "Features, positions or alignment differ between training and decoding"
        )
    report.near_ties.append(difference)


def _text_difference(target: Target, response: Response, trajectory: Trajectory) -> dict[str, Any] | None:
    """First token where the decoder's output is not the trajectory, with the target's own top-2 gap there."""
    ours, theirs = list(trajectory.response_ids), response.output_ids
    if ours == theirs:
        return None
    at = next((i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), min(len(ours), len(theirs)))
    gap = float("inf")  # one is a prefix of the other: no tie explains that
    if at < min(len(ours), len(theirs)):
        ids = torch.tensor([[*trajectory.prompt_ids, *ours[:at]]], device=target.device)
        gap = _gap(target.logits(ids)[0, -1])
    return {
        "what": "output token",
        "place": f"token {at} of the response",
        "walk": ours[at : at + 1],
        "decoder": theirs[at : at + 1],
        "gap": gap,
    }


def _step_difference(
    target: Target, drafter: BlockDrafter, response: Response, trajectory: Trajectory, expected: Walk
) -> dict[str, Any] | None:
    """First step that commits another number of tokens (same text), with the draft's top-2 gap at the slot in doubt.

    With a relay, other proposals behind the same accepted ones are a difference too: they reach the next round.
    """
    for step, (ours, theirs) in enumerate(zip(expected.committed, response.committed, strict=False)):
        drafted, decoded = expected.proposals[step], response.trace["proposals"][step]
        if ours != theirs:
            slot = min(ours, theirs) - 1  # the first proposal that one accepted and the other did not
        elif drafter.relay.uses_states and list(drafted) != decoded:
            slot = next(i for i, (a, b) in enumerate(zip(drafted, decoded, strict=True)) if a != b)
            ours, theirs = drafted[slot], decoded[slot]
        else:
            continue
        anchor = len(trajectory.prompt_ids) + sum(expected.committed[:step])
        return {
            "what": "step",
            "place": f"step {step} at position {anchor}, proposal {slot + 1}",
            "walk": ours,
            "decoder": theirs,
            "gap": _draft_gap(target, drafter, trajectory, expected, step, slot),
        }
    return None


@torch.no_grad()
def _draft_gap(
    target: Target, drafter: BlockDrafter, trajectory: Trajectory, expected: Walk, step: int, slot: int
) -> float:
    """Gap of the draft logits of proposal `slot` at a step of the walk `expected`, which is replayed up to there."""
    store = FeatureStore(target, drafter.config.taps, [trajectory], 0.0)
    taken = next(itertools.islice(_rounds(drafter, store, [trajectory], [0], expected), step, None))
    block = torch.cat((taken.tokens[:, None], taken.proposals), dim=1)[:, : drafter.layout.block_size]
    block = F.pad(block, (0, drafter.layout.block_size - block.shape[1]))  # what stands behind is read by no proposal
    return _gap(drafter.train_logits(taken.hidden, block).final[0, slot])


def _gap(logits: Tensor) -> float:  # [V]
    """Distance of the two largest logits, relative to the largest magnitude (at least 1)."""
    best = logits.double().topk(2).values
    return float((best[0] - best[1]) / best.abs().max().clamp(min=1.0))
