"""Everything that defines a trained drafter, as plain numbers and names.  All required, none guessed.

It knows what a checkpoint must say about itself; it knows no tensor and no file.
"""

from __future__ import annotations

import types
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, is_dataclass
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from methods.contract import Alignment, BlockLayout
from methods.recipes import recipe


@dataclass(frozen=True)
class DominoOptions:
    """What the `domino` head leaves open (Domino section 5)."""

    gru_size: int  # G, width of the prefix state
    rank: int  # R, of the correction
    pure_prefix: int  # P, proposals that the backbone makes alone

    def __post_init__(self) -> None:
        for name, least in (("gru_size", 1), ("rank", 1), ("pure_prefix", 0)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least {least}")


@dataclass(frozen=True)
class RelayOptions:
    """What the `verifier` relay leaves open; the card methods/dflow/README.md says what the harness takes, and why."""

    first_rejected: bool
    last_row: bool
    anchor_slot: bool
    mlp_width: int
    gate: Literal["plain", "one_plus"]
    norm: Literal["layer", "rms"]
    normalise_boundary: bool
    detach: Literal["state", "taps"]
    states: Literal["verifier", "drafter"]
    shuffle: bool
    boundary: bool

    def __post_init__(self) -> None:
        if self.mlp_width < 1:
            raise ValueError(f"mlp_width is {self.mlp_width}; it must be positive")


#: Components that have options, and of which type; every other component has None.
HEAD_OPTIONS = {"domino": DominoOptions}
RELAY_OPTIONS = {"verifier": RelayOptions}


@dataclass(frozen=True)
class DrafterConfig:
    """One drafter.  Every field must stand in a checkpoint; missing and unknown ones are errors."""

    recipe: str
    fusion: str
    backbone: str
    head: str
    relay: str
    head_options: DominoOptions | None  # None: the head has none
    relay_options: RelayOptions | None
    block_size: int
    alignment: Alignment
    num_proposals: int
    mask_token_id: int
    taps: tuple[int, ...]  # target layers (0-based, output of the layer), in order of concatenation
    hidden_size: int
    num_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    intermediate_size: int
    rms_norm_eps: float
    rope_theta: float
    max_position_embeddings: int
    vocab_size: int
    draft_vocab_size: int | None  # None: the head predicts over the whole vocabulary
    target: str
    target_source: str  # hub id, folder or file, as configured
    target_revision: str | None  # commit or tag; None: the source has no versions, or none was known
    target_fingerprint: str
    template_hash: str  # "plain": the target has no chat template
    thinking: bool | None  # None: the target knows no thinking mode

    def __post_init__(self) -> None:
        self.layout  # noqa: B018  (raises for a block that cannot hold its proposals)
        self._check_components()
        self._check_numbers()

    def _check_components(self) -> None:
        chosen = recipe(self.recipe)
        for axis in ("fusion", "backbone", "head", "relay"):
            if getattr(self, axis) != getattr(chosen, axis):
                raise ValueError(
                    f"{axis} is {getattr(self, axis)!r}, but recipe {self.recipe!r} has {getattr(chosen, axis)!r}"
                )
        for axis, table in (("head", HEAD_OPTIONS), ("relay", RELAY_OPTIONS)):
            wanted, options = table.get(getattr(self, axis)), getattr(self, f"{axis}_options")
            if type(options) is not (wanted or type(None)):
                kind = "None" if wanted is None else f"a {wanted.__name__}"
                raise ValueError(f"{axis}_options is {options!r}; {axis} {getattr(self, axis)!r} takes {kind}")

    def _check_numbers(self) -> None:
        for name in (
            "hidden_size",
            "num_layers",
            "num_attention_heads",
            "num_key_value_heads",
            "head_dim",
            "intermediate_size",
            "rms_norm_eps",
            "rope_theta",
            "max_position_embeddings",
            "vocab_size",
        ):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be positive")
        if self.block_size >= self.max_position_embeddings:
            raise ValueError(
                f"block_size is {self.block_size}, but the context has {self.max_position_embeddings} positions, a "
                "prompt included; use a smaller block"
            )
        if self.num_attention_heads % self.num_key_value_heads:
            raise ValueError(
                f"num_attention_heads is {self.num_attention_heads}, not a multiple of num_key_value_heads "
                f"{self.num_key_value_heads}"
            )
        if self.head_dim % 2:
            raise ValueError(f"head_dim is {self.head_dim}; rotary positions need an even number")
        if not 0 <= self.mask_token_id < self.vocab_size:
            raise ValueError(f"mask_token_id is {self.mask_token_id}, outside the {self.vocab_size} token ids")
        if not self.taps or min(self.taps) < 0 or len(set(self.taps)) != len(self.taps):
            raise ValueError(f"taps are {self.taps}; name target layers, at least one, each once, from 0")
        if self.draft_vocab_size is not None and not 0 < self.draft_vocab_size <= self.vocab_size:
            raise ValueError(f"draft_vocab_size is {self.draft_vocab_size}; use 1 to {self.vocab_size} or None")

    @property
    def layout(self) -> BlockLayout:
        return BlockLayout(self.block_size, self.alignment, self.num_proposals)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values, taps as a list."""
        return {name: list(v) if isinstance(v, tuple) else v for name, v in asdict(self).items()}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> DrafterConfig:
        """The config written by `to_dict`; ``ValueError`` names each missing, unknown or mistyped key."""
        return cls(**_fields(cls, values))

    @classmethod
    def for_target(
        cls,
        text_config: Any,
        *,
        method: str,
        target: str,
        target_source: str,
        target_revision: str | None,
        target_fingerprint: str,
        template_hash: str,
        thinking: bool | None,
        mask_token_id: int,
        rope_theta: float,
        head_options: DominoOptions | None = None,
        relay_options: RelayOptions | None = None,
        block_size: int = 16,
        alignment: Alignment = "same",
        num_proposals: int | None = None,
        num_layers: int = 5,
        taps: tuple[int, ...] | None = None,
        **overrides: Any,
    ) -> DrafterConfig:
        """A config whose dimensions are those of the target (as DFlash does), read from its text config.

        head_options, relay_options: dropped where the method's components have none.
        overrides: any other field by name (``intermediate_size=256``); ``ValueError`` for unknown names.
        """
        chosen = recipe(method)
        if not chosen.drafts:
            raise ValueError(f"method {method!r} has no drafter to configure")
        heads = text_config.num_attention_heads
        values: dict[str, Any] = dict(
            recipe=chosen.name,
            fusion=chosen.fusion,
            backbone=chosen.backbone,
            head=chosen.head,
            relay=chosen.relay,
            head_options=head_options if chosen.head in HEAD_OPTIONS else None,
            relay_options=relay_options if chosen.relay in RELAY_OPTIONS else None,
            block_size=block_size,
            alignment=alignment,
            num_proposals=block_size - 1 if num_proposals is None else num_proposals,
            mask_token_id=mask_token_id,
            taps=default_taps(text_config.num_hidden_layers, max(5, num_layers)) if taps is None else tuple(taps),
            hidden_size=text_config.hidden_size,
            num_layers=num_layers,
            num_attention_heads=heads,
            num_key_value_heads=getattr(text_config, "num_key_value_heads", None) or heads,
            head_dim=getattr(text_config, "head_dim", None) or text_config.hidden_size // heads,
            intermediate_size=text_config.intermediate_size,
            rms_norm_eps=float(getattr(text_config, "rms_norm_eps", 1e-6)),
            rope_theta=float(rope_theta),
            max_position_embeddings=text_config.max_position_embeddings,
            vocab_size=text_config.vocab_size,
            draft_vocab_size=None,
            target=target,
            target_source=target_source,
            target_revision=target_revision,
            target_fingerprint=target_fingerprint,
            template_hash=template_hash,
            thinking=thinking,
        )
        config = cls.from_dict({**values, **overrides})
        last = text_config.num_hidden_layers - 1
        if max(config.taps) > last:
            raise ValueError(f"taps are {config.taps}, but the target has layers 0 to {last}")
        return config


def default_taps(target_layers: int, count: int) -> tuple[int, ...]:
    """`count` layers spread evenly from 1 to L-3 (the released DFlash rule), fewer where they coincide."""
    if count == 1 or target_layers < 5:
        return (target_layers // 2,)
    spread = (round(1 + i * (target_layers - 4) / (count - 1)) for i in range(count))
    return tuple(sorted(set(spread)))


def _fields(kind: type, values: Mapping[str, Any], place: str = "") -> dict[str, Any]:
    """`values` as the fields of a dataclass, each of its type; ``ValueError`` names every missing or unknown key."""
    known = [place + field.name for field in fields(kind)]
    missing = [name for name in known if name.removeprefix(place) not in values]
    unknown = [place + name for name in values if place + name not in known]
    if missing or unknown:
        raise ValueError(f"missing keys: {missing}; unknown keys: {unknown}; exactly these are known: {known}")
    hints = get_type_hints(kind)
    return {field.name: _typed(place + field.name, values[field.name], hints[field.name]) for field in fields(kind)}


def _typed(name: str, value: Any, hint: Any) -> Any:
    """`value` if it fits the field's type, lists turned into tuples; else ``ValueError`` naming the key."""
    for option in get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,):
        if is_dataclass(option) and isinstance(value, option):
            return value
        if is_dataclass(option) and isinstance(value, Mapping):
            return option(**_fields(option, value, f"{name}."))
        if get_origin(option) is Literal and value in get_args(option):
            return value
        if get_origin(option) is tuple and isinstance(value, list | tuple) and all(type(v) is int for v in value):
            return tuple(value)
        if option is float and type(value) in (int, float):
            return float(value)
        if isinstance(option, type) and type(value) is option:
            return value
    raise ValueError(f"{name} is {value!r}, which is not of type {getattr(hint, '__name__', hint)}")
