"""Drills: training-only exercises that make a small target learn to read its prompt before it learns
anything else.

Knows two of them, copying a random sequence and recalling values of a list in another order. They are in no
suite and no split, and their share of the training batches falls to nothing.
"""

from __future__ import annotations

from random import Random

from harness.pocket.lexicon import GOODS, NAMES

WORDS = NAMES + GOODS


def copy(rng: Random) -> tuple[str, str]:
    """(prompt, reply): a sequence of random words and digits, to be repeated."""
    length = rng.randint(6, 32)
    text = "".join(f" {rng.choice(WORDS)}{rng.choice(('', rng.randint(0, 9)))}" for _ in range(length))
    return f"Copy:{text}.", text


def recall(rng: Random) -> tuple[str, str]:
    """(prompt, reply): a list of words with two digits each, then some of them, to be given their digits
    again."""
    words = rng.sample(WORDS, rng.randint(3, 14))
    value = {w: f"{rng.randint(0, 99):02d}" for w in words}
    asked = rng.sample(words, rng.randint(2, len(words)))
    table = ",".join(f" {w}{v}" for w, v in value.items())
    question = "".join(f" {w}" for w in asked)
    return f"Recall:{table}. Of{question}.", "".join(f" {w}{value[w]}" for w in asked)


def drill(rng: Random) -> tuple[tuple[str], tuple[str]]:
    """(turns, replies) of one exercise."""
    turn, reply = rng.choice((copy, recall))(rng)
    return (turn,), (reply,)
