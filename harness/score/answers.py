"""Answers of mathematics: found in a response, and compared with a reference.

Knows how people and models write final numbers. Does not know suites. Nothing here raises for any text, and
nothing runs on: a model writes what it likes, `9^{9^{9}}` included.
"""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Literal

from harness.score.algebra import ALGEBRA

#: A sign belongs to a number only where nothing it could join or subtract from stands before it: 10-18 ends in 18.
_ANY_NUMBER = re.compile(
    r"(?:(?<![\w)])[-+])?(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?(?:\s?/\s?[1-9]\d*)?|(?:(?<![\w)])[-+])?\.\d+"
)
_HASHES = re.compile(r"####[ \t]*(\S[^\n]*)")
_MARKED_LINE = re.compile(r"^#+[ \t]*(\S[^\n]*)", re.MULTILINE)
#: What follows `#` in a Markdown heading: a word, or the number of a section before its title.
_HEADING = re.compile(
    r"[*_ ]*(?!(?:the )?(?:final )?answer[*_ ]*(?:[:=]|is\b))(?:[^\W\d_]|\d+[.):]\s+\S)", re.IGNORECASE
)
#: Words in LaTeX: a unit with its power, or, where no number stands outside of them, the answer itself.
_WORDS = re.compile(r"\\(?:text|textbf|textrm|mathrm|mathbf|mbox)\s*\{([^{}]*)\}(\^\{?\d\}?)?")
#: A separator of thousands in LaTeX: a comma, braced or drawn closer, or a narrow space.
_THOUSANDS = re.compile(r"(?<=\d)(?:\{,\}|,\\!|\\[, ])(?=\d{3}(?!\d))")
#: The last of these, which math-verify takes for a product of what stands beside it.
_NARROW_SPACE = re.compile(r"(?<=\d)\\,(?=\d{3}(?!\d))")
_LETTER = re.compile(r"[A-Za-z]")
_PLAIN = re.compile(r"[-+]?(?:\d+(?:\.\d*)?|\.\d+)")
_FRACTION = re.compile(r"([-+]?)\\[dt]?frac\{(\d+)\}\{(\d+)\}|([-+]?\d+)\s*/\s*(\d+)")
#: Longer digit strings are not answers; converting them would only cost time.
LONGEST_NUMBER = 60
#: Nor are longer expressions.
LONGEST_LATEX = 1000


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
    """The last explicit answer (`\\boxed{}` or `#### n`), else the last number of the text, else None.

    `####` also begins a Markdown heading: a title is no answer, and the numbers in it are not the text's.
    """
    explicit = [(at, value.strip()) for at, value in boxed(text)]
    explicit += [(match.start(), match.group(1).strip()) for match in _HASHES.finditer(text) if _is_answer(match[1])]
    explicit = [(at, value) for at, value in explicit if value]
    if explicit:
        return max(explicit)[1]
    plain = _MARKED_LINE.sub(lambda line: "" if _HEADING.match(line[1]) else line[0], text)
    numbers = _ANY_NUMBER.findall(plain.replace("\N{MINUS SIGN}", "-"))
    return numbers[-1] if numbers else None


def _is_answer(text: str) -> bool:
    return as_number(text) is not None and not _HEADING.match(text)


def as_number(text: str) -> Fraction | None:
    """The exact value of `$1,234.50`, `10{,}080`, `12%`, `3/4`, `\\frac{3}{4}`, `42 apples`; None if there is none.

    A percent sign is a unit here, as in GSM8K's references: 12% equals 12.
    """
    bare = _WORDS.sub(" ", text)
    cleaned = _THOUSANDS.sub("", bare if re.search(r"\d", bare) else _WORDS.sub(r" \1\2 ", text))
    cleaned = re.sub(r"\\[,;! ()]|\\left|\\right|\\q?quad|\^\{?\\circ\}?", " ", cleaned)
    cleaned = cleaned.replace("\\$", "").replace("$", "").replace("\\%", "").replace("%", "").replace("−", "-")
    cleaned = re.sub(r"(?<=\d),(?=\d{3}(?!\d))", "", cleaned).strip().rstrip(".").strip()
    if len(cleaned) > LONGEST_NUMBER:
        return None
    # a sign that stands apart is still a sign: - 7 is not 7
    cleaned = re.sub(r"^([-+])\s+", r"\1", cleaned.rsplit("=", 1)[-1].strip())
    fraction = _FRACTION.fullmatch(cleaned)
    if fraction:
        sign, top, bottom, plain_top, plain_bottom = fraction.groups()
        above, below = (int(sign + top), int(bottom)) if top else (int(plain_top), int(plain_bottom))
        return Fraction(above, below) if below else None
    if "\\" in cleaned:  # LaTeX that is left is an expression, or damaged; not a number either way
        return None
    numbers = _PLAIN.findall(cleaned)
    return Fraction(numbers[0]) if len(numbers) == 1 else None


def equal(answer: str, reference: str) -> bool:
    """Whether two written answers mean the same; symbolic comparison only where the reference is no plain number."""
    right = as_number(reference)
    if right is not None and not _LETTER.search(reference):  # x+1 holds a number and is none
        return as_number(answer) == right
    return answer.strip() == reference.strip() or ALGEBRA.compare(reference, f"${answer}$") == "equal"


def latex_verdict(text: str, gold: str) -> Literal["right", "wrong", "no_answer"]:
    """A response to a problem whose answer is LaTeX: its last `\\boxed{}`, else what math-verify finds near its end.

    Always by algebra, the same text as the gold answer included: so the test of a grader tests the algebra.
    """
    last = max(boxed(text), default=(0, None))[1]
    if last is not None and (not last.strip() or len(last) > LONGEST_LATEX):
        return "wrong" if last.strip() else "no_answer"
    found = ALGEBRA.compare(gold, text if last is None else f"\\boxed{{{_NARROW_SPACE.sub('', last)}}}")
    if found == "nothing" and last is None:
        return "no_answer"
    return "right" if found == "equal" else "wrong"
