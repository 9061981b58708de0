"""The decoder as a model of lm-eval: any generation task, theirs or of `harness.lm_tasks`, with or without a drafter.

    from harness.lm import DraftedLM
    lm_eval.simple_evaluate(DraftedLM(target, factory), tasks=[...], apply_chat_template=True)

It knows lm-eval's requests.  It does not know what is asked or how it is graded.  Likelihoods are refused: a drafter
changes how text is written, not how probable it is, and any model of lm-eval answers that for the target.
"""

from __future__ import annotations

from dataclasses import dataclass

from lm_eval.api.instance import Instance
from lm_eval.api.model import LM

from harness.arms import DrafterFactory
from harness.decode import Decoder, DecodeSettings, Prompt, Response
from harness.stops import trim
from harness.target import Target

#: What a generation request may ask for; anything else would be silently ignored, so it is refused.
KNOWN = {"until", "max_gen_toks", "temperature", "do_sample"}


@dataclass(frozen=True)
class _Asked:
    """How one request wants to be decoded."""

    until: tuple[str, ...]
    budget: int
    temperature: float


class DraftedLM(LM):
    """A target with an optional drafter behind lm-eval's `generate_until`.

    factory: (rows, capacity) -> drafter, as `harness.arms.load_arm` gives it; None decodes plainly.  rows: sequences
    decoded at once.  seed: with the id of a prompt, what its random numbers at T > 0 depend on; the id is the field
    ``id`` of a document if it has one, else task and number.  max_new_tokens: for requests that name no budget.
    responses: every response so far, with its steps, in the order they were asked for.
    """

    def __init__(
        self,
        target: Target,
        factory: DrafterFactory | None = None,
        *,
        rows: int = 1,
        seed: int = 0,
        max_new_tokens: int = 256,
    ) -> None:
        super().__init__()
        self.target, self.factory, self.rows, self.seed = target, factory, rows, seed
        self.max_new_tokens = max_new_tokens
        self.responses: list[Response] = []
        self._rendered: set[str] = set()

    # -- what lm-eval asks for -----------------------------------------------------------------------------------

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """The text of each answer before its first stop string, in the order of `requests`.

        Raises ``ValueError`` for a request that asks for something this decoder does not do.
        """
        asked = [self._settings(request) for request in requests]
        texts: list[str | None] = [None] * len(requests)
        kept: list[Response | None] = [None] * len(requests)
        for settings in dict.fromkeys(asked):
            chosen = [i for i, other in enumerate(asked) if other == settings]
            decoder = self._decoder(settings, len(chosen))
            prompts = [Prompt(f"{i}/{self._name(requests[i])}", self._ids(requests[i].args[0])) for i in chosen]
            names = {prompt.id: self._name(requests[i]) for i, prompt in zip(chosen, prompts, strict=True)}
            if len(set(names.values())) == len(names):  # the usual case: draws as the pipeline's own
                prompts = [Prompt(names[prompt.id], prompt.ids) for prompt in prompts]
            for i, response in zip(chosen, decoder.run(prompts), strict=True):
                kept[i] = response
                texts[i] = trim(self.target.decode(response.output_ids), settings.until)
                self.cache_hook.add_partial("generate_until", requests[i].args, texts[i])
        self.responses += [response for response in kept if response is not None]
        return [text for text in texts if text is not None]

    def loglikelihood(self, requests: list[Instance]) -> list[tuple[float, bool]]:
        raise NotImplementedError("likelihoods are those of the target alone; ask lm-eval's own models for them")

    def loglikelihood_rolling(self, requests: list[Instance]) -> list[float]:
        raise NotImplementedError("likelihoods are those of the target alone; ask lm-eval's own models for them")

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        """A conversation as the target's own template writes it.  Raises ``ValueError`` for an answer already begun."""
        if not add_generation_prompt:
            raise ValueError("an answer that begins with text of the task is not supported; remove gen_prefix")
        text = self.target.chat_text(chat_history)
        self._rendered.add(text)
        return text

    @property
    def tokenizer_name(self) -> str:
        return self.target.source

    def chat_template(self, chat_template: bool | str = False) -> str:
        """The template itself, which lm-eval records; a name would choose among several, and there is one."""
        if isinstance(chat_template, str) and chat_template:
            raise ValueError(f"chat template {chat_template!r} is asked for by name; the target has one, pass True")
        return getattr(self.target.tokenizer, "chat_template", None) or ""

    # -- how it is done ------------------------------------------------------------------------------------------

    @property
    def acceptance_length(self) -> float:
        """Tokens committed per verify step over all responses so far; nan before the first."""
        steps = sum(len(response.committed) for response in self.responses)
        return sum(sum(r.committed) for r in self.responses) / steps if steps else float("nan")

    def _settings(self, request: Instance) -> _Asked:
        wanted = dict(request.args[1])
        unknown = {k: v for k, v in wanted.items() if k not in KNOWN and v is not None}
        if unknown:
            raise ValueError(
                f"task {request.task_name!r} asks for {unknown}, which this decoder does not do; its generation_kwargs "
                f"may hold {', '.join(sorted(KNOWN))}"
            )
        until = wanted.get("until") or ()
        temperature = float(wanted.get("temperature") or 0.0)
        if wanted.get("do_sample") is False:
            temperature = 0.0
        elif wanted.get("do_sample") and not temperature:
            temperature = 1.0
        budget = wanted.get("max_gen_toks")
        return _Asked(
            until=(until,) if isinstance(until, str) else tuple(until),
            budget=self.max_new_tokens if budget is None else int(budget),
            temperature=temperature,
        )

    def _decoder(self, asked: _Asked, count: int) -> Decoder:
        settings = DecodeSettings(
            temperature=asked.temperature,
            seed=self.seed,
            max_new_tokens=asked.budget,
            stop_ids=self.target.stop_ids,
            stop_strings=asked.until,
        )
        return Decoder(self.target, self.factory, settings, rows=max(1, min(self.rows, count)))

    def _ids(self, context: str) -> tuple[int, ...]:
        """Token ids of a context: a template has written its own special tokens, plain text gets the tokenizer's.

        What lm-eval rendered in an earlier run, and has kept, is known by the beginning token that it begins with.
        """
        begins = getattr(self.target.tokenizer, "bos_token", None)
        written = context in self._rendered or bool(begins and context.startswith(begins))
        return tuple(self.target.encode(context, special=not written))

    @staticmethod
    def _name(request: Instance) -> str:
        named = request.doc.get("id") if isinstance(request.doc, dict) else None
        return str(named) if named else f"{request.task_name}/{request.doc_id}"
