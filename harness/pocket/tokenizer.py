"""The pocket tokenizer: byte-level BPE trained on the world's own text, and its chat template.

Knows how text becomes ids. Any text encodes (bytes are the base alphabet), a digit is always a token of
its own, and each word of the world, with the space before it, is one token.
"""

from __future__ import annotations

from itertools import islice
from random import Random

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from harness.pocket.lexicon import ASSISTANT, END, MASK, PAD, SPECIALS, USER
from harness.pocket.suites import written
from harness.pocket.world import SUITES, drafts

VOCABULARY_LIMIT = 640
PIECES = r" ?[A-Za-z]+|[0-9]| ?[^\sA-Za-z0-9]+|\s"
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '" + USER + "' if message['role'] == 'user' else '" + ASSISTANT + "' }}"
    "{{ message['content'] }}{{ '" + END + "' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '" + ASSISTANT + "' }}{% endif %}"
)


def world_text(count: int = 300) -> list[str]:
    """`count` training items of each suite as plain text."""
    text, rng = [], Random("notation")
    for suite in SUITES:
        for draft in islice(drafts(suite, "train"), count):
            text += [*draft.turns, *(written(rng, suite, reply) for reply in draft.replies)]
    return text


def train_tokenizer() -> PreTrainedTokenizerFast:
    """The tokenizer, trained anew; the same one each time."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PIECES), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY_LIMIT,
        special_tokens=list(SPECIALS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        min_frequency=20,
        show_progress=False,
    )
    tokenizer.train_from_iterator(world_text(), trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=END,
        mask_token=MASK,
        additional_special_tokens=[USER, ASSISTANT],
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
        model_max_length=2048,
    )
