"""A fresh drafter for a target, from the configuration: dimensions, mask token, draft vocabulary, initial
weights.

It knows what the configuration leaves open and how it is filled from the target; whatever it picks is written
into the drafter's own config, so nothing is guessed when the checkpoint is read.
"""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from harness.options import head_options, relay_options
from harness.sections import DrafterSettings, TrainConfig
from harness.settings import Config
from harness.target import Target, TargetError
from harness.train.corpus import Trajectory
from harness.train.rounds import MaskRounds, RejectedRounds
from methods.config import DrafterConfig
from methods.drafter import BlockDrafter

log = logging.getLogger(__name__)


def build_rounds(settings: TrainConfig, drafter: BlockDrafter, target: Target, seed: int) -> MaskRounds:
    """The rounds of one run: two after the first with a relay, none without, unless the settings say otherwise."""
    count = settings.rounds_with(drafter.relay.uses_states)
    if not count:
        return MaskRounds(seed, settings.anchors)
    return RejectedRounds(
        seed,
        settings.anchors,
        drafter,
        target,
        count=count,
        chains=settings.chains,
        rollout=settings.rollout,
        after_full=settings.after_full,
        chunk=settings.head_chunk,
    )


def build_drafter(
    config: Config, target: Target, method: str, seed: int, trajectories: Sequence[Trajectory]
) -> BlockDrafter:
    """The untrained drafter of one run, on the target's device and in its dtype.  Weights depend on `seed` alone.

    trajectories: training set; its most frequent tokens make the draft vocabulary, where one is asked for.
    """
    vocab = draft_vocab(target, trajectories, config.drafter.draft_vocab_size)
    made = drafter_config(config.drafter, target, method, None if vocab is None else len(vocab))
    refuse_mask_in_text(made.mask_token_id, trajectories)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        drafter = BlockDrafter(made, target.binding, draft_vocab=vocab)
    return drafter.to(device=target.device, dtype=target.dtype)


def drafter_config(
    settings: DrafterSettings, target: Any, method: str, draft_vocab_size: int | None = None, mask: int | None = None
) -> DrafterConfig:
    """What a drafter for `target` will say about itself.  Raises ``ValueError`` for one the target cannot have.

    mask: the mask token, if it has been chosen; else `mask_token` chooses it.
    """
    overrides = {} if draft_vocab_size is None else {"draft_vocab_size": draft_vocab_size}
    if settings.intermediate_size is not None:
        overrides["intermediate_size"] = settings.intermediate_size
    return DrafterConfig.for_target(
        target.config,
        method=method,
        target=target.name,
        target_source=target.source,
        target_revision=target.revision,
        target_fingerprint=target.fingerprint,
        template_hash=target.template_hash,
        thinking=target.thinking,
        mask_token_id=mask_token(target, settings) if mask is None else mask,
        rope_theta=target.rope_theta,
        head_options=head_options(settings),
        relay_options=relay_options(settings, target.hidden_size),
        block_size=settings.block_size,
        alignment=settings.alignment,
        num_proposals=settings.num_proposals,
        num_layers=settings.num_layers,
        taps=None if settings.taps is None else tuple(settings.taps),
        **overrides,
    )


def mask_token(target: Target, settings: DrafterSettings) -> int:
    """The id whose embedding fills the slots to be denoised: configured, or one the target never reads or writes.

    In this order: ``drafter.mask_token_id``; the tokenizer's mask token; an added token named like a mask, or
    like an unused or reserved one; the first embedding row past the tokenizer.  Never a word of the learned
    vocabulary that nobody named, never a stop, padding or beginning token, and always inside the embedding.
    Raises `TargetError` if there is none.
    """
    tokenizer, rows = target.tokenizer, target.model.get_input_embeddings().weight.shape[0]
    taken = set(target.stop_ids) | {
        tokenizer.eos_token_id,
        tokenizer.pad_token_id,
        tokenizer.bos_token_id,
    } - {None}
    if settings.mask_token_id is not None:
        if settings.mask_token_id >= rows or settings.mask_token_id in taken:
            raise TargetError(
                f"drafter.mask_token_id is {settings.mask_token_id}: it must lie inside the embedding of "
                f"{target.name} (below {rows}) and be no stop, padding or beginning token ({sorted(taken)})"
            )
        return settings.mask_token_id
    vocabulary = tokenizer.get_vocab()
    added = {*map(str, tokenizer.added_tokens_decoder.values()), *tokenizer.all_special_tokens}
    named = [  # in brackets of some kind: an added token may be a word of text too
        token_id
        for pattern in (r"\W+mask\W+", r"\W+(unused|reserved)\w*\W+")
        for token_id, token in sorted((vocabulary[token], token) for token in added if token in vocabulary)
        if re.fullmatch(pattern, token, re.IGNORECASE)
    ]
    own = getattr(tokenizer, "mask_token_id", None)
    past = max(vocabulary.values()) + 1  # ids may have gaps, so their number does not tell
    for token_id in [*([] if own is None else [own]), *named, past]:
        if token_id < rows and token_id not in taken:
            return token_id
    raise TargetError(
        f"target {target.name} has no unused token for the masks; name one that never occurs in its text in "
        "drafter.mask_token_id"
    )


def refuse_mask_in_text(mask: int, trajectories: Sequence[Trajectory]) -> None:
    """A mask token that real text uses would give one embedding two meanings; a sampled one is a freak, and said."""
    asked = next((t.prompt_id for t in trajectories if mask in t.prompt_ids), None)
    if asked is not None:
        raise TargetError(f"mask token {mask} occurs in prompt {asked!r}; name another in drafter.mask_token_id")
    freaks = sum(mask in t.response_ids for t in trajectories)
    if freaks:
        log.warning("the target itself wrote the mask token %d in %d responses", mask, freaks)


def draft_vocab(target: Target, trajectories: Sequence[Trajectory], size: int | None) -> Tensor | None:
    """The `size` most frequent response tokens and all stop ids, ascending [V_d]; None for the whole vocabulary."""
    if size is None or size >= target.vocab_size:
        return None
    counts = Counter(token for trajectory in trajectories for token in trajectory.response_ids)
    ranked = sorted(counts, key=lambda token: (-counts[token], token))
    chosen = list(dict.fromkeys([*target.stop_ids, *ranked]))[:size]
    return torch.tensor(sorted(chosen))
