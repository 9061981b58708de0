"""Mistakes in a configuration, said so that they can be mended: where, what, what was meant, what is valid.

It knows pydantic's errors and how to walk a model; it knows no setting.
"""

from __future__ import annotations

import difflib
import types
from collections.abc import Iterable
from typing import Any, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError


class ConfigError(ValueError):
    """A setting that cannot be used.  The message names the key, its place and the mend."""


def nearest(name: str, valid: Iterable[str]) -> str:
    """' (did you mean ...?)' with the closest valid name, or nothing."""
    found = difflib.get_close_matches(str(name), list(valid), n=1, cutoff=0.5)
    return f" (did you mean {found[0]!r}?)" if found else ""


def explain(error: ValidationError, model: type[BaseModel], profile: str) -> str:
    """One line for each mistake: where, what, and what would be valid."""
    lines = []
    for item in error.errors():
        place = ".".join(str(part) for part in item["loc"])
        if item["type"] == "extra_forbidden":
            *section, key = item["loc"]
            valid = keys_at(model, tuple(section))
            where = ".".join(str(part) for part in section) or "the top level"
            lines.append(f"unknown key {key!r} in {where}{nearest(key, valid)}; valid keys: {', '.join(valid)}")
        elif item["type"] == "missing":
            lines.append(f"{place} is missing; set it in the profile")
        else:
            said = item["msg"].removeprefix("Value error, ")
            whole = isinstance(item["input"], dict)  # a section; its message names the key
            lines.append(": ".join(filter(None, [place, said])) if whole else f"{place} is {item['input']!r}: {said}")
    return f"configuration {profile}:\n  " + "\n  ".join(lines)


def keys_at(model: type[BaseModel], place: tuple) -> list[str]:
    """The valid keys at a place of the configuration, e.g. ("suites", "gsm8k")."""
    kind: Any = model
    for part in place:
        fields = getattr(kind, "model_fields", None)
        kind = fields[part].annotation if fields else get_args(kind)[1]
        if get_origin(kind) in (Union, types.UnionType):
            kind = next(choice for choice in get_args(kind) if choice is not type(None))
    return list(kind.model_fields)
