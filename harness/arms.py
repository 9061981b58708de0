"""From the names in a configuration to what the decoder takes: a method's drafter, a suite's settings.

It knows that a method without a drafter has no folder, that a checkpoint must have been made for this very target, and
how a suite is decoded, the same for records, timing and parity.  It names no method itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from harness.config import Config
from harness.data import Task, stop_strings
from harness.decode import DecodeSettings
from harness.options import expected_options
from harness.target import Target
from methods.checkpoint import load_drafter
from methods.contract import Drafter
from methods.recipes import recipe
from methods.runner import BlockDraftRunner

DrafterFactory = Callable[[int, int], Drafter]


def load_arm(
    config: Config, target: Target, name: str, folder: Path | None, max_proposals: int | None = None
) -> DrafterFactory | None:
    """The drafter factory (rows, capacity) -> Drafter of an entrant, or None for plain autoregressive decoding.

    folder: the checkpoint of whoever trained its weights.  max_proposals: of a round, with a shorter block; None: as
    `decode` says.  Raises ``ValueError`` if the name is unknown, if a drafting
    recipe has no folder, or if the checkpoint holds another recipe, was made for another target, template or thinking
    mode, or, trained here, has a head or relay with other options (both values are named).
    """
    entrant = config.entrant(name)
    chosen = recipe(entrant.recipe)
    if not chosen.drafts:
        return None
    if folder is None:
        raise ValueError(f"method {entrant.name!r} drafts: name its checkpoint folder with --drafter")
    expected = {
        "recipe": chosen.name,
        "target_fingerprint": target.fingerprint,
        "template_hash": target.template_hash,
        "thinking": target.thinking,
    }
    if config.pretrained_for(target.name, name) is None:  # an imported drafter brings its own
        expected |= expected_options(chosen, config.settings_of(name).drafter, target.hidden_size)
    drafter = load_drafter(folder, target.binding, expected, dtype=target.dtype, device=target.device).eval()
    most = config.decode.max_proposals if max_proposals is None else max_proposals
    drafter = drafter if most is None else drafter.shortened(most)
    return lambda rows, capacity: BlockDraftRunner(drafter, rows, capacity, relay=entrant.relay)


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
