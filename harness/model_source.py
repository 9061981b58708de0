"""Where a target comes from: a hub id, a local folder or a GGUF file, read into memory or refused by name.

It knows files, dtypes and devices.  It does not know what a target is asked, nor whether its answers can be trusted.
"""

from __future__ import annotations

import logging
import platform
from typing import Any

import torch
from safetensors import SafetensorError

from harness.config import local_source
from harness.soundness import TargetError, refuse_gaps

log = logging.getLogger(__name__)

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16, "float64": torch.float64}


def read_model(config: Any, name: str) -> tuple[Any, Any, str | None]:
    """Model (on its device), tokenizer and revision of a `harness.sections.TargetConfig`.

    Raises `TargetError`, naming the target, for an unknown dtype, an absent device, a source that cannot be read, or
    weights that lack tensors of the model.
    """
    from transformers import AutoModelForCausalLM, AutoTokenizer

    source, extra = resolve_source(config)
    if config.dtype not in DTYPES:
        raise TargetError(f"target {name}: dtype is {config.dtype!r}; use one of {', '.join(DTYPES)}")
    device = find_device(config.device, name)
    if device.type == "cpu" and config.dtype == "bfloat16" and not multiplies_bfloat16():
        log.warning("target %s: this processor does not multiply in bfloat16; float32 will be faster", name)
    if config.revision is not None:
        extra["revision"] = config.revision
    try:
        tokenizer = AutoTokenizer.from_pretrained(source, **extra)
        model, found = AutoModelForCausalLM.from_pretrained(
            source,
            dtype=DTYPES[config.dtype],
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # reported below, by name
            **extra,
        )
    except (OSError, ValueError, SafetensorError) as error:
        raise TargetError(
            f"target {name}: cannot load {source!r} ({str(error).splitlines()[0]}); give a hub id, a folder with "
            "config.json, tokenizer and weights, or a .gguf file"
        ) from error
    refuse_gaps(found, name, source)
    revision = getattr(model.config, "_commit_hash", None) or config.revision  # a commit says more than a tag
    return model.to(device), tokenizer, revision


def multiplies_bfloat16() -> bool:
    """Whether this processor has instructions for products of bfloat16, as far as torch tells."""
    if platform.machine().lower() not in ("x86_64", "amd64"):
        return True
    asked = (getattr(torch.cpu, name, None) for name in ("_is_avx512_bf16_supported", "_is_amx_tile_supported"))
    return any(ask is None or ask() for ask in asked)


def find_device(asked: str, name: str) -> torch.device:
    if asked == "auto":
        asked = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        return torch.empty(0, device=asked).device
    except (RuntimeError, AssertionError) as error:  # torch asserts where it was built without CUDA
        raise TargetError(
            f"target {name}: device {asked!r} cannot be used ({str(error).splitlines()[0]}); use auto, cpu, or a GPU "
            "that this machine has"
        ) from error


def resolve_source(config: Any) -> tuple[str, dict[str, str]]:
    """Turn a configured source into what from_pretrained takes: a hub id or folder, and a GGUF file within it."""
    path = local_source(config)
    gguf = getattr(config, "gguf_file", None)
    if path is not None and path.suffix == ".gguf":
        return str(path.parent), {"gguf_file": path.name}
    return (str(path) if path is not None else config.source), ({"gguf_file": gguf} if gguf else {})
