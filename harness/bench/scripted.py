"""Decoding rounds whose acceptance is scripted: the decoder's own rounds, their outcome replaced.

Target, drafter, both caches, accept rule and commit do all their work on real shapes; what the accept rule counted
is then put aside for what the script says.  It knows rounds and how a block of them begins.  It does not know methods.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor

from harness.accept import Draws
from harness.bench.clock import block
from harness.decode import Clock, Decoder, DecodeSettings, Prompt
from harness.target import Target
from methods.runner import BlockDraftRunner, Phases

#: Rounds at the start of a block that are not timed: rows stand alike there, and no relay has a state.
LEAD = 2


def positions_needed(script: Tensor) -> int:
    """Tokens that the longest row of a script [rounds, B] commits, with the prefill's and one that it never reaches."""
    return int((script + 1).sum(0).max()) + 2


class ScriptedDecoder(Decoder):
    """A decoder that accepts `script` [rounds, B], round by round, from the same prefix each time it is restarted.

    drafter_factory: as a `Decoder`'s, of `BlockDraftRunner`s; None for plain decoding, whose script is all zeros.
    Raises ``ValueError`` for a script that leaves the target's context, or accepts more than is proposed.
    """

    def __init__(
        self,
        target: Target,
        drafter_factory: Callable[[int, int], BlockDraftRunner] | None,
        prefix: Sequence[int],
        script: Tensor,
    ) -> None:
        settings = DecodeSettings(temperature=0.0, seed=0, max_new_tokens=positions_needed(script))
        super().__init__(target, drafter_factory, settings, rows=script.shape[1], shared_prefix=prefix)
        self.prompts = [Prompt(f"row {row}", tuple(prefix)) for row in range(self.rows)]
        self._check(self.prompts)
        self._allocate(len(prefix))
        if int(script.max()) > self.num_proposals:
            raise ValueError(f"a script accepts {int(script.max())} proposals of {self.num_proposals}")
        self._script, self._turn = script.to(target.device), 0
        self.active = {}

    def listen(self, clock: Clock | None) -> None:
        """Who is told of the phases of the rounds from now on; None for nobody."""
        self.clock = clock or Clock()
        if self.drafter is not None:
            self.drafter.phases = clock or Phases()

    def restart(self) -> None:
        """Every row anew at the end of the prefix, and the script at its beginning."""
        self._turn = 0
        self.active = {row: self._prefill(row, row, prompt)[0] for row, prompt in enumerate(self.prompts)}

    def advance(self, rounds: int) -> None:
        """So many rounds of all rows."""
        for _ in range(rounds):
            self._round(self.active)

    def _accept(self, logits: Tensor, tokens: Tensor, q: Tensor | None, draws: Draws) -> tuple[Tensor, Tensor]:
        _, chosen = super()._accept(logits, tokens, q, draws)
        self._turn += 1
        return self._script[self._turn - 1], chosen


def block_ms(decoder: ScriptedDecoder, rounds: int, clock: Clock | None = None) -> float:
    """Milliseconds of a round, over a block of them from the prefix on; one synchronisation at each end.

    clock: listens to the timed rounds, which costs some time itself.
    """
    decoder.listen(None)
    decoder.restart()
    decoder.advance(LEAD)
    decoder.listen(clock)
    return 1e3 * block(lambda: decoder.advance(rounds), 1, decoder.target.device) / rounds
