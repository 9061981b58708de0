"""Named methods.  A recipe says which component fills each axis of the grid; it holds no tensor, no number.

To add a method: write its component in the file of its axis, register it there, add one line here and one
card (`methods/<name>/README.md`).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Recipe:
    """One point of the grid.  `ar`, the baseline, drafts nothing: every axis is None."""

    name: str
    fusion: str | None
    backbone: str | None
    head: str | None
    relay: str | None
    objective: str | None

    @property
    def drafts(self) -> bool:
        """Whether the method has a drafter (and therefore something to train)."""
        return self.backbone is not None


RECIPES: dict[str, Recipe] = {
    entry.name: entry
    for entry in (
        Recipe("ar", fusion=None, backbone=None, head=None, relay=None, objective=None),
        Recipe("dflash", fusion="shared_fc", backbone="dflash", head="plain", relay="none", objective="decay"),
        Recipe("dflow", fusion="shared_fc", backbone="dflash", head="plain", relay="verifier", objective="decay"),
        Recipe("domino", fusion="shared_fc", backbone="dflash", head="domino", relay="none", objective="decay"),
        Recipe("dflow_domino", "shared_fc", "dflash", head="domino", relay="verifier", objective="decay"),
    )
}


def recipe(name: str) -> Recipe:
    """The recipe called `name`.  Raises ``ValueError`` listing the known ones."""
    if name not in RECIPES:
        raise ValueError(f"unknown method {name!r}; known methods: {', '.join(sorted(RECIPES))}")
    return RECIPES[name]
