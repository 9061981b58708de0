"""Numeric answers: found in a response, and compared with a reference.

Knows how people and models write final numbers. Does not know suites. Nothing here raises for any text.
"""

from __future__ import annotations

import re
from fractions import Fraction

_ANY_NUMBER = re.compile(r"[-+]?(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?(?:\s?/\s?[1-9]\d*)?|[-+]?\.\d+")
_HASHES = re.compile(r"####[ \t]*(\S[^\n]*)")
_PLAIN = re.compile(r"[-+]?(?:\d+(?:\.\d*)?|\.\d+)")
_FRACTION = re.compile(r"([-+]?)\\[dt]?frac\{(\d+)\}\{(\d+)\}|([-+]?\d+)\s*/\s*(\d+)")
#: Longer digit strings are not answers; converting them would only cost time.
LONGEST_NUMBER = 60


def boxed(text: str) -> list[tuple[int, str]]:
    """Contents of every `\\boxed{...}` with where it stands, braces balanced; an unclosed or brace-less one
    is left out.
    """
    found = []
    for match in re.finditer(r"\\boxed\s*\{", text):
        depth = 1
        for end in range(match.end(), len(text)):
            depth += {"{": 1, "}": -1}.get(text[end], 0)
            if depth == 0:
                found.append((match.start(), text[match.end() : end]))
                break
    return found


def final_answer(text: str) -> str | None:
    """The last explicit answer (`\\boxed{}` or `#### n`), else the last number of the text, else None."""
    explicit = [(at, value.strip()) for at, value in boxed(text)]
    explicit += [(match.start(), match.group(1).strip()) for match in _HASHES.finditer(text)]
    explicit = [(at, value) for at, value in explicit if value]
    if explicit:
        return max(explicit)[1]
    numbers = _ANY_NUMBER.findall(text)
    return numbers[-1] if numbers else None


def as_number(text: str) -> Fraction | None:
    """The exact value of `$1,234.50`, `12%`, `3/4`, `\\frac{3}{4}`, `42 apples` and the like; None if there is none.

    A percent sign is a unit here, as in GSM8K's references: 12% equals 12.
    """
    cleaned = re.sub(r"\\text\{[^}]*\}|\\[,;! ]|\\left|\\right", " ", text)
    cleaned = cleaned.replace("\\$", "").replace("$", "").replace("\\%", "").replace("%", "").replace("−", "-")
    cleaned = re.sub(r"(?<=\d),(?=\d{3}(?!\d))", "", cleaned).strip().rstrip(".").strip()
    if len(cleaned) > LONGEST_NUMBER:
        return None
    fraction = _FRACTION.fullmatch(cleaned)
    if fraction:
        sign, top, bottom, plain_top, plain_bottom = fraction.groups()
        above, below = (int(sign + top), int(bottom)) if top else (int(plain_top), int(plain_bottom))
        return Fraction(above, below) if below else None
    if "=" in cleaned:
        cleaned = cleaned.rsplit("=", 1)[1].strip()
    if "\\" in cleaned:  # LaTeX that is left is an expression, or damaged; not a number either way
        return None
    numbers = _PLAIN.findall(cleaned)
    return Fraction(numbers[0]) if len(numbers) == 1 else None


def equal(answer: str, reference: str) -> bool:
    """Whether two written answers mean the same number; symbolic comparison only where both are not plain numbers."""
    left, right = as_number(answer), as_number(reference)
    if left is not None and right is not None:
        return left == right
    return answer.strip() == reference.strip() or _symbolically_equal(answer, reference)


def _symbolically_equal(answer: str, reference: str) -> bool:
    try:
        from math_verify import parse, verify

        # no alarm-based limits: they only work in the main thread; the length bound keeps the work small
        # instead
        if max(len(answer), len(reference)) > 4 * LONGEST_NUMBER:
            return False
        gold = parse(f"${reference}$", parsing_timeout=None)
        return bool(gold) and bool(verify(gold, parse(f"${answer}$", parsing_timeout=None), timeout_seconds=None))
    except Exception:  # a grader never raises: what cannot be compared is not equal
        return False
