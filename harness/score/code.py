"""From a response to a runnable Python function: fenced answers of chat models, bare completions of base
models.

Knows HumanEval's form (prompt, entry point, tests). Does not know suites, records or limits. "No code found"
is told apart from "wrong code".
"""

from __future__ import annotations

import re

_FENCE = re.compile(r"```[ \t]*([A-Za-z0-9_+-]*)[ \t]*\n(.*?)(?:\n[ \t]*```|\Z)", re.DOTALL)


def cut(text: str, stop_strings: tuple[str, ...] | list[str]) -> str:
    """`text` up to the first stop string."""
    ends = [at for stop in stop_strings if (at := text.find(stop)) >= 0]
    return text[: min(ends)] if ends else text


def compiles(program: str) -> bool:
    """Whether the text is Python at all."""
    try:
        compile(program, "program", "exec")
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return False
    return True


def program_of(text: str, prompt: str, entry_point: str, stop_strings: tuple[str, ...] | list[str] = ()) -> str | None:
    """The module that defines `entry_point` according to the response, or None if the response holds no code.

    In this order: a fenced block that defines the function (the prompt goes before it, so that its imports
    and helpers are there); the function itself without a fence; a body that continues the prompt.
    """
    defines = re.compile(rf"^(?:async\s+)?def\s+{re.escape(entry_point)}\s*\(", re.MULTILINE)
    blocks = [block for _, block in _FENCE.findall(text)]
    for block in reversed(blocks):  # models correct themselves: the last whole function counts
        if defines.search(block):
            return _context(prompt, defines) + block
    bare = defines.search(text)
    if bare and not blocks:
        start = min((m.start() for m in re.finditer(r"^(?:import|from)\s", text, re.MULTILINE)), default=bare.start())
        whole = text[min(start, bare.start()) :]
        return _context(prompt, defines) + (whole if compiles(whole) else _first_function(text[bare.start() :]))
    return _completion(blocks[-1] if blocks else text, prompt, stop_strings)


def _completion(text: str, prompt: str, stop_strings: tuple[str, ...] | list[str]) -> str | None:
    body = cut(text, stop_strings)
    first = next((line for line in body.splitlines() if line.strip()), None)
    if first is None:
        return None
    if first[0] in " \t":
        return prompt + body
    # a tokenizer or template may have eaten the indentation where prompt and answer meet
    mended = prompt + "    " + body.lstrip()
    return mended if compiles(mended) else None


def _context(prompt: str, defines: re.Pattern[str]) -> str:
    """What stands before the function in the prompt: imports, helpers, constants."""
    at = defines.search(prompt)
    return prompt[: at.start()] if at else ""


def _first_function(text: str) -> str:
    """A function without what follows it at the left margin (prose after an unfenced answer)."""
    lines = text.splitlines()
    end = next((i for i, line in enumerate(lines) if i and line.strip() and line[0] not in " \t)"), len(lines))
    return "\n".join(lines[:end])
