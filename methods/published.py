"""Released checkpoint layouts, DFlash of z-lab and Domino: what their config says of a drafter, both ways.

It knows keys and conventions; it knows no tensor (`published_tensors.py`), file, hub or model.  Nothing is guessed:
every key is read, has the one value that can be expressed here, or is known to change nothing.  Where conventions meet:

* `target_layer_ids` counts as taps do: layer L means the output of decoder layer L, from 0, which transformers lists as
  ``hidden_states[L + 1]``.  For the last layer that entry is normed and a tap is not, so it is refused.
* DFlash has slot j predict p+j (`same`).  `shift_label` true says `next`; Domino's configs always have the key, z-lab's
  never, and z-lab's package does not look at it.
* `pure_draft_prefix_len` is `pure_prefix` in either alignment: proposals that the backbone makes alone.

Sources: the released package dflash 0.1.0, the Domino configurations of SpecForge.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from methods.checkpoint import CheckpointError
from methods.config import DominoOptions, DrafterConfig
from methods.recipes import recipe


@dataclass(frozen=True)
class Format:
    """A released layout.

    recipe: whose drafters it holds.  projectors: values of `projector_type` it may have, None for none.  options: keys
    it must have beside DFlash's.  prefix: what early exports put before the names of the head's tensors.
    """

    recipe: str
    projectors: tuple[str | None, ...]
    options: tuple[str, ...] = ()
    prefix: str = ""


#: By the name that configurations and commands use.
FORMATS: dict[str, Format] = {
    "dflash": Format("dflash", (None, "dflash")),
    "domino": Format(
        "domino",
        ("domino",),
        options=("projector_type", "emb_dim", "gru_hidden_dim", "pure_draft_prefix_len", "shift_label"),
        prefix="logit_head.",
    ),
}

#: Field of a drafter's config -> key of a released one, where one value is simply the other.
SAME = {
    "block_size": "block_size",
    "mask_token_id": "mask_token_id",
    "taps": "target_layer_ids",
    "hidden_size": "hidden_size",
    "num_layers": "num_hidden_layers",
    "num_attention_heads": "num_attention_heads",
    "num_key_value_heads": "num_key_value_heads",
    "head_dim": "head_dim",
    "intermediate_size": "intermediate_size",
    "rms_norm_eps": "rms_norm_eps",
    "max_position_embeddings": "max_position_embeddings",
    "vocab_size": "vocab_size",
}
REQUIRED = (*SAME.values(), "model_type", "num_target_layers")
#: Keys that may have these values only; another value is a drafter that has no form here.
FIXED: dict[str, tuple[Any, ...]] = {
    "model_type": ("qwen3",),
    "architectures": (["DFlashDraftModel"], ["DominoDraftModel"]),
    "hidden_act": ("silu",),
    "attention_bias": (False,),
    "use_sliding_window": (False,),
    "is_causal": (None, False),
    "quantization_config": (None,),
    "input_embedding_scale": (1.0,),
    "output_multiplier": (1.0,),
    "use_bias_norm": (False,),
    "use_bias_gate": (False,),
}
#: Keys that change nothing in how a drafter drafts: of training, of transformers, of a model's own embedding and head.
INERT = frozenset(
    "attention_dropout auto_map bos_token_id chunk_size_feed_forward eos_token_id id2label initializer_range "
    "is_encoder_decoder label2id max_window_layers output_attentions output_hidden_states pad_token_id problem_type "
    "return_dict sliding_window tie_word_embeddings transformers_version use_cache _name_or_path".split()
)
#: Names of the dtype in configs of transformers 5 and 4.
DTYPES = ("dtype", "torch_dtype")
_ABSENT = object()


@dataclass(frozen=True)
class TargetFacts:
    """What a released checkpoint leaves to the target it is used with.

    reserved: ids a mask must not have -> what they are.  softcap: of the target's logits.  scaled: whether it scales
    its embeddings, which the released code does not.
    """

    name: str
    source: str
    revision: str | None
    fingerprint: str
    template_hash: str
    thinking: bool | None
    num_layers: int
    hidden_size: int
    vocab_size: int
    embedding_rows: int
    reserved: Mapping[int, str]
    softcap: float | None = None
    scaled: bool = False


class _Keys:
    """A released config as it is read: an option may stand at the top or in `dflash_config`, and what nobody has asked
    for is an error in the end."""

    def __init__(self, where: str, values: Mapping[str, Any]) -> None:
        options = values.get("dflash_config")
        if not isinstance(options, Mapping):
            raise CheckpointError(
                f"{where}: dflash_config is {options!r}; it holds mask_token_id and target_layer_ids, not guessed here"
            )
        top = {key: value for key, value in values.items() if key != "dflash_config"}
        self.where, self.places = where, {"": top, "dflash_config.": options}
        self.asked = {*INERT, *DTYPES}

    def get(self, name: str, default: Any = _ABSENT) -> Any:
        """The value of `name`, in whichever place it stands.  Raises `CheckpointError` if it is in neither."""
        self.asked.add(name)
        found = {place + name: table[name] for place, table in self.places.items() if name in table}
        if not found and default is _ABSENT:
            raise self.fault(f"no {name}; it defines the drafter and is not guessed")
        if len(found) == 2 and len(set(map(repr, found.values()))) == 2:
            raise self.fault(" but ".join(f"{key} is {value!r}" for key, value in found.items()) + "; which is meant?")
        return next(iter(found.values()), default)

    def fault(self, text: str) -> CheckpointError:
        return CheckpointError(f"{self.where}: {text}")

    def refuse_rest(self) -> None:
        rest = [place + key for place, table in self.places.items() for key in table if key not in self.asked]
        if rest:
            raise self.fault(
                f"unknown keys: {rest}; if they change nothing in how the drafter drafts, list them under INERT in "
                "methods/published.py"
            )


def drafter_config(where: str, values: Mapping[str, Any], name: str, target: TargetFacts) -> DrafterConfig:
    """What the released config `values` says, for use with `target`.

    where: names the config in errors.  name: of the format.  Raises `CheckpointError` naming the key, its value and
    what was expected.
    """
    layout, keys = FORMATS[name], _Keys(where, values)
    missing = [key for key in (*REQUIRED, *layout.options) if all(key not in table for table in keys.places.values())]
    if missing:
        raise keys.fault(f"missing keys: {missing}; they define the drafter and are not guessed")
    _refuse_other(keys, layout, name)
    chosen = recipe(layout.recipe)
    found = {field: keys.get(key) for field, key in SAME.items()}
    # Released drafters propose one token fewer than the block has slots, in either alignment.
    proposals = found["block_size"] - 1 if type(found["block_size"]) is int else 1
    head = {"gru_size": "gru_hidden_dim", "rank": "emb_dim", "pure_prefix": "pure_draft_prefix_len"}
    options = {option: keys.get(key) for option, key in head.items()} if chosen.head == "domino" else None
    ours = found | {
        "recipe": chosen.name,
        "fusion": chosen.fusion,
        "backbone": chosen.backbone,
        "head": chosen.head,
        "relay": chosen.relay,
        "head_options": options,
        "relay_options": None,
        "num_proposals": proposals,
        "alignment": _alignment(keys),
        "rope_theta": _rope_theta(keys),
        "draft_vocab_size": None,
        "target": target.name,
        "target_source": target.source,
        "target_revision": target.revision,
        "target_fingerprint": target.fingerprint,
        "template_hash": target.template_hash,
        "thinking": target.thinking,
    }
    try:
        config = DrafterConfig.from_dict(ours)
    except ValueError as fault:
        text = str(fault)
        named = SAME.get(text.split()[0], "")
        raise keys.fault(f"{named}: {text}" if named not in text else text) from fault
    _refuse_for_target(keys, config, target)
    keys.refuse_rest()
    return config


def stated_dtype(where: str, values: Mapping[str, Any]) -> str | None:
    """The dtype a released config gives its tensors, "bfloat16"; None if it does not say."""
    stated = {str(values[key]) for key in DTYPES if values.get(key) is not None}
    if len(stated) > 1:
        raise CheckpointError(f"{where}: dtype and torch_dtype differ: {sorted(stated)}; which is meant?")
    return stated.pop().removeprefix("torch.") if stated else None


def _refuse_other(keys: _Keys, layout: Format, name: str) -> None:
    """Raise for a drafter of another kind than the format's, or with a part that has no form here."""
    allowed = {"projector_type": layout.projectors, "draft_vocab_size": (None, keys.get("vocab_size")), **FIXED}
    layers = keys.get("num_hidden_layers")
    if type(layers) is int:
        allowed["layer_types"] = (None, ["full_attention"] * layers)
    for key, values in allowed.items():
        value = keys.get(key, values[0])
        if value not in values:
            said = " or ".join(map(repr, values))
            raise keys.fault(f"{key} is {value!r}; only {said} can be expressed in format {name!r} here")


def _alignment(keys: _Keys) -> str:
    shifted = keys.get("shift_label", False)  # of DFlash a config need not say that it shifts nothing
    if not isinstance(shifted, bool):
        raise keys.fault(f"shift_label is {shifted!r}; use true or false")
    return "next" if shifted else "same"


def _rope_theta(keys: _Keys) -> float:
    """The base of plain rotary positions, in the words of transformers 4 (rope_theta) or 5 (rope_parameters)."""
    stated = [keys.get("rope_theta", None)]
    for place in ("rope_parameters", "rope_scaling"):
        table = keys.get(place, None) or {}
        plain = isinstance(table, Mapping) and not set(table) - {"rope_theta", "rope_type", "type"}
        if not plain or {table.get("rope_type", "default"), table.get("type", "default")} != {"default"}:
            raise keys.fault(f"{place} is {table!r}; only plain rotary positions can be expressed here")
        stated.append(table.get("rope_theta"))
    stated = [value for value in stated if value is not None]
    if not stated or any(value != stated[0] for value in stated):
        said = f"rope_theta has the values {stated}" if stated else "no rope_theta, nor one in rope_parameters"
        raise keys.fault(f"{said}; it defines the drafter and is not guessed")
    return stated[0]


def _refuse_for_target(keys: _Keys, config: DrafterConfig, target: TargetFacts) -> None:
    """Raise for a drafter that this target cannot have."""
    for key, theirs in (
        ("num_target_layers", target.num_layers),
        ("hidden_size", target.hidden_size),
        ("vocab_size", target.vocab_size),
    ):
        if keys.get(key) != theirs:
            raise keys.fault(
                f"{key} is {keys.get(key)!r}, target {target.name} has {theirs}; name the target it is for"
            )
    mask, meanings = config.mask_token_id, {}
    for role in ("bos", "eos", "pad"):
        own = keys.get(f"{role}_token_id", None)
        meanings |= {one: role for one in (own if isinstance(own, list) else [own]) if isinstance(one, int)}
    meanings |= target.reserved
    if mask in meanings:
        raise keys.fault(f"mask_token_id is {mask}, the {meanings[mask]} token; a mask must mean nothing else")
    if mask >= target.embedding_rows:
        raise keys.fault(f"mask_token_id is {mask}, outside the target's {target.embedding_rows} embeddings")
    refuse_unsaid(keys.where, config, target)
    softcap = keys.get("final_logit_softcapping", None) or None
    if softcap != target.softcap:
        raise keys.fault(f"final_logit_softcapping is {softcap!r}, target {target.name} has {target.softcap!r}")


def refuse_unsaid(where: str, config: DrafterConfig, target: TargetFacts) -> None:
    """Raise `CheckpointError` for taps and embeddings of which these formats say something else than is done here."""
    if max(config.taps) >= target.num_layers - 1:
        raise CheckpointError(
            f"{where}: target_layer_ids is {list(config.taps)}; name layers 0 to {target.num_layers - 2} of "
            f"{target.name} (the last one's output is listed by transformers with the final norm in it)"
        )
    if target.scaled:
        raise CheckpointError(f"{where}: {target.name} scales its embeddings, for which these formats have no word")


def published_config(config: DrafterConfig, name: str, target: TargetFacts, dtype: str) -> dict[str, Any]:
    """The released config that says what `config` does; dtype: of the tensors, "bfloat16".

    Raises `CheckpointError` for a drafter that format `name` cannot hold.  What is returned reads back to `config`.
    """
    layout, where = FORMATS[name], f"drafter {config.recipe!r}"
    if config.recipe != layout.recipe:
        raise CheckpointError(f"{where}: format {name!r} holds drafters of recipe {layout.recipe!r} alone")
    if config.num_proposals != config.block_size - 1:
        raise CheckpointError(
            f"{where}: num_proposals is {config.num_proposals}; a block of {config.block_size} proposes "
            f"{config.block_size - 1} in format {name!r}"
        )
    if config.draft_vocab_size is not None:
        raise CheckpointError(f"{where}: draft_vocab_size is {config.draft_vocab_size}; format {name!r} has none")
    refuse_unsaid(where, config, target)
    plain = {key: getattr(config, field) for field, key in SAME.items()}
    options: dict[str, Any] = {
        "mask_token_id": plain.pop("mask_token_id"),
        "target_layer_ids": list(plain.pop("target_layer_ids")),
    }
    if isinstance(config.head_options, DominoOptions):
        options |= {
            "projector_type": "domino",
            "emb_dim": config.head_options.rank,
            "gru_hidden_dim": config.head_options.gru_size,
            "pure_draft_prefix_len": config.head_options.pure_prefix,
        }
    if "shift_label" in layout.options or config.alignment == "next":
        options["shift_label"] = config.alignment == "next"
    values = {
        "architectures": ["DFlashDraftModel"],
        "model_type": "qwen3",
        "dtype": dtype,
        **plain,
        "num_target_layers": target.num_layers,
        "dflash_config": options,
        "layer_types": ["full_attention"] * config.num_layers,
        "hidden_act": "silu",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "rope_theta": config.rope_theta,
        "rope_scaling": None,
        "rope_parameters": {"rope_theta": config.rope_theta, "rope_type": "default"},
        "sliding_window": None,
        "use_sliding_window": False,
        "max_window_layers": config.num_layers,
        "tie_word_embeddings": False,
        "use_cache": True,
    }
    if target.softcap is not None:
        values["final_logit_softcapping"] = target.softcap
    again = drafter_config(where, values, name, target)
    wanted = replace(
        config, target=again.target, target_source=again.target_source, target_revision=again.target_revision
    )
    if again != wanted:
        raise CheckpointError(f"{where}: reads back as {again}, not as {wanted}; format {name!r} cannot hold it")
    return values
