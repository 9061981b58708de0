"""Random targets and drafters at real dimensions: nothing is fetched, and nothing is built that will not fit.

It knows dimensions, dtypes and memory.  It does not know what is timed.  Every target is built as a Qwen3, and drafters
have the settings of the profile that the dimensions belong to.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import psutil
import torch

from harness.config import load_config
from harness.config_errors import nearest
from harness.sections import DrafterSettings
from harness.settings import ROOT
from harness.shapes import SHAPES, Shape
from harness.target import Target
from harness.train.build import drafter_config
from methods.config import DrafterConfig
from methods.contract import TargetBinding
from methods.drafter import BlockDrafter
from methods.published_tensors import skeleton

#: Known dimensions by the name they are asked for, and where `pocket` has its own written down.
KNOWN = {hub.split("/")[-1]: shape for hub, shape in SHAPES.items()}
POCKET = ROOT / "harness" / "pocket" / "target"
#: Free memory that an estimate should leave; it is one.
SLACK = 1.2


def shape_of(name: str) -> Shape:
    """The dimensions called `name`.  Raises ``ValueError`` that lists the known ones."""
    if name == "pocket":
        from transformers import AutoConfig

        return Shape.of(AutoConfig.from_pretrained(POCKET))
    if name not in KNOWN:
        known = [*KNOWN, "pocket"]
        raise ValueError(f"--shapes is {name!r}{nearest(name, known)}; known shapes: {', '.join(known)}")
    return KNOWN[name]


def drafter_settings(name: str, mlp_width: int | None = None) -> DrafterSettings:
    """Those of the profile `pocket` or `paper`; mlp_width: of the relay's gates, None as the profile says."""
    settings = load_config("pocket" if name == "pocket" else "paper", check=False).drafter
    if mlp_width is None:
        return settings
    return settings.model_copy(update={"relay": settings.relay.model_copy(update={"mlp_width": mlp_width})})


def config_of(shape: Shape, name: str, settings: DrafterSettings, method: str) -> DrafterConfig:
    """A drafter of `method` for a target of these dimensions, its mask the last token id.

    Raises ``ValueError`` for an unknown method and for settings that the target cannot have.
    """
    target = shape.target
    target.name = target.source = name
    return drafter_config(settings, target, method, mask=shape.vocab_size - 1)


def bytes_needed(
    shape: Shape, drafters: Sequence[DrafterConfig], decoders: int, rows: int, capacity: int, itemsize: int
) -> int:
    """Memory of a target, its drafters, and the caches of as many decoders side by side.

    capacity: positions of a row; itemsize: bytes of a number.
    """
    weights = shape.parameters + sum(sum(p.numel() for p in skeleton(config).parameters()) for config in drafters)
    cells = sum(2 * c.num_layers * c.num_key_value_heads * c.head_dim for c in drafters) * itemsize
    caches = (rows + 1) * capacity * (decoders * shape.cache_bytes(itemsize) + cells)  # a row more: the shared prefix
    proposals = max((config.num_proposals for config in drafters), default=0)
    return weights * itemsize + caches + 2 * rows * (proposals + 1) * shape.vocab_size * itemsize


def refuse_too_large(need: int, device: torch.device, what: str) -> None:
    """Raise ``ValueError`` if `need` bytes, and some slack, are not free on the device; what: needs them."""
    free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else psutil.virtual_memory().available
    if need * SLACK > free:
        raise ValueError(
            f"{what} wants about {need / 2**30:.1f} GB on {device}, {SLACK:g} times that should be free and "
            f"{free / 2**30:.1f} GB are; take smaller --shapes, fewer --methods or --batches, --dtype bfloat16, or a "
            "larger --device"
        )


def build_target(shape: Shape, name: str, dtype: torch.dtype, device: torch.device, seed: int = 0) -> Target:
    """A Qwen3 of these dimensions with random weights and no tokenizer, made on the device itself."""
    from transformers import AutoModelForCausalLM, Qwen3Config

    config = Qwen3Config(
        hidden_size=shape.hidden_size,
        num_hidden_layers=shape.num_hidden_layers,
        num_attention_heads=shape.num_attention_heads,
        num_key_value_heads=shape.num_key_value_heads,
        head_dim=shape.head_dim,
        intermediate_size=shape.intermediate_size,
        vocab_size=shape.vocab_size,
        tie_word_embeddings=shape.tied,
        max_position_embeddings=shape.max_position_embeddings,
        rms_norm_eps=shape.rms_norm_eps,
        rope_parameters={"rope_type": "default", "rope_theta": shape.rope_theta},
    )
    with _seeded(seed, device), torch.device(device):
        return Target(AutoModelForCausalLM.from_config(config, dtype=dtype), None, name)


def build_drafter(
    config: DrafterConfig, binding: TargetBinding, dtype: torch.dtype, device: torch.device, seed: int = 0
) -> BlockDrafter:
    """A drafter with the weights that a training would begin with, made on the device itself."""
    with _seeded(seed, device), torch.device(device):
        return BlockDrafter(config, binding).to(dtype).eval()


def weights_read(target: Target) -> int:
    """Bytes of weights that one forward pass of any width reads: all layers, the last norm, the head.

    Of the embedding a pass reads a row a token, which is left out, as keys and values are.
    """
    parts = [*target.layers.parameters(), *target.decoder.norm.parameters()]
    head = target.model.get_output_embeddings()
    return sum(p.numel() * p.element_size() for p in [*parts, *head.parameters()])


@contextmanager
def _seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Weights depend on the seed alone, and leave the process's own random numbers as they were."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield
