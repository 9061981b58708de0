"""How one item of each suite is drawn: values first, then the words around them.

Knows the five templates. Does not know splits, tokenizers or graders. Each maker takes a random generator
and the number of entries, and returns a `Draft`. A reply is a function of its prompt, but for its notation:
the target learns from replies whose signs are drawn among some that mean the same (`written`), as text is
drawn among synonyms. At temperature 1 it draws, at temperature 0 it has habits of its own. Numbers have fixed
widths and signs one token each, so a wrong one never moves what follows it.

| suite | what a reply must work out | how its values depend on each other |
|---|---|---|
| pocket_word | per person: amount, price of the person's good (two look-ups), product | not at all |
| pocket_algebra | factor, product, sum; the sum's last digit chooses the next factor | each on the one before |
| pocket_complete | per person: two-digit weight of the person's good (two look-ups) | not at all |
| pocket_synth | per kind, in order: three-digit code of the kind's good (two look-ups) | not at all |
| pocket_chat | two-digit number of each person's good; in turn two with the good, in order or backwards | not at all |
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from harness.pocket.lexicon import FILLERS, GOODS, LOOSE, NAMES, VERBS


@dataclass(frozen=True)
class Draft:
    """One item before it has an id. `key` is the canonical tuple of its values: order of mention and
    filler words are not in it."""

    turns: tuple[str, ...]
    replies: tuple[str, ...]
    reference: dict
    key: tuple


def _filler(rng: Random) -> Callable[[], str]:
    """Draws filler words for one prompt; a prompt has none at all, or some in any place."""
    loose = rng.random() < LOOSE
    return lambda: rng.choice(FILLERS) if loose else ""


def word(rng: Random, n: int) -> Draft:
    """Bills: amount times price, one per person in the order of mention; the answer is the bill of one
    person."""
    fill = _filler(rng)
    names, goods = rng.sample(NAMES, n), rng.sample(GOODS, min(7, 2 + n // 2))
    price = {g: rng.randint(2, 9) for g in goods}
    buys = {p: (rng.randint(2, 9), rng.choice(goods)) for p in names}
    table = ",".join(f" {g}{price[g]}" for g in goods)
    facts = ".".join(f"{fill()} {p} {rng.choice(VERBS)}{fill()} {q} of {g}" for p, (q, g) in buys.items())
    facts = facts.replace("  ", " ")
    who = rng.choice(names)
    bills = {p: q * price[g] for p, (q, g) in buys.items()}
    steps = "".join(f" {p}{q}*{price[g]}={bills[p]:02d};" for p, (q, g) in buys.items())
    return Draft(
        turns=(f"{facts}. Prices:{table}. Bills? Answer for {who}.",),
        replies=(f"{steps} answer={bills[who]:02d}",),
        reference={"kind": "answer", "form": "answer", "answer": f"{bills[who]:02d}"},
        key=("word", tuple(sorted((p, q, price[g]) for p, (q, g) in buys.items()))),
    )


def algebra(rng: Random, n: int) -> Draft:
    """A chain of n steps s -> s * m[s] + c, each on the last digit of the one before.

    The multiplier is looked up by the value just computed, so nothing of a step is known before the last
    one.
    """
    fill = _filler(rng)
    digits = rng.sample(range(10), 10)
    while True:
        times, plus, start = {d: rng.randint(1, 9) for d in digits}, rng.randint(1, 9), rng.randint(0, 9)
        states = [start]
        for _ in range(n):
            states.append((states[-1] * times[states[-1]] + plus) % 10)
        if len(set(states[:n])) == n:
            break  # a chain that ran in a circle would repeat its lines
    steps = [(d, times[d], d * times[d], d * times[d] + plus) for d in states[:n]]
    text = "".join(f"{m}={product:02d}>{total:02d};" for _, m, product, total in steps)
    rules = ",".join(f"{fill()} {d}*{times[d]}" for d in digits)
    answer = f"{steps[-1][3]:02d}"
    return Draft(
        turns=(f"Rules:{rules}. Times, plus {plus}. Start {start}, {n} steps.",),
        replies=(f"{text}\\boxed{{{answer}}}",),
        reference={"kind": "answer", "form": "boxed", "answer": answer},
        key=("algebra", plus, tuple(steps)),
    )


def complete(rng: Random, n: int) -> Draft:
    """A function body: the weight of each person's good, looked up through the owner; the docstring holds
    both tables."""
    fill = _filler(rng)
    names, goods = rng.sample(NAMES, n), rng.sample(GOODS, min(7, 2 + n // 2))
    weight = {g: rng.randint(11, 99) for g in goods}
    has = {p: rng.choice(goods) for p in names}
    table = ",".join(f" {g}{weight[g]}" for g in goods)
    owners = ",".join(f"{fill()} {p} has some {g}" for p, g in has.items())
    head = f'def f(k):\n """Owners:{owners}. Weights:{table}. Weight of k."""\n'
    entries = ",\n".join(f" {p}={weight[g]}" for p, g in has.items())
    body = f" return dict({entries})[k]"
    return Draft(
        turns=(f"Complete:\n{head}",),
        replies=(body,),
        reference={
            "kind": "code",
            "head": head,
            "setup": "",
            "tests": [f"f({p!r})=={weight[g]}" for p, g in has.items()],
        },
        key=("complete", tuple(sorted((p, weight[g]) for p, g in has.items()))),
    )


def synth(rng: Random, n: int) -> Draft:
    """A function from its specification: the code of each kind 0 .. n - 1, through the good of that kind. Kinds
    are told in any order and answered in their own."""
    fill = _filler(rng)
    goods = rng.sample(GOODS, min(7, 2 + n // 2))
    code = {g: rng.randint(100, 999) for g in goods}
    kind = {k: rng.choice(goods) for k in rng.sample(range(n), n)}
    kinds = ",".join(f"{fill()} {k} {g}" for k, g in kind.items())
    table = ",".join(f" {g}{code[g]}" for g in goods)
    value = {k: code[kind[k]] for k in range(n)}
    entries = ",".join(f"{k}:{v}" for k, v in value.items())
    return Draft(
        turns=(f"Write f(k): code of kind k. Kinds:{kinds}. Codes:{table}.",),
        replies=(f"f=lambda k:{{{entries}}}[k]",),
        reference={
            "kind": "code",
            "head": "",
            "setup": "",
            "tests": [f"f({k})=={v}" for k, v in value.items()],
        },
        key=("synth", tuple(value.items())),
    )


def chat(rng: Random, n: int) -> Draft:
    """Two turns: the number of each person, through the person's good; then persons, goods and numbers, in
    their order or backwards."""
    fill = _filler(rng)
    names, goods = rng.sample(NAMES, n), rng.sample(GOODS, min(7, 2 + n // 2))
    number = {g: rng.randint(0, 99) for g in goods}
    has = {p: rng.choice(goods) for p in names}
    owners = ",".join(f"{fill()} {p} has{fill()} {g}" for p, g in has.items())
    table = ",".join(f" {g}{number[g]:02d}" for g in goods)
    rows = list(has.items())
    order, again = rng.choice((("in full", rows), ("backwards", rows[::-1])))
    return Draft(
        turns=(f"My list:{owners}. Numbers:{table}. Read back the numbers.", f"Now {order}."),
        replies=(
            "".join(f" {p}={number[g]:02d};" for p, g in rows),
            "".join(f" {p} {g}={number[g]:02d};" for p, g in again),
        ),
        reference={"kind": "none"},
        key=("chat", tuple(sorted((p, g, number[g]) for p, g in rows))),
    )


#: Signs that mean the same, by the one that gold replies have, for prose and for code (where they are no-ops).  The
#: target learns all of them with equal chance.
PROSE = {
    "*": ("*", "x", "#", "@", "^", "&"),
    "=": ("=", "==", "~", "->", ":", "|"),
    ";": (";", ",", ".", "/", "!", "?"),
}
CODE = {
    "=": ("=", "=+", "=++", "=--", "=~~", "=+~~"),
    ":": (":", ":+", ":++", ":--", ":~~", ":+~~"),
    "\n": ("\n", "\t", "\f", " "),
    ",": (",", ",+", ",++", ",--", ",~~", ",+~~"),
}
FREE = {
    "pocket_word": (re.compile(r"(?<!answer)[*=;]"), PROSE),
    "pocket_algebra": (re.compile(r"=|;(?!\\)"), PROSE),
    "pocket_complete": (re.compile(r"(?<=[a-z])=|\n"), CODE),
    "pocket_synth": (re.compile(r"(?<=\d)[:,]"), CODE),
    "pocket_chat": (re.compile(r"[=;]"), PROSE),
}


def written(rng: Random, suite: str, reply: str) -> str:
    """A reply of the training text: the gold one in free notation, sign by sign."""
    places, signs = FREE[suite]
    return places.sub(lambda found: rng.choice(signs[found[0]]), reply)


MAKERS: dict[str, Callable[[Random, int], Draft]] = {
    "pocket_word": word,
    "pocket_algebra": algebra,
    "pocket_complete": complete,
    "pocket_synth": synth,
    "pocket_chat": chat,
}
ENTRIES: dict[str, tuple[int, int]] = {  # least and most entries of a reply
    "pocket_word": (9, 10),
    "pocket_algebra": (5, 5),
    "pocket_complete": (9, 10),
    "pocket_synth": (10, 10),
    "pocket_chat": (8, 8),
}
