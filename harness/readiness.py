"""Whether a configuration can run here: device and its memory, disk, models, data.  Asked before any long work.

It knows where things come from and how to ask for them without fetching weights.  It makes nothing, and what a run
costs it is told (`harness.budget`).
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import torch

from harness.budget import (
    ACCEPTED,
    ITEMSIZE,
    PROMPT_TOKENS,
    RESPONSE_SHARE,
    UTILISATION,
    Budget,
    Cost,
    measure_speed,
    totals,
)
from harness.config import Config, ConfigError, local_path
from harness.config_errors import nearest
from harness.data import DataError, Task, suite_prompts
from harness.data.conversations import gather
from harness.model_source import find_device, resolve_source
from harness.prompt_sections import DatasetConfig
from harness.settings import project_path
from harness.shapes import SHAPES, Shape
from harness.soundness import TargetError
from harness.train.prompts import tasks_from

#: Free memory and disk that an estimate should leave; it is one.
SLACK = 1.2
BASIS = f"""\
Arithmetic takes a mean response of {RESPONSE_SHARE:g} of its budget, prompts of {PROMPT_TOKENS} tokens, an acceptance
length of {ACCEPTED:g} and {UTILISATION:.0%} of the speed of one large product, measured here a moment ago; attention
is left out. Expect it to be right within a factor of two, and far too low where a target is so small that calls cost
more than products. Timing and tables, minutes to an hour, are not in it."""
SILENCE = "the hub does not answer"
#: Seconds to wait for a hub.
PATIENCE = 10.0


@dataclass(frozen=True)
class Finding:
    """One thing that was asked.  fault: what is wrong and how to mend it, empty if nothing is."""

    what: str
    said: str
    fault: str = ""


def devices(config: Config) -> list[Finding]:
    """The device of every target."""
    found = []
    for name, target in config.targets.items():
        try:
            device = find_device(target.device, name)
        except TargetError as error:
            found.append(Finding(f"device of {name}", target.device, str(error)))
        else:
            found.append(Finding(f"device of {name}", described(device)))
    return found


def described(device: torch.device) -> str:
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        return f"{properties.name}, {properties.total_memory / 2**30:.0f} GB"
    return f"{device.type}, {torch.get_num_threads()} threads, {psutil.virtual_memory().total / 2**30:.0f} GB"


def memory(costs: Iterable[Cost], device: torch.device) -> Finding:
    """The largest job against the memory of the device."""
    most = max(costs, key=lambda cost: cost.memory_gb)
    if device.type == "cuda":
        there = torch.cuda.get_device_properties(device).total_memory / 2**30
    else:
        there = psutil.virtual_memory().total / 2**30
    said = f"{most.memory_gb:.1f} GB at most ({most.rule} {most.what}), {there:.0f} GB there"
    fault = ""
    if most.memory_gb * SLACK > there:
        fault = (
            f"{most.rule} {most.what} needs about {most.memory_gb:.0f} GB, and {SLACK:g} times that should be there; "
            "lower train.anchors, train.batch_sequences or decode.batch_size, or take a larger device"
        )
    return Finding("memory", said, fault)


def disk(config: Config, costs: Iterable[Cost]) -> Finding:
    """What stays against what is free, where the results go."""
    need = totals(costs)[2] * SLACK
    place = _existing(project_path(config.output_dir))
    free = shutil.disk_usage(place).free / 2**30
    said = f"{need:.1f} GB wanted, {free:.0f} GB free at {config.output_dir}"
    fault = f"{free:.1f} GB are free where {config.output_dir} lies, {need:.1f} are wanted; make room or set output_dir"
    return Finding("disk", said, fault if need > free else "")


def _existing(path: Path) -> Path:
    path = path.absolute()
    while not path.exists():
        path = path.parent
    return path


def models(config: Config) -> list[Finding]:
    """Where each target, and each drafter that is imported, comes from: there, or a hub that lets it be read."""
    found = [_source(f"model of {name}", target.source, target.revision) for name, target in config.targets.items()]
    for name, drafters in config.pretrained.items():
        for method, given in drafters.items():
            found.append(_source(f"drafter {method} of {name}", given.source, given.revision))
    return found


def _source(what: str, source: str, revision: str | None) -> Finding:
    try:
        path = local_path(source, what)
    except ConfigError as error:
        return Finding(what, source, str(error))
    return Finding(what, f"local, {source}") if path else Finding(what, f"hub, {source}", ask_hub(source, revision))


def ask_hub(source: str, revision: str | None, kind: str = "model", file: str | None = None) -> str:
    """What keeps a hub's model or data set from being read; empty if nothing does.  A copy in the local cache is
    enough.

    kind: "model" or "dataset".  file: one that must be in the repository; null for all of it.
    """
    from huggingface_hub import HfApi, snapshot_download
    from huggingface_hub.errors import GatedRepoError, LocalEntryNotFoundError, RepositoryNotFoundError

    try:
        there = snapshot_download(source, revision=revision, repo_type=kind, local_files_only=True)
        if file is None or (Path(there) / file).exists():
            return ""
    except (LocalEntryNotFoundError, OSError, ValueError):
        pass
    try:
        info = HfApi().repo_info(source, revision=revision, repo_type=kind, timeout=PATIENCE)
        HfApi().auth_check(source, repo_type=kind)
    except GatedRepoError:
        return f"{source} has a licence that is not accepted; accept it on the hub's page of it and log in there"
    except RepositoryNotFoundError:
        return f"the hub knows no {kind} {source}, or it is private; correct the source, or log in"
    except Exception as error:  # of the transport underneath, which is another with every version of the client
        first = str(error).splitlines()[0] if str(error) else type(error).__name__
        return f"{SILENCE} about {source} ({first[:120]}); connect, or give a local copy as the source"
    names = [one.rfilename for one in info.siblings or ()]
    if file is not None and file not in names:
        return f"{source} has no file {file!r}{nearest(file, names)}; correct it"
    return ""


def data(config: Config, offline: bool = False) -> list[Finding]:
    """Every suite, and the prompts of the trajectories, read as the stages read them.

    offline: a hub has been asked and did not answer, so what needs one is not asked for again.
    """
    asked: list[tuple[str, str, Any]] = [
        (f"suite {name}", suite.source, lambda name=name, suite=suite: suite_prompts(name, suite, config.data_root))
        for name, suite in config.suites.items()
    ]
    hubs = []
    for source, count in config.trajectories.shares.items():
        what, dataset = f"training prompts of {source}", config.trajectories.datasets.get(source)
        if dataset is not None and not dataset.is_file:
            hubs.append(_hub_dataset(what, dataset, offline))
            continue
        read = lambda source=source, count=count: prompts_from(config, source, count)  # noqa: E731
        asked.append((what, config.trajectories.file_of(source) or source, read))
    found = []
    for what, source, read in asked:
        here = source.startswith("pocket") or source.endswith((".json", ".jsonl"))
        if offline and config.data_root is None and not here:
            mend = f"{SILENCE}; set data_dir or HARNESS_DATA_DIR to a local copy"
            found.append(Finding(what, "not to be had", mend))
            continue
        try:
            found.append(Finding(what, f"{len(read())} prompts"))
        except (DataError, OSError) as error:
            found.append(Finding(what, "not to be had", str(error)))
    return found + hubs


def prompts_from(config: Config, source: str, count: int) -> list[Task]:
    """Training prompts of a source that is here, as far as they can be chosen without a target."""
    dataset = config.trajectories.datasets.get(source)
    if dataset is None:
        return tasks_from(config, source, count, in_chat=True)
    return gather(source, dataset, count, config.trajectories.seed).tasks


def _hub_dataset(what: str, dataset: DatasetConfig, offline: bool) -> Finding:
    """Whether a hub lets a data set be read, which may be too large to be fetched for a question."""
    said = f"hub, {dataset.source}"
    if offline:
        return Finding(what, said, f"{SILENCE}; give a local copy of its file as the source of the data set")
    return Finding(what, said, ask_hub(dataset.source, dataset.revision, "dataset", dataset.file))


def shapes(config: Config) -> dict[str, Shape]:
    """Dimensions of every target that can be known now: from its own files, a table of some, or the hub."""
    from transformers import AutoConfig

    found = {}
    for name, target in config.targets.items():
        known = SHAPES.get(target.source.lower())
        if known is not None:
            found[name] = known
            continue
        try:
            source, extra = resolve_source(target)
            found[name] = Shape.of(AutoConfig.from_pretrained(source, revision=target.revision or "main", **extra))
        except (OSError, ValueError):
            continue  # said about its model
    return found


def budget(config: Config) -> list[Cost]:
    """Costs of all rules for the targets whose dimensions are known, at speeds measured now."""
    known = shapes(config)
    found: list[Cost] = []
    for name, shape in known.items():
        target = config.targets[name]
        device = str(find_device(target.device, name))
        kinds = {target.dtype, target.in_training.dtype}
        speeds = {(device, kind): measure_speed(device, kind) for kind in ITEMSIZE if kind in kinds}
        found += Budget(config, {name: shape}, speeds, device).costs()
    return found


def room(config: Config, costs: Sequence[Cost]) -> list[Finding]:
    """Memory and disk against what the costs say; nothing where no target's dimensions are known."""
    if not costs:
        return []
    device = find_device(next(iter(config.targets.values())).device, next(iter(config.targets)))
    return [memory(costs, device), disk(config, costs)]


def table(costs: Sequence[Cost]) -> str:
    """The costs as text, with their sum and what they rest on."""
    if not costs:
        return "no estimate: the dimensions of no target are known yet"
    lines = [f"{'rule':13} {'what':36} {'jobs':>4} {'hours':>9} {'memory GB':>10} {'disk GB':>9}  hours are"]
    for cost in costs:
        numbers = f"{cost.jobs:4} {cost.hours:9.2f} {cost.memory_gb:10.2f} {cost.disk_gb:9.3f}"
        lines.append(f"{cost.rule:13} {cost.what:36} {numbers}  {cost.note}")
    hours, most, size = totals(costs)
    jobs = sum(cost.jobs for cost in costs)
    lines.append(f"{'all':13} {'one job at a time':36} {jobs:4} {hours:9.2f} {most:10.2f} {size:9.3f}")
    return "\n".join([*lines, "", BASIS])
