"""How a relayed state bends the mask embedding: ``out = base + (offset + scale) * N(states) + shift`` (DFlow, eq. 5).

Knows one norm and one affine map per row; knows neither the gate that made `scale` and `shift` nor where a state came
from.  N is LayerNorm with `weight` and `bias` (the paper), or RMSNorm with `weight`, plus `bias`.  ``offset`` 0 is the
paper's plain beta, 1 is AdaLN.  A dead row is `base` itself.

Shapes: ``N`` rows (the product of all leading axes), ``H`` width.

With c = offset + scale, g the gradient of one live row of out, n = (x - mean(x)) * r, r = rsqrt(var(x) + eps) (RMSNorm:
the same with a mean of zero) and q = g*c*w::

    d states = r * (q - mean(q) - n * mean(q*n))  without mean(q) in RMSNorm
    d scale  = g * (n*w + b)                      d shift = g
    d weight = sum over live rows of g*c*n        d bias  = sum over live rows of g*c
    d base   = sum of g over all rows
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


def relay_film(
    states: Tensor,
    live: Tensor,
    weight: Tensor,
    bias: Tensor,
    scale: Tensor,
    shift: Tensor,
    base: Tensor,
    eps: float,
    *,
    layer_norm: bool = True,
    offset: float = 0.0,
    impl: Impl = "auto",
) -> Tensor:
    """Input embeddings of the slots: `base` modulated by the normed state where live, `base` bit for bit elsewhere.

    states: [..., H]; live: [...] bool.  Dead rows of states, scale and shift may hold anything, NaN included.
    weight, bias: [H], of the norm.
    scale, shift: [..., H], beta and gamma; halves of one projection need no copy.
    base: [H], the mask embedding.
    Returns [..., H] in the dtype of `states`, computed in float32 (float64 if `states` is) and rounded once.
    Differentiable in every floating argument, once; dead rows get gradients of exactly zero.
    """
    width = dispatch.require_rows("states", states)
    dispatch.require("live", live, states.shape[:-1], torch.bool, "states", states.device)
    for name, value in (("weight", weight), ("bias", bias), ("base", base)):
        dispatch.require(name, value, (width,), states.dtype, "states", states.device)
    for name, value in (("scale", scale), ("shift", shift)):
        dispatch.require(name, value, states.shape, states.dtype, "states", states.device)
    dispatch.require_eps(eps)
    run = _film if dispatch.use_triton(impl, states.device) else relay_film_reference
    return run(states, live, weight, bias, scale, shift, base, eps, layer_norm, offset)


def relay_film_reference(
    states: Tensor,
    live: Tensor,
    weight: Tensor,
    bias: Tensor,
    scale: Tensor,
    shift: Tensor,
    base: Tensor,
    eps: float,
    layer_norm: bool = True,
    offset: float = 0.0,
) -> Tensor:
    """`relay_film` in plain torch, on any device; states, scale, shift [..., H], live [...], the others [H]."""
    work, width = accumulator(states.dtype), states.shape[-1:]
    keep = live[..., None]
    # Emptied before the formula, not only after it: its gradient would multiply a dead row's NaN by zero.
    x, beta, gamma = (torch.where(keep, value, 0.0).to(work) for value in (states, scale, shift))
    weight, bias, plain = weight.to(work), bias.to(work), base.to(work)
    if layer_norm:
        normed = F.layer_norm(x, width, weight, bias, eps)
    else:
        normed = F.rms_norm(x, width, weight, eps) + bias
    return torch.where(keep, plain + (offset + beta) * normed + gamma, plain).to(states.dtype)


@Kernel
def film_forward_kernel(
    states,
    live,
    weight,
    bias,
    scale,
    shift,
    base,
    out,
    states_stride,
    scale_stride,
    shift_stride,
    EPS: tl.constexpr,
    LAYER_NORM: tl.constexpr,
    OFFSET: tl.constexpr,
    H: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One row: states, scale, shift [N, H] by stride, live [N], weight, bias, base [H] -> out [N, H]."""
    ACC: tl.constexpr = tl.float64 if states.dtype.element_ty == tl.float64 else tl.float32
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    inside = columns < H
    plain = tl.load(base + columns, mask=inside, other=0.0)
    if tl.load(live + row):
        x = tl.load(states + row * states_stride + columns, mask=inside, other=0.0).to(ACC)
        beta = tl.load(scale + row * scale_stride + columns, mask=inside, other=0.0).to(ACC)
        gamma = tl.load(shift + row * shift_stride + columns, mask=inside, other=0.0).to(ACC)
        w = tl.load(weight + columns, mask=inside, other=0.0).to(ACC)
        b = tl.load(bias + columns, mask=inside, other=0.0).to(ACC)
        if LAYER_NORM:
            # The variance of the centred row, in a second pass over registers: E[x^2] - E[x]^2 would cancel.
            x = tl.where(inside, x - tl.sum(x, axis=0) / H, 0.0)
        normed = x * tl.rsqrt(tl.sum(x * x, axis=0) / H + EPS) * w + b
        tl.store(out + row * H + columns, plain.to(ACC) + (OFFSET + beta) * normed + gamma, mask=inside)
    else:
        tl.store(out + row * H + columns, plain, mask=inside)


@Kernel
def film_backward_kernel(
    grad,
    states,
    live,
    weight,
    bias,
    scale,
    states_grad,
    weight_grad,
    bias_grad,
    scale_grad,
    shift_grad,
    grad_stride,
    states_stride,
    scale_stride,
    N,
    rows,
    EPS: tl.constexpr,
    LAYER_NORM: tl.constexpr,
    OFFSET: tl.constexpr,
    H: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """`rows` rows of grad [N, H] -> the same rows of states_grad, scale_grad, shift_grad [N, H], and this program's
    row of weight_grad, bias_grad [programs, H].  A gradient given as None is not computed."""
    ACC: tl.constexpr = tl.float64 if states.dtype.element_ty == tl.float64 else tl.float32
    program = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    inside = columns < H
    w = tl.load(weight + columns, mask=inside, other=0.0).to(ACC)
    b = tl.load(bias + columns, mask=inside, other=0.0).to(ACC)
    w_grad = tl.zeros([BLOCK], ACC)
    b_grad = tl.zeros([BLOCK], ACC)
    row = program * rows
    last = tl.minimum(row + rows, N)
    # Not a range: with numpy 2.4 the interpreter of Triton 3.6 cannot count to a bound that is a tensor.
    while row < last:
        x_grad = tl.zeros([BLOCK], ACC)
        beta_grad = tl.zeros([BLOCK], ACC)
        gamma_grad = tl.zeros([BLOCK], ACC)
        if tl.load(live + row):
            g = tl.load(grad + row * grad_stride + columns, mask=inside, other=0.0).to(ACC)
            x = tl.load(states + row * states_stride + columns, mask=inside, other=0.0).to(ACC)
            beta = tl.load(scale + row * scale_stride + columns, mask=inside, other=0.0).to(ACC)
            if LAYER_NORM:
                x = tl.where(inside, x - tl.sum(x, axis=0) / H, 0.0)
            r = tl.rsqrt(tl.sum(x * x, axis=0) / H + EPS)
            n = x * r
            gc = g * (OFFSET + beta)
            q = gc * w
            x_grad = q - n * (tl.sum(q * n, axis=0) / H)
            if LAYER_NORM:
                x_grad -= tl.sum(q, axis=0) / H
            x_grad *= r
            beta_grad = g * (n * w + b)
            gamma_grad = g
            w_grad += gc * n
            b_grad += gc
        if states_grad is not None:
            tl.store(states_grad + row * H + columns, x_grad, mask=inside)
        if scale_grad is not None:
            tl.store(scale_grad + row * H + columns, beta_grad, mask=inside)
        if shift_grad is not None:
            tl.store(shift_grad + row * H + columns, gamma_grad, mask=inside)
        row += 1
    if weight_grad is not None:
        tl.store(weight_grad + program * H + columns, w_grad, mask=inside)
    if bias_grad is not None:
        tl.store(bias_grad + program * H + columns, b_grad, mask=inside)


@torch.library.custom_op(
    "blockdraft::relay_film",
    mutates_args=(),
    schema="(Tensor states, Tensor live, Tensor weight, Tensor bias, Tensor scale, Tensor shift, Tensor base, "
    "float eps, bool layer_norm, float offset) -> Tensor",
)
def _film(states, live, weight, bias, scale, shift, base, eps, layer_norm, offset) -> Tensor:
    """Shapes and result as of `relay_film`."""
    width, device = states.shape[-1], states.device
    out = torch.empty(states.shape, dtype=states.dtype, device=device)
    states, scale, shift = (as_rows(value, width) for value in (states, scale, shift))
    film_forward_kernel.launch(
        len(states),
        device,
        width,
        states=states,
        live=live.contiguous(),
        weight=weight.contiguous(),
        bias=bias.contiguous(),
        scale=scale,
        shift=shift,
        base=base.contiguous(),
        out=out,
        states_stride=states.stride(0),
        scale_stride=scale.stride(0),
        shift_stride=shift.stride(0),
        EPS=eps,
        LAYER_NORM=layer_norm,
        OFFSET=offset,
    )
    return out


@torch.library.custom_op(
    "blockdraft::relay_film_backward",
    mutates_args=(),
    schema="(Tensor grad, Tensor states, Tensor live, Tensor weight, Tensor bias, Tensor scale, float eps, "
    "bool layer_norm, float offset, bool[] needs) -> Tensor[]",
)
def _film_backward(grad, states, live, weight, bias, scale, eps, layer_norm, offset, needs) -> list[Tensor]:
    """grad [..., H] -> those gradients of states, weight, bias, scale and shift that `needs` asks for."""
    shape, dtype, device = states.shape, states.dtype, states.device
    width = shape[-1]
    grad, states, scale = (as_rows(value, width) for value in (grad, states, scale))
    rows, programs = dispatch.shares(len(states))

    def room(needed: bool, reduced: bool) -> Tensor | None:
        if not needed:
            return None
        size, kind = ((programs, width), accumulator(dtype)) if reduced else (shape, dtype)
        return torch.empty(size, dtype=kind, device=device)

    found = [room(needed, i in (1, 2)) for i, needed in enumerate(needs)]
    names = ("states_grad", "weight_grad", "bias_grad", "scale_grad", "shift_grad")
    film_backward_kernel.launch(
        programs,
        device,
        width,
        grad=grad,
        states=states,
        live=live.contiguous(),
        weight=weight.contiguous(),
        bias=bias.contiguous(),
        scale=scale,
        **dict(zip(names, found, strict=True)),
        grad_stride=grad.stride(0),
        states_stride=states.stride(0),
        scale_stride=scale.stride(0),
        N=len(states),
        rows=rows,
        EPS=eps,
        LAYER_NORM=layer_norm,
        OFFSET=offset,
    )
    for i in (1, 2):
        if needs[i]:
            found[i] = found[i].sum(0).to(dtype)
    return [value for value in found if value is not None]


@_film.register_fake
def _(states, live, weight, bias, scale, shift, base, eps, layer_norm, offset):
    return states.new_empty(states.shape)


@_film_backward.register_fake
def _(grad, states, live, weight, bias, scale, eps, layer_norm, offset, needs):
    likes = (states, weight, bias, scale, scale)
    return [like.new_empty(like.shape) for like, needed in zip(likes, needs, strict=True) if needed]


def _save(ctx, inputs, output) -> None:
    states, live, weight, bias, scale, _, _, ctx.eps, ctx.layer_norm, ctx.offset = inputs
    ctx.save_for_backward(states, live, weight, bias, scale)


def _backward(ctx, grad: Tensor) -> tuple[Tensor | None, ...]:
    states, _, weight, bias, scale, shift, base = ctx.needs_input_grad[:7]
    needs = [states, weight, bias, scale, shift]
    settings = (ctx.eps, ctx.layer_norm, ctx.offset)
    found = iter(_film_backward(grad, *ctx.saved_tensors, *settings, needs) if any(needs) else ())
    states, weight, bias, scale, shift = (next(found) if needed else None for needed in needs)
    # Dead rows are `base` too, so every row counts, and no kernel is needed for a plain sum.
    rows = grad.reshape(-1, grad.shape[-1])
    base = rows.sum(0, dtype=accumulator(grad.dtype)).to(grad.dtype) if base else None
    return states, None, weight, bias, scale, shift, base, None, None, None


_film.register_autograd(_backward, setup_context=_save)
