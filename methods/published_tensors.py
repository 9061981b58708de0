"""Tensors of released checkpoint layouts: every one accounted for by name, shape and dtype, then bit for bit the same.

Tensors have the same names on disk here as in released files (`checkpoint.published_name`); early exports of Domino put
a prefix before the head's.  The gates of a GRU stand in torch's order, r, z, n, in both.  Embedding and head are the
target's and stand in no file.  It knows no config key (`published.py`) and no file.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from methods.checkpoint import CheckpointError, published_name
from methods.config import DrafterConfig
from methods.contract import TargetBinding
from methods.drafter import BlockDrafter
from methods.published import FORMATS

#: Ends of names of tensors that some drafters of this family own and these formats borrow.
BORROWED = ("embed_tokens.weight", "lm_head.weight")


def skeleton(config: DrafterConfig) -> BlockDrafter:
    """The drafter of `config` on the meta device: every tensor's name and shape, and no memory."""
    nothing = TargetBinding(_unbound, _unbound, config.hidden_size, config.vocab_size)
    size = config.draft_vocab_size
    vocab = None if size is None else torch.arange(size)  # its values are looked at, so it is real
    with torch.device("meta"):
        return BlockDrafter(config, nothing, draft_vocab=vocab)


def _unbound(*_: Any) -> Tensor:
    raise CheckpointError("this drafter is bound to no target")


def own_names(where: str, found: Mapping[str, Tensor], name: str) -> dict[str, Tensor]:
    """Tensors under the names they have on disk here: those of a released file, less the prefix of early exports.

    Raises `CheckpointError` if a tensor stands there with the prefix and without.
    """
    prefix = FORMATS[name].prefix
    renamed: dict[str, Tensor] = {}
    for key, value in found.items():
        plain = key.removeprefix(prefix)
        if plain in renamed:
            raise CheckpointError(f"{where}: {plain} stands there twice, once as {prefix}{plain}; one of them must go")
        renamed[plain] = value
    return renamed


def check_tensors(where: str, found: Mapping[str, Tensor], config: DrafterConfig, dtype: str | None = None) -> None:
    """Raise `CheckpointError` naming every tensor that is missing, unknown, misshaped or of another dtype.

    found: under our names; may lie on the meta device, for nothing but names, shapes and dtypes is looked at.
    dtype: what the config says of it, if it does.
    """
    wanted = {published_name(key): value.shape for key, value in skeleton(config).state_dict().items()}
    missing, unknown = sorted(wanted.keys() - found.keys()), sorted(found.keys() - wanted.keys())
    if missing or unknown:
        borrowed = [key for key in unknown if key.endswith(BORROWED)]
        hint = f"; {borrowed} are the target's in this format" if borrowed else ""
        raise CheckpointError(f"{where}: missing tensors: {missing}; unknown tensors: {unknown}{hint}")
    shapes = [
        f"{key} has shape {list(found[key].shape)}, not {list(shape)}"
        for key, shape in wanted.items()
        if found[key].shape != shape
    ]
    if shapes:
        raise CheckpointError(f"{where}: {'; '.join(shapes)}")
    kinds = {key: str(value.dtype).removeprefix("torch.") for key, value in found.items()}
    first = dtype or next(iter(kinds.values()))
    other = {key: kind for key, kind in kinds.items() if kind != first}
    if other or not all(value.is_floating_point() for value in found.values()):
        said = "the config says" if dtype else "the first tensor is"
        raise CheckpointError(f"{where}: {said} {first}, but these tensors are not: {other or kinds}")


def with_tensors(config: DrafterConfig, found: Mapping[str, Tensor]) -> BlockDrafter:
    """A drafter that holds these very tensors, as they are.  It is bound to no target and cannot draft."""
    drafter = skeleton(config)
    drafter.load_state_dict({name: found[published_name(name)] for name in drafter.state_dict()}, assign=True)
    return drafter


def check_finite(where: str, found: Mapping[str, Tensor]) -> None:
    """Raise `CheckpointError` naming the tensors that hold NaN or inf."""
    poisoned = [key for key, value in found.items() if not torch.isfinite(value).all()]
    if poisoned:
        raise CheckpointError(f"{where}: these tensors hold NaN or inf: {poisoned}")
