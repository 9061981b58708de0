"""Which verify rows are relayed, and their norm: ``states = RMSNorm(src[index]) * weight`` (DFlow, equation 1).

Knows rows and where each goes; knows no block, no position and no target.  ``h`` of equation 4 is its result: `src`
are the projected taps of the verify rows, `index` what `BlockLayout.relay_rows` says, -1 where nothing is relayed.

Shapes: ``R`` rows of `src`, ``N`` entries of `index` (the product of its axes), ``H`` width.

With n = x * r, r = rsqrt(mean(x^2) + eps) of one row x of `src`, and G the sum of the gradients of all entries that
took this row, in the order in which they stand in `index`::

    d src    = r * (G*w - n * mean(G*w*n))        one row at a time: no atomics, the same bits at every run
    d weight = sum over rows of G*n
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from methods.kernels import dispatch
from methods.kernels.dispatch import Impl, Kernel, accumulator, as_rows

if TYPE_CHECKING:
    import triton.language as tl


def relay_gather(src: Tensor, index: Tensor, weight: Tensor, eps: float, *, impl: Impl = "auto") -> Tensor:
    """RMSNorm of the rows of `src` that `index` names; exact zeros where it names none.

    src: [R, H], the candidates; a row that `index` does not name may hold anything, NaN included.
    index: [...] int64, -1 (or any negative) where dead.  An entry of R or more is an IndexError in the reference on
        the CPU; a kernel, which cannot raise, writes a row of NaN for it.
    weight: [H], of the norm.
    Returns [..., H] in the dtype of `src`, computed in float32 (float64 if `src` is) and rounded once.
    Differentiable in `src` and `weight`, once.
    """
    width = dispatch.require_rows("src", src, axes=2)
    dispatch.require("index", index, index.shape, torch.int64, "src", src.device)
    dispatch.require("weight", weight, (width,), src.dtype, "src", src.device)
    dispatch.require_eps(eps)
    if dispatch.use_triton(impl, src.device):
        return _gather(src, index, weight, eps)
    return relay_gather_reference(src, index, weight, eps)


def relay_gather_reference(src: Tensor, index: Tensor, weight: Tensor, eps: float) -> Tensor:
    """`relay_gather` in plain torch, on any device; src [R, H], index [...] int64, weight [H]."""
    work = accumulator(src.dtype)
    # Dead entries look up a row of zeros put in front: with a row of `src`, its NaN would reach the gradients.
    rows = F.embedding((index + 1).clamp(min=0), F.pad(src.to(work), (0, 0, 1, 0)))
    normed = F.rms_norm(rows, (src.shape[1],), weight.to(work), eps)
    return torch.where((index >= 0)[..., None], normed, 0.0).to(src.dtype)


@Kernel
def gather_forward_kernel(
    src, index, weight, states, src_stride, R, EPS: tl.constexpr, H: tl.constexpr, BLOCK: tl.constexpr
):
    """One entry: src [R, H] by stride, index [N], weight [H] -> states [N, H]."""
    ACC: tl.constexpr = tl.float64 if src.dtype.element_ty == tl.float64 else tl.float32
    entry = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    inside = columns < H
    out = states + entry * H + columns
    row = tl.load(index + entry)
    if row < 0:
        tl.store(out, tl.zeros([BLOCK], ACC), mask=inside)
    elif row >= R:
        # Nothing may be read there, and a kernel cannot raise: what cannot be overlooked is written instead.
        tl.store(out, tl.full([BLOCK], float("nan"), ACC), mask=inside)
    else:
        x = tl.load(src + row * src_stride + columns, mask=inside, other=0.0).to(ACC)
        w = tl.load(weight + columns, mask=inside, other=0.0).to(ACC)
        tl.store(out, x * tl.rsqrt(tl.sum(x * x, axis=0) / H + EPS) * w, mask=inside)


@Kernel
def gather_backward_kernel(
    grad,
    order,
    starts,
    src,
    weight,
    src_grad,
    weight_grad,
    grad_stride,
    src_stride,
    R,
    rows,
    EPS: tl.constexpr,
    H: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """`rows` rows of src [R, H]: grad [N, H] -> src_grad [R, H] and this program's row of weight_grad [programs, H].

    order [N] sorts the entries by the row they took; those of row j are ``order[starts[j] : starts[j+1]]``.  Of
    src_grad and weight_grad, None is not computed.
    """
    ACC: tl.constexpr = tl.float64 if src.dtype.element_ty == tl.float64 else tl.float32
    program = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    inside = columns < H
    w = tl.load(weight + columns, mask=inside, other=0.0).to(ACC)
    w_grad = tl.zeros([BLOCK], ACC)
    row = program * rows
    last = tl.minimum(row + rows, R)
    # Not a range: with numpy 2.4 the interpreter of Triton 3.6 cannot count to a bound that is a tensor.
    while row < last:
        place = tl.load(starts + row)
        end = tl.load(starts + row + 1)
        taken = place < end
        total = tl.zeros([BLOCK], ACC)
        while place < end:
            entry = tl.load(order + place)
            total += tl.load(grad + entry * grad_stride + columns, mask=inside, other=0.0).to(ACC)
            place += 1
        x_grad = tl.zeros([BLOCK], ACC)
        # A row that nothing took is not even read: it may hold NaN, which a product with zero would keep.
        if taken:
            x = tl.load(src + row * src_stride + columns, mask=inside, other=0.0).to(ACC)
            r = tl.rsqrt(tl.sum(x * x, axis=0) / H + EPS)
            n = x * r
            q = total * w
            x_grad = r * (q - n * (tl.sum(q * n, axis=0) / H))
            w_grad += total * n
        if src_grad is not None:
            tl.store(src_grad + row * H + columns, x_grad, mask=inside)
        row += 1
    if weight_grad is not None:
        tl.store(weight_grad + program * H + columns, w_grad, mask=inside)


@torch.library.custom_op(
    "blockdraft::relay_gather", mutates_args=(), schema="(Tensor src, Tensor index, Tensor weight, float eps) -> Tensor"
)
def _gather(src: Tensor, index: Tensor, weight: Tensor, eps: float) -> Tensor:  # [R, H], [...], [H] -> [..., H]
    height, width = src.shape
    states = torch.empty((*index.shape, width), dtype=src.dtype, device=src.device)
    src = as_rows(src, width)
    gather_forward_kernel.launch(
        index.numel(),
        src.device,
        width,
        src=src,
        index=index.contiguous(),
        weight=weight.contiguous(),
        states=states,
        src_stride=src.stride(0),
        R=height,
        EPS=eps,
    )
    return states


@torch.library.custom_op(
    "blockdraft::relay_gather_backward",
    mutates_args=(),
    schema="(Tensor grad, Tensor src, Tensor index, Tensor weight, float eps, bool[] needs) -> Tensor[]",
)
def _gather_backward(
    grad: Tensor, src: Tensor, index: Tensor, weight: Tensor, eps: float, needs: list[bool]
) -> list[Tensor]:
    """grad [..., H] -> gradients of src [R, H] and weight [H], only those that `needs` asks for."""
    height, width = src.shape
    src, grad = as_rows(src, width), as_rows(grad, width)
    # Stable: entries that took the same row stay in the order of `index`, and so are summed in it.
    taken, order = torch.sort(index.reshape(-1), stable=True)
    starts = torch.searchsorted(taken, torch.arange(height + 1, device=src.device))
    rows, programs = dispatch.shares(height)
    src_grad = torch.empty((height, width), dtype=src.dtype, device=src.device) if needs[0] else None
    partial = torch.empty((programs, width), dtype=accumulator(src.dtype), device=src.device) if needs[1] else None
    gather_backward_kernel.launch(
        programs,
        src.device,
        width,
        grad=grad,
        order=order,
        starts=starts,
        src=src,
        weight=weight.contiguous(),
        src_grad=src_grad,
        weight_grad=partial,
        grad_stride=grad.stride(0),
        src_stride=src.stride(0),
        R=height,
        rows=rows,
        EPS=eps,
    )
    found = [src_grad, None if partial is None else partial.sum(0).to(weight.dtype)]
    return [value for value in found if value is not None]


@_gather.register_fake
def _(src, index, weight, eps):
    return src.new_empty((*index.shape, src.shape[1]))


@_gather_backward.register_fake
def _(grad, src, index, weight, eps, needs):
    return [like.new_empty(like.shape) for like, needed in zip((src, weight), needs, strict=True) if needed]


def _save(ctx, inputs, output) -> None:
    src, index, weight, ctx.eps = inputs
    ctx.save_for_backward(src, index, weight)


def _backward(ctx, grad: Tensor) -> tuple[Tensor | None, ...]:
    needs = [ctx.needs_input_grad[0], ctx.needs_input_grad[2]]
    found = iter(_gather_backward(grad, *ctx.saved_tensors, ctx.eps, needs))
    src_grad, weight_grad = (next(found) if needed else None for needed in needs)
    return src_grad, None, weight_grad, None


_gather.register_autograd(_backward, setup_context=_save)
