"""Accuracy of a pocket target at temperature 0, beside what a majority answer and an ablated prompt would
score.

Knows plain batched greedy generation through transformers; nothing of drafters or of the project's decoder.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import torch
from tqdm import tqdm

from harness.pocket.grade import grade
from harness.pocket.world import SCORED, Item, items

MAX_NEW_TOKENS = 160


def load_target(folder: str | Path):
    """(model in float32 on the CPU, tokenizer) of a target folder. Raises OSError, naming the folder, if
    it holds no target."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    if not (Path(folder) / "config.json").exists():
        raise OSError(f"no target in {folder}: config.json is missing; build one with python -m harness.pocket.build")
    model = AutoModelForCausalLM.from_pretrained(str(folder), dtype=torch.float32).eval()
    return model, AutoTokenizer.from_pretrained(str(folder))


@torch.no_grad()
def respond(model, tokenizer, turns: Sequence[str], batch: int = 25, what: str = "") -> list[str]:
    """Greedy replies to single-turn prompts, special tokens removed, in the order given. Batches are
    padded on the left."""
    texts = [
        tokenizer.apply_chat_template([{"role": "user", "content": t}], add_generation_prompt=True, tokenize=False)
        for t in turns
    ]
    replies: list[str] = []
    for at in tqdm(range(0, len(texts), batch), desc=what or None, leave=False, disable=not what):
        chunk = tokenizer(
            texts[at : at + batch],
            return_tensors="pt",
            padding=True,
            padding_side="left",
            add_special_tokens=False,
        )
        out = model.generate(
            input_ids=chunk["input_ids"],
            attention_mask=chunk["attention_mask"],
            max_new_tokens=MAX_NEW_TOKENS,
            do_sample=False,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
        replies += tokenizer.batch_decode(out[:, chunk["input_ids"].shape[1] :], skip_special_tokens=True)
    return replies


def majority_share(batch: Sequence[Item]) -> float:
    """Share of items that the one most common solution solves (its answer, or the set of tests it
    passes)."""
    kinds = [i.reference.get("answer") or tuple(sorted(i.reference["tests"])) for i in batch]
    return Counter(kinds).most_common(1)[0][1] / len(kinds)


def score(model, tokenizer, suite: str, count: int, split: str = "eval") -> dict[str, float]:
    """Shares of `count` items: right, no answer found, right with the prompt of the next item, right by
    majority."""
    batch = items(suite, split, count)
    replies = respond(model, tokenizer, [i.turns[0] for i in batch], what=suite)
    grades = [grade(i.reference, r) for i, r in zip(batch, replies, strict=True)]
    # the reply to another item's prompt, graded against this item: what remains when the prompt tells nothing
    moved = replies[1:] + replies[:1]
    ablated = [grade(i.reference, r) for i, r in zip(batch, moved, strict=True)]
    return {
        "accuracy": grades.count("right") / count,
        "no_answer": grades.count("no_answer") / count,
        "ablated": ablated.count("right") / count,
        "majority": majority_share(batch),
    }


def score_all(folder: str | Path, count: int, split: str = "eval") -> dict[str, dict[str, float]]:
    """`score` for each scored suite of a target folder."""
    model, tokenizer = load_target(folder)
    return {suite: score(model, tokenizer, suite, count, split) for suite in SCORED}
