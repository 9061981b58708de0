"""From a response to a runnable Python function: fenced answers of chat models, bare completions of base
models.

Knows the forms of HumanEval (a prompt that is the head of the function) and MBPP (no such prompt). Does not know
suites, records or limits. "No code found" is told apart from "wrong code".
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator

from harness.stops import trim

_OPENED = re.compile(r"(?:^(?P<margin>[ \t]+))?```[ \t]*[A-Za-z0-9_+-]*[ \t]*\n", re.MULTILINE)
_FUTURE = re.compile(r"^from __future__ import [\w, ]+$", re.MULTILINE)
#: Lines that code may begin with at the left margin; prose may too, which the compiler then finds out.
_START = re.compile(r"^(?:import|from|def|async|class|@)", re.MULTILINE)
_FUNCTION = re.compile(r"^(?:async\s+)?def\s", re.MULTILINE)
#: Places tried for the beginning and the end of an unfenced answer.
_MOST_STARTS, _MOST_ENDS = 8, 64


def compiles(program: str) -> bool:
    """Whether the text is Python at all."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of what a model wrote, nobody asked for style
            compile(program, "program", "exec")
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return False
    return True


def program_of(text: str, prompt: str, entry_point: str, stop_strings: tuple[str, ...] | list[str] = ()) -> str | None:
    """The module that defines `entry_point` according to the response, or None if the response holds no code.

    In this order: a fenced block that defines the function (the prompt goes before it, so that its imports
    and helpers are there); the function itself without a fence; a body that continues the prompt, or, where the prompt
    is empty, whatever code there is.
    """
    defines = re.compile(rf"^(?:async\s+)?def\s+{re.escape(entry_point)}\s*\(", re.MULTILINE)
    text = text.replace("\r\n", "\n")
    blocks = list(_fenced(text))
    # models correct themselves: the last whole function counts, and not one that is only begun or quoted
    given = [_context(prompt, defines) + block for block in reversed(blocks) if defines.search(block)]
    if given:
        return next((program for program in given if compiles(future_first(program))), given[0])
    bare = text if prompt else trim(text, stop_strings)  # a body that continues its prompt is cut later
    if defines.search(bare) and not (blocks and prompt):
        return _context(prompt, defines) + _unfenced(bare, defines)
    if prompt:
        return _completion(blocks[-1] if blocks else text, prompt, stop_strings)
    code = blocks[-1] if blocks else None
    return bare if code is None and _FUNCTION.search(bare) else code


def future_first(program: str) -> str:
    """`program` with what it imports from the future moved to its top, where alone that may stand: in an answer it
    stood there before the answer was joined to its prompt."""
    moved = _FUTURE.findall(program)
    return "\n".join([*moved, _FUTURE.sub("", program)]) if moved else program


def _fenced(text: str) -> Iterator[str]:
    """The code between fences, blocks without any left out, and without the margin of a fence that stands in a list;
    a body keeps its own.

    As in Markdown, a fence more than three columns further in than the first is part of the code, as in a docstring.
    """
    at = 0
    while opened := _OPENED.search(text, at):
        width = len(opened["margin"] or "")
        closed = re.compile(rf"^[ \t]{{0,{width + 3}}}```", re.MULTILINE).search(text, opened.end())
        end, at = (closed.start(), closed.end()) if closed else (len(text), len(text))
        code = text[opened.end() : end].removesuffix("\n")
        bare = re.sub(rf"^[ \t]{{0,{width}}}", "", code, flags=re.MULTILINE)
        if code.strip():
            yield bare if _START.search(bare) else code


def _unfenced(text: str, defines: re.Pattern[str]) -> str:
    """The code in a text that defines the function, with imports and helpers before it and without the prose around."""
    at = defines.search(text).start()
    starts = [found.start() for found in _START.finditer(text) if found.start() < at][:_MOST_STARTS] + [at]
    for start in starts:
        if compiles(text[start:]):
            return text[start:]
    for start in starts:
        lines = text[start:].splitlines(keepends=True)
        margins = [i for i, line in enumerate(lines) if i and line.strip() and line[0] not in " \t)"]
        for end in reversed(margins[:_MOST_ENDS]):
            code = "".join(lines[:end])
            if defines.search(code) and compiles(code):
                return code
    return _first_function(text[at:])


def _completion(text: str, prompt: str, stop_strings: tuple[str, ...] | list[str]) -> str | None:
    body = trim(text, stop_strings)
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
