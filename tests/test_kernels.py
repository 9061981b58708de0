"""The relay kernels equal their torch references, in values and in every gradient, and touch nothing that is dead.

Without a GPU the kernels run in Triton's interpreter (tests/conftest.py asks for it); with one, everything here runs
compiled, and the cases marked `gpu` add sizes that the interpreter is too slow for.
"""

import sys

import pytest
import torch
import torch.nn.functional as F

from methods.kernels import dispatch, film, gather, relay_film, relay_gather
from tests.conftest import HAS_GPU
from tests.relay_cases import (
    CASES,
    DEVICE,
    DEVICE_CASES,
    DEVICE_WIDTHS,
    DTYPES,
    EPS,
    FILM,
    GATHER,
    IMPLS,
    NORMS,
    OPERATIONS,
    assert_close,
    assert_equal,
    compare,
    evaluate,
    film_case,
    filming,
    gather_case,
    gathering,
    leaves,
)

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="Triton is built for Linux")


@pytest.fixture
def poisoned(monkeypatch):
    """Memory of results is born as NaN, so that a cell which no kernel writes cannot pass for a right one."""
    empty = torch.empty

    def born_nan(*args, **kwargs):
        made = empty(*args, **kwargs)
        return made.fill_(float("nan")) if made.is_floating_point() else made

    monkeypatch.setattr(torch, "empty", born_nan)


# -- against the references


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [1, 7, 64, 100, 513, *DEVICE_WIDTHS])
def test_values_and_gradients_equal_the_reference(width, dtype, poisoned, monkeypatch):
    # Fewer than the rows of the last cases, each of which then takes several turns of a program.
    monkeypatch.setattr(dispatch, "REDUCERS", 16)
    for place, (count, kind) in enumerate(CASES if width < 1024 else DEVICE_CASES):
        case = gather_case(width, count, kind, dtype)
        compare(GATHER, gathering(), gathering("reference"), case, dtype)
        case, norm = film_case(width, count, kind, dtype), NORMS[place % 2]
        compare(FILM, filming("triton", *norm), filming("reference", *norm), case, dtype)


@pytest.mark.parametrize("norm", NORMS)
def test_every_norm_and_offset_equals_the_reference_in_half_precision_too(norm, poisoned):
    for dtype in (torch.float16, *DTYPES):
        case = film_case(24, 9, "mixed", dtype, seed=1)
        compare(FILM, filming("triton", *norm), filming("reference", *norm), case, dtype)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_the_references_round_once(dtype):
    compare(GATHER, *[gathering("reference")] * 2, gather_case(64, 15, "mixed", dtype), dtype)
    for norm in NORMS:
        compare(FILM, *[filming("reference", *norm)] * 2, film_case(64, 15, "mixed", dtype), dtype)


@IMPLS
def test_film_is_the_formula_of_the_paper(impl):
    tensors, _ = film_case(12, 6, "all", torch.float64)
    states, _, weight, bias, scale, shift, base = tensors
    n = (states - states.mean(-1, keepdim=True)) / (states.var(-1, unbiased=False, keepdim=True) + EPS).sqrt()
    want = base + scale * (n * weight + bias) + shift
    assert_close("paper", filming(impl)(*tensors), want, torch.float64)
    n = states / (states.square().mean(-1, keepdim=True) + EPS).sqrt()
    want = base + (1 + scale) * (n * weight + bias) + shift
    assert_close("adaln", filming(impl, False, 1.0)(*tensors), want, torch.float64)


@IMPLS
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_gather_is_rms_norm_of_torch(impl, dtype):
    (src, _, weight), _ = gather_case(100, 12, "all", dtype)
    got = gathering(impl)(src, torch.arange(len(src), device=DEVICE), weight)
    assert_close("rms_norm", got, F.rms_norm(src, (100,), weight, EPS).double(), dtype)


@pytest.mark.parametrize("norm", NORMS)
def test_film_gradients_equal_finite_differences(norm):
    """Entry by entry for the norm that is used, along random directions for the others."""
    tensors = leaves(film_case(5, 3, "mixed", torch.float64)[0])
    assert torch.autograd.gradcheck(filming("triton", *norm), tensors, fast_mode=norm != NORMS[0])


def test_gather_gradients_equal_finite_differences():
    (src, _, weight), _ = gather_case(5, 6, "all", torch.float64)
    index = torch.tensor([[0, -1, 2], [2, 3, 2]], device=DEVICE)
    assert torch.autograd.gradcheck(gathering(), leaves((src, index, weight)))


@pytest.mark.parametrize(("width", "count"), [(100, 33), pytest.param(2560, 3000, marks=pytest.mark.gpu)])
def test_two_runs_give_the_same_bits(width, count):
    for names, case, run in OPERATIONS:
        assert_equal(names, *(evaluate(run(), *case(width, count, "mixed", torch.bfloat16)) for _ in range(2)))


# -- dead rows, unused rows, odd layouts


@IMPLS
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_dead_rows_are_the_base_bit_for_bit_and_their_nan_goes_nowhere(impl, dtype, poisoned):
    tensors, grad = film_case(33, 9, "mixed", dtype)
    live, base = tensors[1], tensors[6]
    base[:2] = torch.tensor([-0.0, 1e-39])
    hurt = [value.clone() for value in tensors]
    for place in (0, 4, 5):
        hurt[place][~live] = float("nan")
    bits = torch.int16 if dtype == torch.bfloat16 else torch.int32
    for layer_norm in (True, False):
        run = filming(impl, layer_norm)
        found = evaluate(run, hurt, grad)
        assert_equal(FILM, found, evaluate(run, tensors, grad))
        assert found[0][~live].view(bits).eq(base.view(bits)).all()
        for place in (1, 4, 5):
            assert found[place][~live].eq(0).all() and found[place][live].ne(0).any(), FILM[place]


@IMPLS
def test_a_gate_of_zeros_leaves_the_base_bit_for_bit(impl):
    for dtype in DTYPES:
        tensors, _ = film_case(64, 9, "mixed", dtype)
        zero, base = torch.zeros_like(tensors[4]), tensors[6]
        assert torch.equal(filming(impl)(*tensors[:4], zero, zero, base), base.expand_as(zero))


@IMPLS
def test_gather_reads_no_row_that_is_not_named(impl, poisoned):
    (src, _, weight), grad = gather_case(33, 5, "all", torch.float32)
    index, unused = torch.tensor([2, -1, 1, 2, -1], device=DEVICE), torch.tensor([0, 3], device=DEVICE)
    # The gradient of a dead entry is dropped, whatever it is.
    hurt = src.index_fill(0, unused, float("nan")), index, weight
    found = evaluate(gathering(impl), hurt, grad.masked_fill((index < 0)[:, None], torch.inf))
    assert_equal(GATHER, found, evaluate(gathering(impl), (src, index, weight), grad))
    assert found[0][index < 0].view(torch.int32).eq(0).all() and found[1][unused].eq(0).all()


def test_an_index_past_the_rows_cannot_be_overlooked(poisoned):
    (src, _, weight), grad = gather_case(8, 3, "all", torch.float32)
    index = torch.tensor([0, len(src), 1], device=DEVICE)
    states, src_grad, _ = evaluate(gathering(), (src, index, weight), grad)
    assert states.isnan().all(-1).tolist() == [False, True, False] and src_grad.isfinite().all()
    if DEVICE == "cpu":  # on CUDA a failed assertion on the device, after which nothing else runs
        with pytest.raises(IndexError):
            gathering("reference")(src, index, weight)


def strided(value):
    """The same values, no axis of them dense, and others in between."""
    return torch.stack((value, ~value if value.dtype == torch.bool else value + 7), -1)[..., 0]


def test_layout_does_not_matter():
    for names, case, run in OPERATIONS:
        tensors, grad = case(20, 9, "mixed", torch.float32)
        for given in (strided(grad), grad[:1].expand_as(grad)):
            plain = evaluate(run(), [value.contiguous() for value in tensors], given.contiguous())
            found = evaluate(run(), [*map(strided, tensors)], given)
            # The base's gradient is a sum by torch, whose order follows the strides.
            assert_equal(names[:6], found[:6], plain[:6])
            torch.testing.assert_close(found[-1], plain[-1])
    both = torch.zeros(2, 3, 10)
    assert all(dispatch.as_rows(half, 5).data_ptr() == half.data_ptr() for half in both.chunk(2, -1)), "copied"


@IMPLS
@pytest.mark.parametrize("axes", [(), (4,), (2, 3), (0,), (2, 0, 3)])
def test_any_leading_axes_and_none_at_all(axes, impl):
    count = torch.Size(axes).numel()
    for (names, case, run), leading in zip(OPERATIONS, ((1,), (0, 1, 4, 5)), strict=True):
        tensors, grad = case(6, count, "mixed", torch.float32)
        shaped = [v.reshape((*axes, *v.shape[1:])) if i in leading else v for i, v in enumerate(tensors)]
        found = evaluate(run(impl), shaped, grad.reshape(*axes, 6))
        assert found[0].shape == (*axes, 6)
        flat = evaluate(run(impl), tensors, grad)
        assert_equal(names, [one.reshape(other.shape) for one, other in zip(found, flat, strict=True)], flat)


@IMPLS
def test_no_candidates_at_all(impl):
    tensors = torch.zeros(0, 6, device=DEVICE), torch.full((4,), -1, device=DEVICE), torch.ones(6, device=DEVICE)
    states, src_grad, weight_grad = evaluate(gathering(impl), tensors, torch.ones(4, 6, device=DEVICE))
    assert states.eq(0).all() and src_grad.shape == (0, 6) and weight_grad.eq(0).all()


# -- as operators of torch


@pytest.fixture
def launched(monkeypatch):
    """Every launch: the kernel, and the gradients it was asked for."""
    calls, launch = [], dispatch.Kernel.launch

    def watch(kernel, *args, **arguments):
        calls.append((kernel, {name for name, value in arguments.items() if "_grad" in name and value is not None}))
        return launch(kernel, *args, **arguments)

    monkeypatch.setattr(dispatch.Kernel, "launch", watch)
    return calls


def test_only_what_is_asked_for_is_differentiated(launched):
    for names, case, run in OPERATIONS:
        tensors, grad = case(6, 4, "mixed", torch.float32)
        full = dict(zip(names[1:], evaluate(run(), tensors, grad)[1:], strict=True))
        floating = [place for place, value in enumerate(tensors) if value.is_floating_point()]
        for place, (name, want) in zip(floating, full.items(), strict=True):
            launched.clear()
            given = [value.detach().requires_grad_(i == place) for i, value in enumerate(tensors)]
            (got,) = torch.autograd.grad(run()(*given), given[place], grad)
            assert torch.equal(got, want), name
            # The forward kernel first.  The base is summed without a kernel.
            asked = [] if name == "d base" else [{f"{name[2:]}_grad"}]
            assert [gradients for _, gradients in launched[1:]] == asked, name


def test_a_second_derivative_is_refused():
    (src, index, weight), _ = gather_case(6, 4, "mixed", torch.float32)
    src.requires_grad_()
    (first,) = torch.autograd.grad(gathering()(src, index, weight).square().sum(), src, create_graph=True)
    with pytest.raises(RuntimeError, match="autograd formula"):
        first.sum().backward()


def test_the_operators_are_well_registered():
    plain, grad = gather_case(6, 4, "mixed", torch.bfloat16)
    torch.library.opcheck(gather._gather_backward, (grad, *plain, EPS, [True, False]))
    torch.library.opcheck(gather._gather, (*leaves(plain), EPS))
    plain, grad = film_case(6, 4, "mixed", torch.bfloat16)
    torch.library.opcheck(film._film_backward, (grad, *plain[:5], EPS, False, 1.0, [True, False, True, True, False]))
    torch.library.opcheck(film._film, (*leaves(plain), EPS, True, 0.0))


@IMPLS
def test_both_functions_trace_into_one_graph(impl):
    (src, index, norm), _ = gather_case(8, 6, "mixed", torch.float32)
    (_, live, weight, bias, _, _, base), grad = film_case(8, 6, "mixed", torch.float32)

    def relay(src, norm, weight, bias, gate, base):
        states = relay_gather(src, index, norm, EPS, impl=impl)
        scale, shift = (states @ gate).chunk(2, -1)
        return relay_film(states, index >= 0, weight, bias, scale, shift, base, EPS, impl=impl)

    given = src, norm, weight, bias, torch.linspace(-1, 1, 8 * 16, device=DEVICE).reshape(8, 16), base
    compiled = torch.compile(relay, fullgraph=True, backend="aot_eager")
    for one, other in zip(evaluate(relay, given, grad), evaluate(compiled, given, grad), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


# -- dispatch and refusals


def test_cuda_always_takes_triton_and_the_cpu_only_when_asked(launched):
    cpu, cuda = torch.device("cpu"), torch.device("cuda", 0)
    for impl, on_cpu, on_cuda in (("auto", False, True), ("triton", True, True), ("reference", False, False)):
        assert (dispatch.use_triton(impl, cpu), dispatch.use_triton(impl, cuda)) == (on_cpu, on_cuda), impl
    with pytest.raises(ValueError, match="impl is 'fast'; use 'auto', 'triton' or 'reference'"):
        dispatch.use_triton("fast", cpu)
    with pytest.raises(RuntimeError, match="impl is 'triton' on meta"):
        dispatch.use_triton("triton", torch.device("meta"))
    kernels = gather.gather_forward_kernel, film.film_forward_kernel
    for (_, case, run), kernel in zip(OPERATIONS, kernels, strict=True):
        tensors, _ = case(6, 4, "mixed", torch.float32)
        for impl, taken in (("auto", HAS_GPU), ("reference", False), ("triton", True)):
            launched.clear()
            run(impl)(*tensors)
            assert [used for used, _ in launched] == [kernel] * taken, impl
        assert kernel.interpreted != HAS_GPU


def test_a_wrong_argument_is_named_with_what_was_expected():
    for (_, case, run), wrong in zip(OPERATIONS, (WRONG_GATHER, WRONG_FILM), strict=True):
        tensors, _ = case(4, 3, "all", torch.float32, device="cpu")
        for place, spoil, words in wrong:
            spoilt = [spoil(value) if i == place else value for i, value in enumerate(tensors)]
            for impl in ("auto", "triton"):
                with pytest.raises(ValueError, match=words):
                    run(impl)(*spoilt)
    for eps in (0.0, float("nan")):
        with pytest.raises(ValueError, match=f"eps is {eps}; expected a positive number"):
            relay_film(*tensors, eps)


WRONG_GATHER = (
    (0, lambda src: src[0], r"src is \[4\] float32 on cpu; expected 2 axes"),
    (0, lambda src: src.int(), r"src is \[3, 4\] int32 .* one of float16, bfloat16, float32, float64"),
    (0, lambda src: src[:, :0], r"src is \[3, 0\] .* width 1 to 8192"),
    (0, lambda src: src.new_zeros(1, 8193), r"src is \[1, 8193\] .* width 1 to 8192"),
    (1, lambda index: index.int(), r"index is \[3\] int32 on cpu; expected \[3\] int64"),
    (1, lambda index: index.to("meta"), r"index is \[3\] int64 on meta; expected \[3\] int64 on cpu"),
    (2, lambda weight: weight[:3], r"weight is \[3\] float32 on cpu; expected \[4\] float32 on cpu to go with src"),
    (2, lambda weight: weight.double(), r"weight is \[4\] float64 on cpu; expected \[4\] float32"),
)
WRONG_FILM = (
    (0, lambda states: states[0, 0], r"states is \[\] float32 .* expected \[\.\.\., H\]"),
    (1, lambda live: live.int(), r"live is \[3\] int32 .* expected \[3\] bool"),
    (1, lambda live: live[:2], r"live is \[2\] bool .* expected \[3\] bool"),
    (2, lambda weight: weight[:3], r"weight is \[3\] float32 .* expected \[4\] float32"),
    (3, lambda bias: bias.double(), r"bias is \[4\] float64 .* expected \[4\] float32"),
    (4, lambda scale: scale[:2], r"scale is \[2, 4\] float32 .* expected \[3, 4\] float32 .* to go with states"),
    (5, lambda shift: shift.bfloat16(), r"shift is \[3, 4\] bfloat16 .* expected \[3, 4\] float32"),
    (6, lambda base: base.expand(3, 4), r"base is \[3, 4\] float32 .* expected \[4\] float32"),
)
