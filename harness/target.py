"""The frozen target: any decoder-only causal language model of transformers, seen through four questions.

What are the logits and tapped states of these tokens, with a ragged cache (decoding) or without (training)?  How are
token ids embedded, and hidden states turned into logits (what a drafter borrows)?  When does a text stop?  How are
messages rendered?  It does not know drafters, suites or rounds.

A tap of layer L is the *output of decoder layer L*, counted from 0: before the final norm for the last layer too, in
training and decoding alike.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from harness.attention import NAME as RAGGED
from harness.cache import RaggedCache, Step
from harness.lean import LeanDecoder, NotLean
from harness.model_source import read_model
from harness.soundness import TargetError, compare_forwards, refuse_nonfinite, refuse_states
from methods.contract import TargetBinding

log = logging.getLogger(__name__)


@dataclass
class TargetOutput:
    """logits: [B, S, V] or [B, 1, V] (the last token only) or None; taps: [B, S, F], F = taps x hidden, or None."""

    logits: Tensor | None
    taps: Tensor | None


class Target:
    """A frozen model, its tokenizer, and what the harness must know of them."""

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        name: str,
        thinking: bool | None = None,
        source: str | None = None,
        revision: str | None = None,
    ) -> None:
        """Raises `TargetError` for a model that is no decoder-only transformer with a language-model head.

        source, revision: where the weights came from, recorded in drafters; the name stands in for a missing source.
        """
        self.model = model.eval().requires_grad_(False)
        self.tokenizer, self.name, self.thinking = tokenizer, name, thinking
        self.source, self.revision = source or name, revision
        refuse_states(model, name)
        self.config = model.config.get_text_config()
        self.decoder = model.get_decoder()
        self.layers = _decoder_layers(self.decoder, name)
        self.hidden_size, self.num_layers = self.config.hidden_size, len(self.layers)
        self.max_positions = _max_positions(self.config, name)
        self.device, self.dtype = next(model.parameters()).device, next(model.parameters()).dtype
        self._embedding, self._head = model.get_input_embeddings(), model.get_output_embeddings()
        if self._head is None:
            raise TargetError(f"target {name}: {type(model).__name__} has no language-model head; use a causal LM")
        self._softcap = getattr(self.config, "final_logit_softcapping", None)
        self.vocab_size = self._head.weight.shape[0]
        self._wanted: frozenset[int] = frozenset()
        self._tapped: dict[int, Tensor] = {}
        self._hooked: set[int] = set()
        self._narrow: tuple[Tensor, Tensor, Tensor | None] | None = None
        self.use_our_attention(True)
        self._lean = self._find_lean()
        self.stop_ids = self._find_stop_ids()

    @classmethod
    def load(cls, config: Any, name: str | None = None, check: bool = True) -> Target:
        """Load a hub id, a local folder, or a GGUF file, in the dtype asked for, and prove that it can be rolled back.

        `config`: as a `harness.settings.TargetConfig`.  Raises `TargetError` for a missing folder, an unknown
        dtype, an absent device, weights that lack tensors of the model or hold NaN, or a model whose outputs our cached
        forward does not reproduce.
        """
        name = name or Path(config.source).name
        model, tokenizer, revision = read_model(config, name)
        target = cls(model, tokenizer, name, config.thinking, config.source, revision)
        if check:
            target.self_test()
        return target

    # -- forward passes ------------------------------------------------------------------------------------------

    @torch.no_grad()
    def forward(
        self,
        ids: Tensor,  # [B, S] int64
        cache: RaggedCache,
        rows: Sequence[int],
        *,
        taps: tuple[int, ...] = (),
        logits: str = "all",
    ) -> TargetOutput:
        """Append S tokens to each of B rows of `cache` (the caller commits them) and answer about all of them.

        `logits` is "all" (verification), "last" (prefill) or "none".  They are not searched for NaN, which would make
        every round wait for the device once more: `self_test` has found the weights finite.
        """
        step = cache.begin(rows, ids.shape[1])
        hidden, features = self._run(ids, taps, step)
        if logits == "none":
            return TargetOutput(None, features)
        out = self.head(hidden if logits == "all" else hidden[:, -1:])
        return TargetOutput(out, features)

    @torch.no_grad()
    def features(self, ids: Tensor, taps: tuple[int, ...]) -> Tensor:  # [B, S] -> [B, S, F]
        """Tapped states of whole sequences, no cache.  Causal: padding on the right changes nothing before it."""
        return self.features_after(ids, None, taps)

    @torch.no_grad()
    def features_after(self, ids: Tensor, step: Step | None, taps: tuple[int, ...]) -> Tensor:  # [B, S] -> [B, S, F]
        """Tapped states of tokens that stand where `step` says (a `Step`, or anything that answers like one)."""
        features = self._run(ids, taps, step, depth=max(taps) + 1)[1]
        assert features is not None
        return features

    @torch.no_grad()
    def logits(self, ids: Tensor) -> Tensor:  # [B, S] -> [B, S, V]
        """Logits of whole sequences without a cache."""
        return self.head(self._run(ids, ())[0])

    def _run(
        self, ids: Tensor, taps: tuple[int, ...], step: Step | None = None, depth: int | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """Normalised hidden states [B, S, H] and concatenated taps [B, S, F] of one pass.

        depth: layers after this many are of no interest, and may be left out; hidden states then mean nothing.
        """
        for layer in taps:
            if not 0 <= layer < self.num_layers:
                raise TargetError(f"target {self.name}: no layer {layer} to tap; layers are 0..{self.num_layers - 1}")
        if self._lean is not None:
            positions = torch.arange(ids.shape[1], device=ids.device)[None] if step is None else step.positions
            hidden, tapped = self._lean(ids, positions, step, frozenset(taps), depth)
        else:
            hidden, tapped = self._run_stock(ids, taps, step)
        return hidden, torch.cat([tapped[layer] for layer in taps], dim=-1) if taps else None

    def _run_stock(self, ids: Tensor, taps: tuple[int, ...], step: Step | None) -> tuple[Tensor, dict[int, Tensor]]:
        """The same through the model's own modules, with forward hooks for the taps."""
        for layer in taps:
            if layer not in self._hooked:  # a hook costs every pass a little, so only tapped layers get one
                self.layers[layer].register_forward_hook(self._tap_hook(layer))
                self._hooked.add(layer)
        self._wanted, self._tapped = frozenset(taps), {}
        extra = {} if step is None else {"position_ids": step.positions, "harness_step": step}
        try:
            hidden = self.decoder(input_ids=ids, use_cache=False, **extra).last_hidden_state
            return hidden, self._tapped
        finally:
            self._wanted, self._tapped = frozenset(), {}

    def _find_lean(self) -> LeanDecoder | None:
        try:
            return LeanDecoder(self.decoder, self._embedding)
        except (NotLean, AttributeError) as reason:
            log.info("target %s runs through its own modules: %s", self.name, reason)
            return None

    def _tap_hook(self, index: int):
        def hook(_module: Any, _inputs: Any, output: Any) -> None:
            if index in self._wanted:
                self._tapped[index] = output[0] if isinstance(output, tuple) else output

        return hook

    # -- what a drafter borrows ----------------------------------------------------------------------------------

    def embed(self, ids: Tensor) -> Tensor:  # [...] -> [..., H]
        """Embeddings as the first layer receives them (the module scales where the architecture scales)."""
        return self._embedding(ids)

    def head(self, hidden: Tensor, ids: Tensor | None = None) -> Tensor:  # [..., H] -> [..., V] or [..., len(ids)]
        """Logits of normalised hidden states, soft-capped where the architecture does; gradients flow to `hidden`."""
        weight, bias = self._head.weight, self._head.bias
        if ids is not None:
            if self._narrow is None or self._narrow[0] is not ids:  # one drafter asks for the same rows every time
                self._narrow = (ids, weight[ids], None if bias is None else bias[ids])
            _, weight, bias = self._narrow
        # As rows of one matrix: for a slice, such as the last token of a prompt, torch would copy the weight.
        logits = F.linear(hidden.reshape(-1, hidden.shape[-1]), weight, bias)
        logits = logits.view(*hidden.shape[:-1], len(weight))
        return logits if self._softcap is None else torch.tanh(logits / self._softcap) * self._softcap

    @property
    def binding(self) -> TargetBinding:
        """The embedding and the head, for a drafter."""
        return TargetBinding(self.embed, self.head, self.hidden_size, self.vocab_size)

    @property
    def rope_theta(self) -> float:
        """Base of the rotary positions of the target's full-attention layers, taken over by drafters."""
        parameters = getattr(self.config, "rope_parameters", None) or {}
        parameters = parameters.get("full_attention", parameters)
        theta = parameters.get("rope_theta", getattr(self.config, "rope_theta", None))
        if theta is None:
            raise TargetError(
                f"target {self.name}: its config states no rope_theta, which a drafter takes over; write one into "
                'its config.json ("rope_theta": 10000.0 is usual)'
            )
        return float(theta)

    # -- identity and text ---------------------------------------------------------------------------------------

    @cached_property
    def fingerprint(self) -> str:
        """Hash over architecture and a sample of every weight: two targets that differ anywhere likely differ here.

        One checkpoint has one fingerprint, whatever dtype it is loaded in (samples are rounded to bfloat16) and
        whatever version of transformers loads it (of the config, only what is not a default of every model counts).
        """
        config = self.config.to_diff_dict()
        config = {k: v for k, v in config.items() if k[0] != "_" and k not in ("dtype", "transformers_version")}
        digest = hashlib.sha256(json.dumps(config, sort_keys=True, default=str).encode())
        for name, tensor in sorted(self.model.state_dict().items()):
            flat = tensor.reshape(-1)
            sample = flat[:: max(1, flat.numel() // 64)][:64].to(device="cpu", dtype=torch.bfloat16)
            digest.update(f"{name}{tuple(tensor.shape)}".encode() + sample.view(torch.int16).numpy().tobytes())
        return digest.hexdigest()[:16]

    @property
    def template_hash(self) -> str:
        """Hash of the chat template and the thinking mode; "plain" for a model without a template."""
        template = getattr(self.tokenizer, "chat_template", None)
        if not template:
            return "plain"
        return hashlib.sha256(f"{template}|thinking={self.thinking}".encode()).hexdigest()[:16]

    @property
    def has_template(self) -> bool:
        return bool(getattr(self.tokenizer, "chat_template", None))

    def chat_text(self, messages: list[dict[str, str]]) -> str:
        """A conversation up to the point where the model speaks, as its own chat template writes it."""
        if not self.has_template:
            raise TargetError(f"target {self.name} has no chat template; use plain few-shot prompts")
        extra = {} if self.thinking is None else {"enable_thinking": self.thinking}
        return self.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True, **extra)

    def render(self, messages: list[dict[str, str]]) -> list[int]:
        """Token ids of `chat_text`, which has written its own special tokens."""
        return self.encode(self.chat_text(messages), special=False)

    def encode(self, text: str, special: bool = True) -> list[int]:
        """Token ids of plain text, with the tokenizer's own beginning token unless `special` is False."""
        return self.tokenizer(text, add_special_tokens=special).input_ids

    def decode(self, ids: Sequence[int]) -> str:
        """Text of token ids, special tokens dropped."""
        return self.tokenizer.decode(list(ids), skip_special_tokens=True)

    def _find_stop_ids(self) -> tuple[int, ...]:
        generation = getattr(self.model, "generation_config", None)
        found: set[int] = set()
        for value in (getattr(generation, "eos_token_id", None), getattr(self.tokenizer, "eos_token_id", None)):
            found.update([value] if isinstance(value, int) else value or [])
        outside = [i for i in found if not 0 <= i < self.vocab_size]
        if outside:
            raise TargetError(f"target {self.name}: stop ids {outside} lie outside its vocabulary of {self.vocab_size}")
        return tuple(sorted(found))

    # -- start-up check ------------------------------------------------------------------------------------------

    def self_test(self) -> None:
        """Refuse a target with NaN or infinite weights, one that our cached forward does not reproduce, or one whose
        outputs change after a rollback.  Raises `TargetError`.

        A lean pass that fails is put aside, with a warning, and the model's own modules are tested in its place.
        """
        refuse_nonfinite(self.model, self.name)
        try:
            compare_forwards(self)
        except TargetError as fault:
            if self._lean is None:
                raise
            log.warning("%s: the lean pass is put aside for the model's own modules", fault)
            self._lean = None
            compare_forwards(self)

    def use_our_attention(self, ours: bool) -> None:
        """Run the model with our attention, or exactly as transformers would (which takes a millisecond to switch)."""
        stock = "sdpa" if getattr(self.config, "attn_logit_softcapping", None) is None else "eager"
        self.model.set_attn_implementation(RAGGED if ours else stock)


def _max_positions(config: Any, name: str) -> int:
    positions = getattr(config, "max_position_embeddings", None)
    if positions is None:
        raise TargetError(
            f"target {name}: the config of a {config.model_type} states no max_position_embeddings; write the longest "
            "context it can read into its config.json"
        )
    return int(positions)


def _decoder_layers(decoder: Any, name: str) -> Any:
    layers = getattr(decoder, "layers", None)
    if layers is None:
        raise TargetError(f"target {name}: {type(decoder).__name__} has no .layers to tap; use a decoder-only model")
    return layers
