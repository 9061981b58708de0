"""The dimensions of a target, enough to count its parameters, bytes and operations without loading a weight.

It knows decoder layers of the Llama kind (grouped-query attention, gated feed-forward).  It knows no speed.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from types import SimpleNamespace
from typing import Any


@dataclass(frozen=True)
class Shape:
    """Dimensions under the names that transformers' configurations give them; tied: the head is the embedding."""

    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    tied: bool
    max_position_embeddings: int = 40960
    rms_norm_eps: float = 1e-6
    rope_theta: float = 1e6

    @classmethod
    def of(cls, config: Any) -> Shape:
        """Read a transformers configuration, of several parts the text one.  Raises ``ValueError`` for one that lacks a
        dimension."""
        text = config.get_text_config() if hasattr(config, "get_text_config") else config
        try:
            heads = text.num_attention_heads
            return cls(
                hidden_size=text.hidden_size,
                num_hidden_layers=text.num_hidden_layers,
                num_attention_heads=heads,
                num_key_value_heads=getattr(text, "num_key_value_heads", None) or heads,
                head_dim=getattr(text, "head_dim", None) or text.hidden_size // heads,
                intermediate_size=text.intermediate_size,
                vocab_size=text.vocab_size,
                tied=bool(getattr(config, "tie_word_embeddings", False)),
                max_position_embeddings=text.max_position_embeddings,
            )
        except AttributeError as error:
            raise ValueError(f"the configuration of a {type(config).__name__} states no {error.name}") from error

    @property
    def layer(self) -> int:
        """Weights of one layer's products."""
        attention = 2 * (self.num_attention_heads + self.num_key_value_heads) * self.head_dim * self.hidden_size
        return attention + 3 * self.hidden_size * self.intermediate_size

    @property
    def body(self) -> int:
        """Weights of all layers."""
        return self.num_hidden_layers * self.layer

    @property
    def head(self) -> int:
        """Weights of the language-model head."""
        return self.vocab_size * self.hidden_size

    @property
    def parameters(self) -> int:
        """All weights, norms aside."""
        return self.body + self.head * (1 if self.tied else 2)

    def cache_bytes(self, itemsize: int) -> int:
        """Keys and values of one token."""
        return 2 * self.num_hidden_layers * self.num_key_value_heads * self.head_dim * itemsize

    @property
    def target(self) -> SimpleNamespace:
        """A target of these dimensions, as far as a drafter's configuration asks for one; it is nobody's."""
        unsaid = dict.fromkeys(("name", "source", "fingerprint", "template_hash"), "")
        known = {"hidden_size": self.hidden_size, "rope_theta": self.rope_theta, "revision": None, "thinking": None}
        return SimpleNamespace(config=SimpleNamespace(**asdict(self)), **unsaid, **known)


def _qwen3(hidden: int, layers: int, heads: int, intermediate: int, tied: bool) -> Shape:
    return Shape(hidden, layers, heads, 8, 128, intermediate, 151936, tied)


#: Targets whose configuration need not be fetched to be planned for, by hub id in lower case.
SHAPES = {
    "qwen/qwen3-0.6b": _qwen3(1024, 28, 16, 3072, True),
    "qwen/qwen3-1.7b": _qwen3(2048, 28, 16, 6144, True),
    "qwen/qwen3-4b": _qwen3(2560, 36, 32, 9728, True),
    "qwen/qwen3-8b": _qwen3(4096, 36, 32, 12288, False),
}
