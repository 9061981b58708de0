"""How one item of each suite is drawn: values first, then the words around them.

Knows the five templates. Does not know splits, tokenizers or graders. Each maker takes a random generator
and the number of entries, and returns a `Draft`. A reply is a function of its prompt: nothing in a reply
is drawn that the prompt does not fix. Numbers have fixed widths, so a wrong digit never moves what
follows it.

| suite | what a reply must work out | how its values depend on each other |
|---|---|---|
| pocket_word | per person: amount, price of the person's good (two look-ups), their product | not at all |
| pocket_algebra | pointer chain of multiply-and-add steps on last digits | each on the one before |
| pocket_complete | per person: two-digit weight of the person's good (two look-ups) | not at all |
| pocket_synth | persons by first term; the step between two terms | order by value, steps not at all |
| pocket_chat | read a list back; then, turn two, backwards and with goods | names on the name before |
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from harness.pocket.lexicon import FILLERS, GOODS, LETTERS, NAMES, VERBS


@dataclass(frozen=True)
class Draft:
    """One item before it has an id. `key` is the canonical tuple of its values: order of mention and
    filler words are not in it."""

    turns: tuple[str, ...]
    replies: tuple[str, ...]
    reference: dict
    key: tuple


def _filler(rng: Random) -> str:
    return rng.choice(FILLERS)


def word(rng: Random, n: int) -> Draft:
    """Bills: amount times price, one per person in the order of mention; the answer is the bill of one
    person."""
    names, goods = rng.sample(NAMES, n), rng.sample(GOODS, min(6, 2 + n // 2))
    price = {g: rng.randint(2, 9) for g in goods}
    buys = {p: (rng.randint(2, 9), rng.choice(goods)) for p in names}
    table = ",".join(f" {g}{price[g]}" for g in goods)
    facts = ".".join(
        f"{_filler(rng)} {p} {rng.choice(VERBS)}{_filler(rng)} {q} {g}" for p, (q, g) in buys.items()
    )
    facts = facts.replace("  ", " ")
    who = rng.choice(names)
    bills = {p: q * price[g] for p, (q, g) in buys.items()}
    steps = "".join(f" {p}{q}*{price[g]}={bills[p]:02d}" for p, (q, g) in buys.items())
    return Draft(
        turns=(f"Prices:{table}.{facts}. Bills? Answer for {who}.",),
        replies=(f"{steps} answer={bills[who]:02d}",),
        reference={"kind": "answer", "form": "answer", "answer": f"{bills[who]:02d}"},
        key=("word", tuple(sorted((p, q, price[g]) for p, (q, g) in buys.items()))),
    )


def algebra(rng: Random, n: int) -> Draft:
    """A chain of n steps x -> x * m + c, each on the last digit of the one before; two rules of the
    prompt lead nowhere."""
    letters = rng.sample(LETTERS, n + 1 + 4)
    chain, stray = letters[: n + 1], letters[n + 1 :]
    links = [(chain[i], rng.randint(2, 9), rng.randint(1, 9), chain[i + 1]) for i in range(n)]
    false = [(stray[i], rng.randint(2, 9), rng.randint(1, 9), stray[i + 1]) for i in (0, 2)]
    start, steps, x, total = rng.randint(2, 9), [], 0, 0
    x = start
    for a, m, c, _ in links:
        total = x * m + c
        steps.append(f" {a}{x}*{m}={x * m:02d}+{c}={total:02d}")
        x = total % 10
    rules = links + false
    rng.shuffle(rules)
    text = ".".join(f"{_filler(rng)} {a}*{m}+{c} to {b}" for a, m, c, b in rules)
    return Draft(
        turns=(f"Rules:{text}. Last digits. Set {chain[0]}={start}, find {chain[-1]}.",),
        replies=(f"{''.join(steps)} {chain[-1]} \\boxed{{{total:02d}}}",),
        reference={"kind": "answer", "form": "boxed", "answer": f"{total:02d}"},
        key=("algebra", start, tuple(links)),
    )


def complete(rng: Random, n: int) -> Draft:
    """A function body: the weight of each person's good, looked up through the owner; the docstring holds
    both tables."""
    names, goods = rng.sample(NAMES, n), rng.sample(GOODS, min(7, 2 + n // 2))
    weight = {g: rng.randint(11, 99) for g in goods}
    has = {p: rng.choice(goods) for p in names}
    table = ",".join(f" {g}{weight[g]}" for g in goods)
    owners = ",".join(f"{_filler(rng)} {p} has {g}" for p, g in has.items())
    head = f'def f(k):\n """Weights:{table}. Owners:{owners}. Weight of k."""\n'
    body = f" return dict({','.join(f' {p}={weight[g]}' for p, g in has.items())})[k]"
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
    """A function from tests: persons in the order of their first terms, with the step (last digit)
    between first and second."""
    names = rng.sample(NAMES, n)
    first = dict(zip(names, rng.sample(range(n), n), strict=True))
    step = {p: rng.randint(1, 9) for p in names}
    shown = " ".join(f"t( {p})==[{first[p]},{(first[p] + step[p]) % 10}]" for p in names)
    ordered = sorted(names, key=first.__getitem__)
    code = f"f=lambda k:dict({','.join(f' {p}={step[p]}{first[p]}' for p in ordered)})[k]"
    return Draft(
        turns=(f"Write f(k)=10*step+first. Tests: {shown}",),
        replies=(code,),
        reference={
            "kind": "code",
            "head": "",
            "setup": "def t(k):\n d, a = divmod(f(k), 10)\n return [a, (a + d) % 10]\n",
            "tests": [f"t({p!r})==[{first[p]},{(first[p] + step[p]) % 10}]" for p in names],
        },
        key=("synth", tuple(sorted((p, first[p], step[p]) for p in names))),
    )


def chat(rng: Random, n: int) -> Draft:
    """Two turns: the numbers of a list read back, then goods and numbers from the last entry to the
    first."""
    names = rng.sample(NAMES, n)
    rows = [(p, rng.choice(GOODS), rng.randint(0, 99)) for p in names]
    facts = ",".join(f"{_filler(rng)} {p}{_filler(rng)} {g}{v:02d}" for p, g, v in rows)
    return Draft(
        turns=(f"My list:{facts}. Read back the numbers.", "Now backwards, with goods."),
        replies=(
            "".join(f" {p}{v:02d}" for p, _, v in rows),
            "".join(f" {p} {g}{v:02d}" for p, g, v in reversed(rows)),
        ),
        reference={"kind": "none"},
        key=("chat", tuple(sorted(rows))),
    )


MAKERS: dict[str, Callable[[Random, int], Draft]] = {
    "pocket_word": word,
    "pocket_algebra": algebra,
    "pocket_complete": complete,
    "pocket_synth": synth,
    "pocket_chat": chat,
}
ENTRIES: dict[str, tuple[int, int]] = {  # least and most entries of a reply
    "pocket_word": (8, 9),
    "pocket_algebra": (6, 6),
    "pocket_complete": (10, 12),
    "pocket_synth": (10, 10),
    "pocket_chat": (8, 9),
}
