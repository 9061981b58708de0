"""What a model must pass before it serves as a target: whole weights, a forward we reproduce, a memory to cut back.

It knows how transformers runs a model and what the harness asks of one.  It does not load models, and it does not know
suites, drafters or rounds.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from harness.cache import RaggedCache

if TYPE_CHECKING:
    from harness.target import Target

log = logging.getLogger(__name__)

# How far logits may lie from the model's own forward, and from themselves after a rollback, as a share of the largest
# one.  Sound float32 targets stay below 2e-6.  transformers computes norms and rotations in float32 whatever the dtype,
# so float64 agrees with the model's own forward no better than float32 does.
BOUNDS = {torch.float32: (1e-4, 2e-5), torch.float64: (1e-4, 1e-8)}
COARSE = (5e-2, 5e-2)  # of the half precisions
TOKENS, PREFIX, WINDOW = 32, 20, 6


class TargetError(ValueError):
    """A model that cannot serve as a target, with the reason and the mend."""


def refuse_states(model: Any, name: str) -> None:
    """Raise `TargetError` for a model that by its own word is recurrent or has layers without plain attention.

    Said once more, because in half precision the comparison of logits is too coarse to find a short memory.
    """
    kinds = getattr(model.config.get_text_config(), "layer_types", None) or ()
    strange = sorted(set(kinds) - {"full_attention", "sliding_attention"})
    if strange or getattr(model, "_is_stateful", False):
        what = f"layers of type {', '.join(strange)}" if strange else "a recurrent state"
        raise TargetError(
            f"target {name}: {type(model).__name__} has {what}; use a transformer whose layers all have full or "
            "sliding attention, whose memory can be cut back when drafts are rejected"
        )


def refuse_gaps(found: dict[str, Any], name: str, source: str) -> None:
    """Raise `TargetError` for weights that leave tensors of the model at random values (tied ones are not missing).

    found: what `from_pretrained` says of its loading.  Tensors that belong to nothing are only warned of: published
    checkpoints carry harmless ones (rotary tables, heads for other tasks).
    """
    faults = [f"{key} is missing" for key in sorted(found["missing_keys"])]
    faults += [f"{key} has shape {list(a)} for {list(b)}" for key, a, b in sorted(found["mismatched_keys"])]
    if faults:
        raise TargetError(
            f"target {name}: the weights of {source!r} leave {len(faults)} tensors of the model unfilled "
            f"({'; '.join(faults[:5])}); fetch them again, or correct their config.json"
        )
    extras = sorted(found["unexpected_keys"])
    if extras:
        log.warning("target %s: %d tensors of %r belong to nothing: %s", name, len(extras), source, extras[:5])


def refuse_nonfinite(model: Any, name: str) -> None:
    """Raise `TargetError` for weights that hold NaN or infinity; they would be decoded as tokens."""
    for key, tensor in model.named_parameters():
        if not torch.isfinite(tensor).all():
            raise TargetError(f"target {name}: its weight {key} holds NaN or inf; fetch or train it again")


@torch.no_grad()
def compare_forwards(target: Target) -> None:
    """Compare the model's own forward; ours without a cache; ours in two pieces with a block drafted wrongly and rolled
    back in between.  Raises `TargetError` with the gap and the likely cause of each.

    Sliding windows are shortened meanwhile, so that a few tokens reach past them.
    """
    ids = (torch.arange(TOKENS, device=target.device) * 7919 + 11).remainder(target.vocab_size)[None]
    with _short_windows(target):
        received, reference = _stock_pass(target, ids)
        plain = target.logits(ids)
        cache = RaggedCache(1, TOKENS, target.device)
        target.forward(ids[:, :PREFIX], cache, [0], logits="none")
        cache.commit(0, PREFIX)
        drafted = (ids[:, PREFIX:] + 1).remainder(target.vocab_size)
        target.forward(drafted, cache, [0], logits="none")  # never committed, so rolled back
        resumed = target.forward(ids[:, PREFIX:], cache, [0]).logits
    if received and not torch.equal(received[0], target.embed(ids)):
        raise TargetError(
            f"target {target.name}: its first layer does not receive what its embedding module returns; a drafter "
            "would borrow the wrong embedding. This architecture is not supported"
        )
    loose, tight = (share * reference.abs().max().item() for share in BOUNDS.get(target.dtype, COARSE))
    if not (gap := _gap(plain, reference)) <= loose:  # NaN fails too
        raise TargetError(
            f"target {target.name}: logits without a cache differ from the model's own by {gap:.3g} (allowed "
            f"{loose:.3g}); {type(target.model).__name__} computes something this harness does not (a factor on its "
            "logits, a state kept between calls). This architecture is not supported"
        )
    if not (gap := _gap(resumed, plain[:, PREFIX:])) <= tight:
        raise TargetError(
            f"target {target.name}: logits after a rollback differ from a fresh pass by {gap:.3g} (allowed "
            f"{tight:.3g}); a memory that cannot be cut back (recurrent, convolutional or compressing layers) cannot "
            "verify drafts. Use a transformer with attention in every layer"
        )


def _gap(got: Tensor, expected: Tensor) -> float:
    return (got.double() - expected.double()).abs().max().item()


def _stock_pass(target: Target, ids: Tensor) -> tuple[list[Tensor], Tensor]:  # ids: [1, S]
    """What the first layer receives [1, S, H] and the logits [1, S, V], exactly as transformers computes them."""
    received: list[Tensor] = []
    hook = target.layers[0].register_forward_pre_hook(lambda _m, args: received.append(args[0]) if args else None)
    target.use_our_attention(False)
    try:
        return received, target.model(input_ids=ids, use_cache=False).logits
    finally:
        hook.remove()
        target.use_our_attention(True)


@contextmanager
def _short_windows(target: Target) -> Iterator[None]:
    """Sliding windows of at most `WINDOW` tokens, wherever a module or its config names one."""
    holders = {id(h): h for module in target.model.modules() for h in (module, getattr(module, "config", None))}
    windows = [(h, h.sliding_window) for h in holders.values() if type(getattr(h, "sliding_window", None)) is int]
    try:
        for holder, window in windows:
            holder.sliding_window = min(window, WINDOW)
        yield
    finally:
        for holder, window in windows:
            holder.sliding_window = window
