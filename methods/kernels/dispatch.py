"""Where a fused operation runs: Triton on CUDA, the torch reference elsewhere, never silently one for the other.

Knows devices, dtypes, shapes and how a kernel comes to life; knows no formula.  Triton is imported, and a kernel
decorated, at its first launch: the package then imports where there is no Triton, and ``TRITON_INTERPRET``, which
Triton reads as it decorates, counts up to that moment.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from functools import cached_property
from typing import Any, Literal

import torch
from torch import Tensor

Impl = Literal["auto", "triton", "reference"]

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
#: A row is held in the registers of one program; wider ones would spill.
MAX_WIDTH = 8192
#: Most programs that share a sum over rows.  A constant, so that the order of the sum (hence its bits) depends on the
#: shapes alone and not on the device; large enough to fill one.
REDUCERS = 1024


def use_triton(impl: Impl, device: torch.device) -> bool:
    """Whether tensors on `device` go to the Triton kernels; whether these can run is found out at the launch."""
    if impl not in ("auto", "triton", "reference"):
        raise ValueError(f"impl is {impl!r}; use 'auto', 'triton' or 'reference'")
    if impl == "triton" and device.type not in ("cuda", "cpu"):
        raise RuntimeError(
            f"impl is 'triton' on {device}; Triton kernels run on CUDA, or on the CPU in its interpreter"
        )
    return impl == "triton" or (impl == "auto" and device.type == "cuda")


class Kernel:
    """A Triton kernel, decorated with ``triton.jit`` at its first launch.

    function: its source.  Takes the constants ``H`` (width of a row) and ``BLOCK`` (the power of two that holds it)
        among its arguments, and calls Triton ``tl``, a global of its module that is bound here.
    """

    def __init__(self, function: Callable) -> None:
        self.function = function

    @cached_property
    def compiled(self) -> Any:
        try:
            import triton
            import triton.language
        except ImportError as error:
            raise RuntimeError(
                f"{self.function.__name__} needs Triton, which cannot be imported ({error}): "
                "pip install 'triton>=3.6', or choose impl='reference' if slow is good enough"
            ) from error
        self.function.__globals__["tl"] = triton.language
        return triton.jit(self.function)

    @property
    def interpreted(self) -> bool:
        """Whether the kernel, and Triton's own functions that it calls, run in the interpreter."""
        compiled = self.compiled
        import triton.language
        from triton.runtime.interpreter import InterpretedFunction

        return all(isinstance(function, InterpretedFunction) for function in (compiled, triton.language.sum))

    def launch(self, programs: int, device: torch.device, width: int, **arguments: Any) -> None:
        """Run `programs` programs on rows of `width`; `arguments` are the kernel's own, all but H and BLOCK."""
        if device.type == "cpu" and not self.interpreted:
            raise RuntimeError(
                f"{self.function.__name__} has tensors on the CPU, where only Triton's interpreter can run it: set "
                "TRITON_INTERPRET=1 before anything imports Triton, or choose impl='reference'"
            )
        if programs == 0:
            return
        block, warps = geometry(width)
        # Triton launches on the current device, whichever one the tensors are on.
        with torch.cuda.device(device) if device.type == "cuda" else nullcontext():
            self.compiled[(programs,)](**arguments, H=width, BLOCK=block, num_warps=warps)


def geometry(width: int) -> tuple[int, int]:
    """BLOCK and number of warps for rows of `width`: 8 elements a thread, as far as 1 to 16 warps go.  No autotuning:
    another choice is another order of summation."""
    block = 1 << (width - 1).bit_length()
    return block, min(max(block // 256, 1), 16)


def shares(rows: int) -> tuple[int, int]:
    """How many rows each program of a sum over `rows` takes, and how many programs that makes."""
    each = max(-(-rows // REDUCERS), 1)
    return each, -(-rows // each)


def accumulator(dtype: torch.dtype) -> torch.dtype:
    """The dtype a formula is computed in: float64 for float64 (which gradcheck needs), float32 for all others."""
    return torch.promote_types(dtype, torch.float32)


def as_rows(tensor: Tensor, width: int) -> Tensor:  # [..., H] -> [N, H]
    """Rows whose elements are adjacent.  The halves of one projection are viewed, not copied: only rows are strided."""
    rows = tensor.reshape(-1, width)
    return rows if rows.stride(1) == 1 else rows.contiguous()


def describe(shape: Any, dtype: torch.dtype, device: torch.device) -> str:
    return f"{list(shape)} {str(dtype).removeprefix('torch.')} on {device}"


def require(name: str, tensor: Tensor, shape: Any, dtype: torch.dtype, like: str, device: torch.device) -> None:
    """ValueError unless `tensor` is exactly this; `like` names the argument it has to go with."""
    if tuple(tensor.shape) != tuple(shape) or tensor.dtype != dtype or tensor.device != device:
        found = describe(tensor.shape, tensor.dtype, tensor.device)
        raise ValueError(f"{name} is {found}; expected {describe(shape, dtype, device)} to go with {like}")


def require_rows(name: str, tensor: Tensor, axes: int | None = None) -> int:
    """The width H of `tensor` [..., H]; ValueError if it has none that a kernel can hold, or is not of `FLOATS`."""
    wanted = "[..., H]" if axes is None else f"{axes} axes, the last of"
    fits = tensor.dim() >= 1 if axes is None else tensor.dim() == axes
    if not fits or not 1 <= tensor.shape[-1] <= MAX_WIDTH or tensor.dtype not in FLOATS:
        found = describe(tensor.shape, tensor.dtype, tensor.device)
        kinds = ", ".join(str(dtype).removeprefix("torch.") for dtype in FLOATS)
        raise ValueError(f"{name} is {found}; expected {wanted} width 1 to {MAX_WIDTH}, in one of {kinds}")
    return tensor.shape[-1]


def require_eps(eps: float) -> None:
    if not eps > 0:
        raise ValueError(f"eps is {eps}; expected a positive number: a row of zeros would be divided by zero")
