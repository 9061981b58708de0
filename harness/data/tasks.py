"""A task, and how it becomes the token ids that a target reads.

Knows chat messages, few-shot text, and the rule that a shared prefix is a run of leading ids. Does not know
where tasks come from, how they are graded, or how they are decoded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any

from harness.decode import Prompt

#: Strings that end a response: the same for all, or by source where prompts come from several.
StopStrings = Sequence[str] | Mapping[str, Sequence[str]]
#: A tokenizer may join the last characters of the few-shot text with the first of the question; more than
#: this is a fault.
MOST_JOINED_IDS = 4


class TaskError(ValueError):
    """A task cannot become a prompt for this target. The message names the task and the mend."""


@dataclass(frozen=True)
class Task:
    """One evaluation or training prompt, for chat and for base models alike.

    turns: user messages, the second asked after the model's own first answer.
    reference: what the grader needs (`kind` names the grader).
    plain: for a tokenizer without chat template, the text of each turn, which stands behind all before it (few_shot,
    earlier turns and their answers); empty if there is no such form.
    few_shot: text that stands before `plain`, the same for every task of a suite, so that it is computed once.
    stop_strings: end a plain answer; a chat answer ends by its stop id.
    gold: replies known to be right, by turn, for the graders' self-test; may be empty.
    """

    id: str
    suite: str
    turns: tuple[str, ...]
    reference: dict = field(default_factory=dict)
    plain: tuple[str, ...] = ()
    few_shot: str = ""
    stop_strings: tuple[str, ...] = ()
    gold: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if isinstance(self.plain, str) or len(self.plain) not in (0, len(self.turns)):
            raise TaskError(f"{self.id}: plain is {self.plain!r}; it needs a text for each of {len(self.turns)} turns")


def first_messages(task: Task) -> list[dict[str, str]]:
    """The conversation up to the first answer."""
    return [{"role": "user", "content": task.turns[0]}]


def next_turn(task: Task, messages: Sequence[dict[str, str]]) -> list[dict[str, str]] | None:
    """The conversation up to the next answer, or None if the task is over.

    `messages` ends with the model's own answer to the turn before. Raises TaskError if it does not.
    """
    if not messages or messages[-1]["role"] != "assistant":
        raise TaskError(f"{task.id}: the conversation must end with the model's answer before the next turn is asked")
    asked = sum(message["role"] == "user" for message in messages)
    if asked >= len(task.turns):
        return None
    return [*messages, {"role": "user", "content": task.turns[asked]}]


def prompt_of(task: Task, messages: Sequence[dict[str, str]], target: Any, max_new_tokens: int = 0) -> Prompt:
    """The prompt whose answer continues `messages`; its turn is the number of answers given so far."""
    ids = prompt_ids(task, messages, target)
    _check_length(task, ids, target, max_new_tokens)
    return Prompt(id=task.id, ids=ids, turn=_answers(messages))


def prompt_ids(task: Task, messages: Sequence[dict[str, str]], target: Any) -> tuple[int, ...]:
    """Its ids, however many there are."""
    if target.has_template:
        return tuple(target.render(list(messages)))
    if task.plain:
        return tuple(target.encode(plain_text(task, messages)))
    raise TaskError(
        f"{task.id}, turn {_answers(messages) + 1}: {target.name} has no chat template and this task no plain form; "
        f"use a chat model, or leave suite {task.suite!r} out"
    )


def _answers(messages: Sequence[dict[str, str]]) -> int:
    return sum(message["role"] == "assistant" for message in messages)


def plain_text(task: Task, messages: Sequence[dict[str, str]]) -> str:
    """The conversation as plain text up to the next answer.  White space behind an answer is left out: the next turn
    begins with its own."""
    answers = [message["content"].rstrip() for message in messages if message["role"] == "assistant"]
    asked = task.plain[: len(answers) + 1]
    return task.few_shot + "".join(map("".join, zip_longest(asked, answers, fillvalue="")))


def refuse_overlong(task: Task, target: Any, max_new_tokens: int) -> None:
    """Raise TaskError unless all turns of `task`, with an answer of `max_new_tokens` to each, fit the context.

    Found at its last turn, a dialogue would stop a run after the work of all the others.
    """
    messages = first_messages(task)
    while (longer := next_turn(task, [*messages, {"role": "assistant", "content": ""}])) is not None:
        messages = longer
    asked, turns = len(prompt_of(task, messages, target, max_new_tokens).ids), len(task.turns)
    if asked + turns * max_new_tokens > target.max_positions:
        raise TaskError(
            f"{task.id}: {asked} tokens of prompt and {turns} answers of up to {max_new_tokens} do not fit the "
            f"{target.max_positions} positions of {target.name}; lower max_new_tokens, or shorten the prompt or take "
            "it out"
        )


def build_prompts(tasks: Sequence[Task], target: Any, max_new_tokens: int = 0) -> list[Prompt]:
    """The first prompt of each task, in the order given.

    Raises TaskError for no tasks, a repeated id, or a prompt that leaves no room for `max_new_tokens` in the
    target's context.
    """
    if not tasks:
        raise TaskError("there are no tasks; ask for at least one prompt")
    seen: set[str] = set()
    for task in tasks:
        if task.id in seen:
            raise TaskError(f"task id {task.id!r} occurs twice; prompts must be unique")
        seen.add(task.id)
    return [prompt_of(task, first_messages(task), target, max_new_tokens) for task in tasks]


def shared_prefix(tasks: Sequence[Task], prompts: Sequence[Prompt], target: Any) -> tuple[int, ...]:
    """Leading ids that every prompt has in common because of the few-shot text; empty where there is none.

    The prompts were encoded whole, so prefix + rest is the prompt by construction. Where a tokenizer joins
    characters across the boundary the prefix is shortened by those ids; more than `MOST_JOINED_IDS` of them
    raises TaskError.
    """
    texts = {task.few_shot for task in tasks}
    if target.has_template or texts == {""} or not prompts:
        return ()
    if len(texts) != 1:
        raise TaskError(f"{len(texts)} different few-shot texts in one run; decode one suite at a time")
    prefix = tuple(target.encode(texts.pop()))
    shared = len(prefix)
    for prompt in prompts:
        # one id of each prompt must remain, or there is nothing left to predict from
        limit = min(shared, len(prompt.ids) - 1)
        shared = next((i for i in range(limit) if prompt.ids[i] != prefix[i]), limit)
    if len(prefix) - shared > MOST_JOINED_IDS:
        raise TaskError(
            f"the few-shot text is {len(prefix)} ids alone but only {shared} of them start every prompt; "
            "the tokenizer is not a left-to-right one: set shots to 0 or use a chat model"
        )
    return prefix[:shared]


def stop_strings(tasks: Sequence[Task], target: Any, configured: Sequence[str] | None = None) -> tuple[str, ...]:
    """Strings that end an answer of these tasks: as configured, else none for a chat model and the tasks' own
    for a base one.
    """
    if configured is not None:
        return tuple(configured)
    if target.has_template:
        return ()
    strings: dict[str, None] = {}
    for task in tasks:
        strings.update(dict.fromkeys(task.stop_strings))
    return tuple(strings)


def stops_of(stops: StopStrings, source: str | None) -> tuple[str, ...]:
    """Those that end a response to a prompt from `source`.  Raises TaskError for a source without an entry."""
    if not isinstance(stops, Mapping):
        return tuple(stops)
    if source not in stops:
        raise TaskError(f"no stop strings are known for source {source!r}; there are some for {', '.join(stops)}")
    return tuple(stops[source])


def _check_length(task: Task, ids: tuple[int, ...], target: Any, max_new_tokens: int) -> None:
    if not ids:
        raise TaskError(f"{task.id}: the prompt has no tokens")
    if len(ids) + max_new_tokens > target.max_positions:
        raise TaskError(
            f"{task.id}: {len(ids)} prompt tokens and max_new_tokens {max_new_tokens} do not fit the "
            f"{target.max_positions} positions of {target.name}; lower max_new_tokens or the number of shots"
        )
