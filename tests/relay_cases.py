"""Cases for the tests of the relay kernels: tensors of every width, count and liveness, and what counts as equal."""

import pytest
import torch

from methods.kernels import relay_film, relay_gather
from tests.conftest import HAS_GPU

DEVICE = "cuda" if HAS_GPU else "cpu"
#: Large for a norm: an epsilon that is forgotten or rounded shows, and rows of width 1 stay well conditioned.
EPS = 1e-3
CASES = ((1, "all"), (1, "none"), (15, "none"), (15, "all"), (33, "mixed"))
#: Too slow for the interpreter.
DEVICE_WIDTHS = [pytest.param(width, marks=pytest.mark.gpu) for width in (1024, 2560, 4096, 8192)]
DEVICE_CASES = ((15, "mixed"), (15, "all"), (1500, "mixed"), (1500, "mixed"))
DTYPES = (torch.float32, torch.bfloat16, torch.float64)
NORMS = ((True, 0.0), (False, 1.0), (True, 1.0), (False, 0.0))
IMPLS = pytest.mark.parametrize("impl", ["triton", "reference"])
#: Bits of a significand: results in 16 bits may differ by one unit in its last place, others by the noise of a sum.
BITS = {torch.bfloat16: 8, torch.float16: 11}
NOISE = {torch.float64: 1e-13}


def assert_close(name, got, exact, dtype):
    """`got` in `dtype` against `exact` in float64."""
    assert got.shape == exact.shape and got.dtype == dtype and exact.dtype == torch.float64, name
    allowed = torch.full_like(exact, NOISE.get(dtype, 5e-6)) * exact.abs().max().clamp(min=1)
    if dtype in BITS:
        allowed += torch.ldexp(torch.ones_like(exact), torch.frexp(exact).exponent - BITS[dtype])
    error = (got.double() - exact).abs()
    # A comparison that NaN fails.
    assert bool((error <= allowed).all()), f"{name}: off by {error.max().item():.2e} of {exact.abs().max().item():.2e}"


def draws(seed, dtype, device):
    generator = torch.Generator().manual_seed(seed)
    return lambda *shape: torch.randn(*shape, generator=generator, dtype=torch.float64).to(device, dtype)


def liveness(kind, count):
    return torch.arange(count) % 3 != 1 if kind == "mixed" else torch.full((count,), kind == "all")


def gather_case(width, count, kind, dtype, *, seed=0, device=DEVICE):
    """src, index, weight; and the gradient of the result.  `index` repeats rows and leaves some unused."""
    draw, rows = draws(seed, dtype, device), count // 2 + 2
    index = (torch.arange(count) * 7 // 2 % max(rows - 2, 1)).masked_fill(~liveness(kind, count), -1)
    return (draw(rows, width), index.to(device), draw(width)), draw(count, width)


def film_case(width, count, kind, dtype, *, seed=0, device=DEVICE):
    """All tensors of `relay_film`, and the gradient of the result; scale and shift are halves of one projection."""
    draw, live = draws(seed, dtype, device), liveness(kind, count).to(device)
    scale, shift = draw(count, 2 * width).chunk(2, -1)
    return (draw(count, width), live, draw(width), draw(width), scale, shift, draw(width)), draw(count, width)


def gathering(impl="triton"):
    return lambda src, index, weight: relay_gather(src, index, weight, EPS, impl=impl)


def filming(impl="triton", layer_norm=True, offset=0.0):
    return lambda *tensors: relay_film(*tensors, EPS, layer_norm=layer_norm, offset=offset, impl=impl)


GATHER = ("states", "d src", "d weight")
FILM = ("out", "d states", "d weight", "d bias", "d scale", "d shift", "d base")
OPERATIONS = ((GATHER, gather_case, gathering), (FILM, film_case, filming))


def leaves(tensors):
    return [value.detach().requires_grad_(value.is_floating_point()) for value in tensors]


def evaluate(function, tensors, grad):
    """The result of `function` on `tensors`, and the gradients of all floating ones."""
    tensors = leaves(tensors)
    out = function(*tensors)
    return [out.detach(), *torch.autograd.grad(out, [value for value in tensors if value.requires_grad], grad)]


def compare(names, kernel, reference, case, dtype):
    """Values and gradients of `kernel` in `dtype` against `reference` in float64, which rounds nothing in between."""
    tensors, grad = case
    double = [value.double() if value.is_floating_point() else value for value in tensors]
    got, exact = evaluate(kernel, tensors, grad), evaluate(reference, double, grad.double())
    for name, one, other in zip(names, got, exact, strict=True):
        assert_close(name, one, other, dtype)


def assert_equal(names, found, wanted):
    for name, one, other in zip(names, found, wanted, strict=True):
        assert torch.equal(one, other), name
