"""Released checkpoints, in and out: their files become a drafter of this project, or its drafter theirs, bit for bit.

    python -m harness.checkpoint import --config paper --target qwen3-8b --method dflash --out FOLDER
    python -m harness.checkpoint import --target pocket --format domino --source HUB-ID-OR-FOLDER --out FOLDER
    python -m harness.checkpoint export --target pocket --format dflash --drafter FOLDER --out FOLDER

The first form takes what `pretrained` in the configuration names.  It knows hub, folders and files, and asks the target
for what a released checkpoint does not say; what keys and tensors mean is in `methods/published.py`.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from harness.config import Config, ConfigError, load_config, local_path
from harness.provenance import checkpoint_digest, provenance
from harness.sections import Pretrained
from harness.target import Target
from harness.train.state import write_json
from methods.checkpoint import CONFIG, WEIGHTS, CheckpointError, check_expected, read_config, save_drafter
from methods.published import FORMATS, TargetFacts, drafter_config, published_config, stated_dtype
from methods.published_tensors import check_finite, check_tensors, own_names, with_tensors

log = logging.getLogger(__name__)

#: Fields of a drafter's config that a released checkpoint leaves open, and the run's target fills.
UNSAID = ("target", "target_source", "target_revision", "target_fingerprint", "template_hash", "thinking")


@dataclass(frozen=True)
class Released:
    """A released checkpoint as read: its config, its tensors, the commit they are of (None for a folder), and the
    SHA-256 of both files."""

    values: dict[str, Any]
    tensors: dict[str, Tensor]
    revision: str | None
    sha256: str


def read_released(given: Pretrained) -> Released:
    """The files of a checkpoint, from its folder or the hub.  Raises `CheckpointError`, in one line, for those that
    cannot be had or read."""
    files = [_file(given, name) for name in (CONFIG, WEIGHTS)]
    try:
        values = json.loads(files[0].read_text(encoding="utf-8"))
        tensors = load_file(files[1])
    except (OSError, ValueError, SafetensorError) as fault:
        raise CheckpointError(f"{given.source}: {CONFIG} and {WEIGHTS} cannot be read: {fault}") from fault
    if not isinstance(values, dict) or not tensors:
        what = f"{CONFIG} is no object of settings" if tensors else f"{WEIGHTS} holds no tensor"
        raise CheckpointError(f"{given.source}: {what}; this is no released checkpoint")
    return Released(values, tensors, _commit(files[0]) or given.revision, checkpoint_digest(files[0].parent))


def _file(given: Pretrained, name: str) -> Path:
    folder = local_path(given.source, "pretrained source")
    if folder is not None:
        if not (folder / name).is_file():
            raise CheckpointError(f"{given.source}: no {name} in it; name a folder with {CONFIG} and {WEIGHTS}")
        return folder / name
    from transformers.utils import cached_file

    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)  # it would tell of every retry
    try:
        return Path(cached_file(given.source, name, revision=given.revision))
    except OSError as fault:
        at = f" at revision {given.revision}" if given.revision else ""
        raise CheckpointError(
            f"{given.source}{at}: no such folder here, and the hub gave no {name} ({str(fault).splitlines()[0]}); "
            "download it, and name the folder"
        ) from fault


def _commit(file: Path) -> str | None:
    """The commit in the path of a file in the hub's cache."""
    from transformers.utils.hub import extract_commit_hash

    return extract_commit_hash(str(file), None)


def facts_of(target: Target) -> TargetFacts:
    """What a released checkpoint leaves to the target it is used with."""
    weight = target.model.get_input_embeddings().weight
    tokenizer, some = target.tokenizer, torch.arange(min(4, len(weight)), device=weight.device)
    reserved = {tokenizer.bos_token_id: "beginning", tokenizer.pad_token_id: "padding"}
    reserved |= dict.fromkeys((*target.stop_ids, tokenizer.eos_token_id), "stop")
    return TargetFacts(
        name=target.name,
        source=target.source,
        revision=target.revision,
        fingerprint=target.fingerprint,
        template_hash=target.template_hash,
        thinking=target.thinking,
        num_layers=target.num_layers,
        hidden_size=target.hidden_size,
        vocab_size=target.vocab_size,
        embedding_rows=len(weight),
        reserved={token: role for token, role in reserved.items() if token is not None},
        softcap=getattr(target.config, "final_logit_softcapping", None),
        scaled=not torch.equal(target.embed(some), F.embedding(some, weight)),
    )


def import_drafter(released: Released, given: Pretrained, target: Target, out: Path) -> dict[str, Any]:
    """Write the drafter into `out`, with the very tensors of the checkpoint; returns what done.json there says.

    Raises `CheckpointError` for every key, tensor or value that is not what it must be for this target, before anything
    is written.
    """
    where, weights = f"{given.source}/{CONFIG}", f"{given.source}/{WEIGHTS}"
    config = drafter_config(where, released.values, given.format, facts_of(target))
    tensors = own_names(weights, released.tensors, given.format)
    check_tensors(weights, tensors, config, stated_dtype(where, released.values))
    check_finite(weights, tensors)
    done = out / "done.json"
    done.unlink(missing_ok=True)  # it must not vouch for what is only being written
    save_drafter(out, with_tensors(config, tensors))
    facts = {
        "imported": given.model_dump() | {"revision": released.revision, "sha256": released.sha256},
        "dtype": str(next(iter(tensors.values())).dtype).removeprefix("torch."),
        "taken_from_target": {name: getattr(config, name) for name in UNSAID},
        "made_by": provenance(),
    }
    write_json(done, facts)
    return facts


def export_drafter(folder: Path, name: str, target: Target, out: Path) -> None:
    """Write the drafter in `folder` into `out` as format `name` has it, with the very tensors.

    Raises `CheckpointError` for a damaged drafter, for one of another target, template or thinking mode, and for one
    that the format cannot hold, before anything is written.
    """
    config, facts = read_config(folder), facts_of(target)
    kept = {key: getattr(facts, key) for key in ("template_hash", "thinking")}
    check_expected(folder, config, {"target_fingerprint": facts.fingerprint, **kept})
    try:
        tensors = load_file(folder / WEIGHTS)
    except (OSError, SafetensorError) as fault:
        raise CheckpointError(f"{folder / WEIGHTS} cannot be read: {fault}") from fault
    dtype = str(next(iter(tensors.values())).dtype).removeprefix("torch.") if tensors else "float32"
    values = published_config(config, name, facts, dtype)
    check_tensors(str(folder / WEIGHTS), tensors, config)
    check_finite(str(folder / WEIGHTS), tensors)
    if name == "dflash" and config.alignment == "next":
        log.warning("shift_label is true in the export, which z-lab's own package does not look at")
    out.mkdir(parents=True, exist_ok=True)
    part = out / f"{WEIGHTS}.part"
    save_file(tensors, part, metadata={"format": "pt"})
    os.replace(part, out / WEIGHTS)
    write_json(out / CONFIG, values)


def configured(config: Config, target: str, method: str) -> Pretrained:
    """What `pretrained` names for a method.  Raises ConfigError if it names nothing."""
    given = config.pretrained_for(target, method)
    if given is None:
        raise ConfigError(
            f"pretrained.{target} names no checkpoint for {method!r}; add one, or give --source and --format"
        )
    return given


def _target(config: Config, name: str) -> Target:
    """The target, on the CPU and without its self-test: it is only asked what it is."""
    return Target.load(config.target(name).model_copy(update={"device": "cpu"}), name, check=False)


def _refuse_same(source: Path | None, out: Path) -> None:
    if source is not None and source.resolve() == out.resolve():
        raise CheckpointError(f"{source} would be written over; give another folder with --out")


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m harness.checkpoint", description=__doc__.split("\n")[0])
    actions = parser.add_subparsers(dest="action", required=True)
    for action in ("import", "export"):
        sub = actions.add_parser(action)
        sub.add_argument("--config", default="pocket", help="a profile or a YAML file")
        sub.add_argument("--target", required=True, help="a name under targets:")
        sub.add_argument("--out", required=True, type=Path, help="folder for the drafter")
        sub.add_argument("--format", choices=list(FORMATS), required=action == "export")
        if action == "import":
            sub.add_argument("--method", help="take the checkpoint that pretrained: names for it")
            sub.add_argument("--source", help="hub id or folder, with --format")
            sub.add_argument("--revision", help="commit or tag of a hub id")
        else:
            sub.add_argument("--drafter", required=True, type=Path, help="checkpoint folder")
    arguments = parser.parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    try:
        config = load_config(arguments.config)
        said = _import(config, arguments) if arguments.action == "import" else _export(config, arguments)
    except (ValueError, OSError) as error:
        parser.exit(2, f"{error}\n")
    print(json.dumps(said))


def _import(config: Config, arguments: argparse.Namespace) -> Mapping[str, Any]:
    named = arguments.source and arguments.format
    if bool(arguments.method) == bool(named) or (arguments.method and (arguments.format or arguments.revision)):
        raise ConfigError("name a --method of the configuration, or a checkpoint by --source and --format")
    config.target(arguments.target)
    if arguments.method:
        given = configured(config, arguments.target, arguments.method)
    else:
        given = Pretrained(source=arguments.source, format=arguments.format, revision=arguments.revision)
    _refuse_same(local_path(given.source, "--source"), arguments.out)
    released = read_released(given)  # before the target is loaded, which may take minutes
    return import_drafter(released, given, _target(config, arguments.target), arguments.out)["imported"]


def _export(config: Config, arguments: argparse.Namespace) -> Mapping[str, Any]:
    _refuse_same(arguments.drafter, arguments.out)
    export_drafter(arguments.drafter, arguments.format, _target(config, arguments.target), arguments.out)
    return {"exported": arguments.out.name, "format": arguments.format}


if __name__ == "__main__":
    main()
