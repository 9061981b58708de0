"""Where a response ends: stop ids, stop strings and the token budget, one rule for every arm.

It is asked before anything is committed, counted or cached, so nothing behind a stop ever becomes part of a sequence.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

# A token may begin or end inside a character or a stop string; this many tokens before the new ones are decoded again.
_CONTEXT_TOKENS = 8


class StopRule:
    """Stop ids, stop strings and a budget of `max_new_tokens`, the prefill's token included."""

    def __init__(
        self,
        stop_ids: Sequence[int],
        stop_strings: Sequence[str],
        max_new_tokens: int,
        decode: Callable[[Sequence[int]], str],
    ) -> None:
        self.stop_ids, self.stop_strings = frozenset(stop_ids), tuple(s for s in stop_strings if s)
        self.max_new_tokens, self.decode = max_new_tokens, decode
        self._reach = max((len(s.encode()) for s in self.stop_strings), default=0) + _CONTEXT_TOKENS

    def first_stop(self, output: Sequence[int], new: Sequence[int]) -> tuple[int, str | None]:
        """How many of `new` may follow `output`, and why it ends there (None: it goes on).

        The token that completes a stop is kept.  Reasons: "stop_id", "stop_string", "budget"; the earliest wins, and
        of two at the same token the id, then the string.
        """
        room = self.max_new_tokens - len(output)
        end, reason = (room, "budget") if room <= len(new) else (len(new), None)
        for index, token in enumerate(new[:end]):
            if token in self.stop_ids:
                end, reason = index + 1, "stop_id"
                break
        if self.stop_strings:
            at = self._string_stop(output, new[:end])
            if at is not None and (at < end or reason != "stop_id"):
                return at, "stop_string"
        return end, reason

    def _string_stop(self, output: Sequence[int], new: Sequence[int]) -> int | None:
        """Number of new tokens up to the one that completes the first stop string."""
        # A token of text is at least one byte of it, so a string reaches back at most as many tokens as it has bytes.
        before = list(output[-self._reach :])
        if not self._contains(before + list(new)):
            return None
        for count in range(1, len(new) + 1):
            if self._contains(before + list(new[:count])):
                return count
        return None

    def _contains(self, ids: Sequence[int]) -> bool:
        text = self.decode(ids)
        return any(stop in text for stop in self.stop_strings)


def trim(text: str, stop_strings: Sequence[str]) -> str:
    """`text` before the first stop string; empty ones stop nothing."""
    cuts = [text.find(stop) for stop in stop_strings if stop]
    return text[: min((at for at in cuts if at >= 0), default=len(text))]
