"""Options of heads and relays as a checkpoint has them, from the settings; None stands for what the target gives.

It knows names of settings and of options.  It does not know what a component does with them.
"""

from __future__ import annotations

from typing import Any

from harness.sections import DrafterSettings
from methods.config import HEAD_OPTIONS, RELAY_OPTIONS, DominoOptions, RelayOptions
from methods.recipes import Recipe


def head_options(settings: DrafterSettings) -> DominoOptions:
    return DominoOptions(**settings.head.model_dump())


def relay_options(settings: DrafterSettings, hidden_size: int) -> RelayOptions:
    values = settings.relay.model_dump()
    return RelayOptions(**values | {"mlp_width": values["mlp_width"] or hidden_size})


def expected_options(chosen: Recipe, settings: DrafterSettings, hidden_size: int) -> dict[str, Any]:
    """What a checkpoint of this recipe, trained under these settings, says about its head and relay."""
    return {
        "head_options": head_options(settings) if chosen.head in HEAD_OPTIONS else None,
        "relay_options": relay_options(settings, hidden_size) if chosen.relay in RELAY_OPTIONS else None,
    }
