"""From the names in a configuration to what the decoder takes: a method's drafter, a suite's settings.

It knows that a method without a drafter has no folder, that a checkpoint must have been made for this very target, and
how a suite is decoded, the same for records, timing and parity.  It names no method itself.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from harness.config import Config
from harness.data import Task, stop_strings
from harness.decode import DecodeSettings
from harness.options import expected_options
from harness.target import Target
from methods.checkpoint import load_drafter, read_config
from methods.contract import Drafter
from methods.recipes import recipe
from methods.runner import BlockDraftRunner

log = logging.getLogger(__name__)

DrafterFactory = Callable[[int, int], Drafter]
#: What a checkpoint says of its target -> the name of that fact in `TargetConfig.allow_other`.
FACTS = {"target_fingerprint": "fingerprint", "template_hash": "template_hash", "thinking": "thinking"}


def load_arm(
    config: Config, target: Target, name: str, folder: Path | None, max_proposals: int | None = None
) -> DrafterFactory | None:
    """The drafter factory (rows, capacity) -> Drafter of an entrant, or None for plain autoregressive decoding.

    folder: the checkpoint of whoever trained its weights.  max_proposals: of a round, with a shorter block; None: as
    `decode` says.  Raises ``ValueError`` if the name is unknown, if a drafting
    recipe has no folder, or if the checkpoint holds another recipe, was made for another target, template or thinking
    mode that `allow_other` does not name, or, trained here, has a head or relay with other options (both values are
    named).
    """
    entrant = config.entrant(name)
    chosen = recipe(entrant.recipe)
    if not chosen.drafts:
        return None
    if folder is None:
        raise ValueError(f"method {entrant.name!r} drafts: name its checkpoint folder with --drafter")
    settings = config.targets.get(target.name)
    allowed = settings.allow_other if settings else ()
    made_for = {key: value for key, value in facts_of(target).items() if FACTS[key] not in allowed}
    expected = {"recipe": chosen.name} | made_for
    for key, (theirs, ours) in others(target, folder).items():
        if key in allowed:
            log.warning("%s: drafter made with %s %r, target %s has %r", name, key, theirs, target.name, ours)
    if config.pretrained_for(target.name, name) is None:  # an imported drafter brings its own
        expected |= expected_options(chosen, config.settings_of(name).drafter, target.hidden_size)
    drafter = load_drafter(folder, target.binding, expected, dtype=target.dtype, device=target.device).eval()
    most = config.decode.max_proposals if max_proposals is None else max_proposals
    drafter = drafter if most is None else drafter.shortened(most)
    return lambda rows, capacity: BlockDraftRunner(drafter, rows, capacity, relay=entrant.relay)


def facts_of(target: Target) -> dict[str, Any]:
    """What a checkpoint says of the target that it was made for, as this one would have it said."""
    facts = (target.fingerprint, target.template_hash, target.thinking)
    return dict(zip(FACTS, facts, strict=True))


def others(target: Target, folder: Path | None) -> dict[str, tuple[Any, Any]]:
    """Facts, as `allow_other` names them, in which a drafter's target is not this one: what it has, and what this has.

    folder: its checkpoint; None has no target.
    """
    if folder is None:
        return {}
    made_for = read_config(folder)
    pairs = {FACTS[key]: (getattr(made_for, key), ours) for key, ours in facts_of(target).items()}
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


def load_arms(
    config: Config, target: Target, names: Sequence[str], drafters: Path, seed: int, max_proposals: int | None = None
) -> dict[str, DrafterFactory | None]:
    """The arms of several entrants by name; drafters: the folder that holds `<name>-seed<seed>` for each.  Draft
    lengths as in `load_arm`."""
    arms = {}
    for name in names:
        entrant = config.entrant(name)
        folder = drafters / f"{entrant.weights}-seed{seed}"
        arms[name] = load_arm(config, target, name, folder if folder.is_dir() else None, max_proposals)
    return arms


def decode_settings(
    config: Config, suite: str, target: Target, tasks: Sequence[Task], temperature: float, seed: int
) -> DecodeSettings:
    """How `tasks` of a suite are decoded, without a trace.

    At temperature 0 there is nothing to sample: accept is "exact" and proposals are "greedy", whatever `decode` says.
    """
    spec, sampling = config.suite(suite), temperature > 0
    return DecodeSettings(
        temperature=temperature,
        seed=seed,
        max_new_tokens=spec.max_new_tokens,
        stop_ids=target.stop_ids,
        stop_strings=stop_strings(tasks, target, spec.stop_strings),
        accept=config.decode.accept if sampling else "exact",
        proposals=config.decode.proposals if sampling else "greedy",
    )
