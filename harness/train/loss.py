"""Head and loss of one round, in chunks, and what is counted along the way.

It knows labels, weights and additive counts; it does not know where hidden states come from or what follows a
round.

A vocabulary of 262,144 makes a megabyte of logits per label.  So the hidden states are cut at a detached
leaf: each chunk of blocks runs the head, its loss and its backward pass to the end before the next one
starts, only the gradient of the hidden states is kept, and one backward pass through the backbone follows.
No logits outlive their chunk and none are computed twice, which checkpointing would do.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from harness.train.anchors import Blocks, block_tokens, labels
from methods.drafter import BlockDrafter
from methods.objectives import Decay


@dataclass
class Tally:
    """Additive sums over blocks: add those of steps, batches or machines, divide once at the end.

    weighted, weight: sum of w*CE and of w.  hits, counted: [L] right argmaxes and labels, by distance from the anchor.
    committed, blocks: sum of min(leading run + 1, tokens left) over blocks, and their number.
    base_hits, base_committed: the same of a sequential head's base branch alone; 0 where there is none.
    """

    weighted: Tensor
    weight: Tensor
    hits: Tensor
    counted: Tensor
    committed: Tensor
    blocks: Tensor
    base_hits: Tensor
    base_committed: Tensor

    @classmethod
    def zero(cls, labels: int, device: torch.device | str = "cpu") -> Tally:
        scalar = torch.zeros((), dtype=torch.float64, device=device)
        vector = torch.zeros(labels, dtype=torch.float64, device=device)
        return cls(scalar, scalar, vector, vector, scalar, scalar, vector, scalar)

    def __add__(self, other: Tally) -> Tally:
        return Tally(*(a + b for a, b in zip(self.tensors(), other.tensors(), strict=True)))

    def tensors(self) -> tuple[Tensor, ...]:
        return tuple(vars(self).values())

    def cpu(self) -> Tally:
        return Tally(*(t.cpu() for t in self.tensors()))

    @property
    def loss(self) -> float:
        """Weighted mean cross-entropy, nats."""
        return float(self.weighted / self.weight) if self.weight else float("nan")

    @property
    def accepted(self) -> float:
        """Mean committed tokens a block."""
        return float(self.committed / self.blocks) if self.blocks else float("nan")

    @property
    def base_accepted(self) -> float:
        """Mean committed tokens a block if the base branch drafted alone; 0 where there is none."""
        return float(self.base_committed / self.blocks) if self.blocks else float("nan")

    @property
    def accuracy(self) -> list[float]:
        """Share of right argmaxes at distance 1, 2, ... from the anchor."""
        return (self.hits / self.counted).tolist()


def block_loss(
    drafter: BlockDrafter,
    hidden: Tensor,  # [B, N, block, H], with gradient history if `backward`
    ids: Tensor,  # [B, S]
    lengths: Tensor,  # [B]
    blocks: Blocks,
    objective: Decay,
    chunk: int,
    *,
    progress: float = 0.0,
    backward: bool = True,
) -> Tally:
    """Loss ``sum(w * CE) / sum(w)`` of one round; with `backward` its gradients are added to whatever made `hidden`.

    w: the objective's weight of a label, 0 past the response, for padding blocks, and for labels outside the
    draft vocabulary.  chunk: label positions whose logits exist at one time.  progress: 0..1 through training.
    """
    true, valid = labels(ids, lengths, blocks, drafter.layout)
    true, valid = true.flatten(0, 1), valid.flatten(0, 1)
    rows = blocks.keep.flatten().nonzero()[:, 0]  # padding blocks never reach the head
    tokens = block_tokens(ids, blocks, drafter.layout.block_size).flatten(0, 1)
    left = (lengths[:, None] - 1 - blocks.anchors).flatten()
    flat = hidden.flatten(0, 1)
    leaf = flat.detach()
    gradient = torch.zeros_like(leaf) if backward else None
    trained = [p for p in drafter.head.parameters() if p.requires_grad] if backward else []
    # Chunk by chunk in the parameter's own bfloat16, late chunks would fall below half a unit of the sum.
    sums = [torch.zeros_like(p, dtype=torch.promote_types(p.dtype, torch.float32)) for p in trained]
    tally = Tally.zero(true.shape[1], hidden.device)
    share = drafter.head.base_share(progress)
    for part in rows.split(max(1, chunk // true.shape[1])):
        piece = leaf[part].requires_grad_(backward)
        with torch.set_grad_enabled(backward):
            total, counts = _chunk(drafter, piece, tokens[part], true[part], valid[part], left[part], objective, share)
        tally = tally + counts
        if backward:
            got = torch.autograd.grad(total, [piece, *trained], allow_unused=True)
            gradient[part] = got[0]
            for sum_, g in zip(sums, got[1:], strict=True):
                if g is not None:
                    sum_ += g
    if backward:
        # The weights may depend on the losses (D-PACE), so their sum is known only now.  It stays a number: as a tensor
        # of the gradient's dtype it would lose all but eight of its bits in bfloat16.
        scale = 1 / max(float(tally.weight), torch.finfo(torch.float32).tiny)
        flat.backward(gradient * scale)
        for parameter, sum_ in zip(trained, sums, strict=True):
            made = (sum_ * scale).to(parameter.dtype)
            parameter.grad = made if parameter.grad is None else parameter.grad + made
    return tally


def _chunk(
    drafter: BlockDrafter,
    hidden: Tensor,  # [M, block, H]
    tokens: Tensor,  # [M, block]
    true: Tensor,  # [M, L] target ids
    valid: Tensor,  # [M, L]
    left: Tensor,  # [M] tokens after the anchor
    objective: Decay,
    share: float,
) -> tuple[Tensor, Tally]:
    """Sum of w*CE of some blocks (differentiable), and their counts."""
    final, base = drafter.train_logits(hidden, tokens)
    index = drafter.labels(true)
    losses = _cross_entropy(final, index)
    with torch.no_grad():
        hits = (final.argmax(-1) == index) & valid
        offsets = drafter.layout.label_offsets(hidden.device)
        weights = objective.weights(offsets, losses.detach(), hits) * (valid & (index >= 0))
        weights = weights.to(losses.dtype)
        committed = _committed(hits, left, drafter.layout.num_proposals)
        base_hits = torch.zeros_like(hits) if base is None else (base.argmax(-1) == index) & valid
        base_committed = _committed(base_hits, left, drafter.layout.num_proposals)
        counts = Tally(
            (weights * losses.detach()).sum(dtype=torch.float64),
            weights.sum(dtype=torch.float64),
            hits.sum(0, dtype=torch.float64),
            valid.sum(0, dtype=torch.float64),
            committed,
            torch.tensor(float(len(hidden)), dtype=torch.float64, device=hidden.device),
            base_hits.sum(0, dtype=torch.float64),
            torch.zeros_like(committed) if base is None else base_committed,
        )
    if base is not None and share:
        losses = (1 - share) * losses + share * _cross_entropy(base, index)
    return (weights * losses).sum(), counts


def _committed(hits: Tensor, left: Tensor, proposals: int) -> Tensor:  # [M, L], [M] -> []
    """Tokens that blocks with these hits would commit: the leading run and one more, as far as the text goes."""
    run = hits[:, :proposals].cumprod(1).sum(1)
    return torch.minimum(run + 1, left).sum(dtype=torch.float64)


def _cross_entropy(logits: Tensor, index: Tensor) -> Tensor:  # [M, L, V], [M, L] -> [M, L]
    """Per label, in float32 at least; 0 where the label is outside the vocabulary (index -1)."""
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return F.cross_entropy(wide.flatten(0, 1), index.flatten(), ignore_index=-1, reduction="none").view_as(index)
