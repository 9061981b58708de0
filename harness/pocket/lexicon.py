"""The words of the pocket world and the special tokens of its tokenizer.

Knows which words exist; not how a sentence is made of them. Every name and good is written with a space
before it, so that it is one and the same token wherever it stands.
"""

NAMES = (
    "ann", "bob", "cid", "dan", "eve", "fay", "gus", "hal", "ivy", "jay",
    "kim", "leo", "mia", "ned", "ora", "pam", "ray", "sue", "tom", "una",
)  # fmt: skip
GOODS = ("fig", "oat", "yam", "nut", "pea", "rye", "tea", "egg", "jam", "ham", "bun", "cod")

VERBS = ("takes", "gets", "buys")
LOOSE = 0.5  # share of prompts with filler words
FILLERS = (
    "",
    "",
    " then",
    " today",
    " also then",
)  # their lengths differ, so no distance in a prompt is fixed

PAD, USER, ASSISTANT, END, MASK = "<|pad|>", "<|user|>", "<|assistant|>", "<|end|>", "<|mask|>"
SPECIALS = (PAD, USER, ASSISTANT, END, MASK)
