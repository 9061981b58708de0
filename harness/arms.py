"""From the name of a method and a checkpoint folder to what the decoder takes.

It knows that a method without a drafter has no folder and that a checkpoint must have been made for this very target.
It names no method itself.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from harness.target import Target
from methods.checkpoint import load_drafter
from methods.contract import Drafter
from methods.recipes import recipe
from methods.runner import BlockDraftRunner

DrafterFactory = Callable[[int, int], Drafter]


def load_arm(target: Target, method: str, folder: Path | None) -> DrafterFactory | None:
    """The drafter factory (rows, capacity) -> Drafter of a method, or None for plain autoregressive decoding.

    Raises ``ValueError`` if the recipe is unknown, if a drafting recipe has no folder, if the checkpoint holds another
    recipe, or if it was made for another target, template or thinking mode (both values are named).
    """
    chosen = recipe(method)
    if not chosen.drafts:
        return None
    if folder is None:
        raise ValueError(f"method {method!r} drafts: name its checkpoint folder with --drafter")
    expected = {
        "recipe": method,
        "target_fingerprint": target.fingerprint,
        "template_hash": target.template_hash,
        "thinking": target.thinking,
    }
    drafter = load_drafter(folder, target.binding, expected, dtype=target.dtype, device=target.device).eval()
    return lambda rows, capacity: BlockDraftRunner(drafter, rows, capacity)
