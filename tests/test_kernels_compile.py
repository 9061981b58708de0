"""The relay kernels outside the interpreter: they compile for GPUs that are not here, and what is missing is said.

What the interpreter forgives, the compiler does not.  One process without TRITON_INTERPRET (this very file, run as a
script) compiles everything, with a cache of its own, and prints a line for each binary.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="Triton is built for Linux")
POINTERS = {"index": "*i64", "order": "*i64", "starts": "*i64", "live": "*i1"}
COUNTS = {"R", "N", "rows"}
CONSTANTS = {"EPS", "LAYER_NORM", "OFFSET", "H", "BLOCK"}
#: Sums over rows, kept in the dtype of the accumulator.
SUMS = {"weight_grad", "bias_grad"}
TARGETS = (80, 90)
ODD, REAL, WIDEST = 100, 2560, 8192


def compiled(kernel, capability, dtype, width, *, layer_norm=True, frozen=(), ones=()):
    """Compile for one target.  Gradients `frozen` are None; integers in `ones` are 1, on which Triton specialises."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from methods.kernels.dispatch import geometry

    block, warps = geometry(width)
    given = {"EPS": 1e-6, "LAYER_NORM": layer_norm, "OFFSET": 0.0, "H": width, "BLOCK": block}
    constants = dict.fromkeys(frozen) | dict.fromkeys(ones, 1)
    signature = {}
    for name in kernel.compiled.arg_names:
        if name in CONSTANTS:
            constants[name] = given[name]
        if name in constants:
            signature[name] = "constexpr"
        elif name in COUNTS or name.endswith("_stride"):
            signature[name] = "i32"
        else:
            accumulated = "*fp64" if dtype == "fp64" else "*fp32"
            signature[name] = accumulated if name in SUMS else POINTERS.get(name, f"*{dtype}")
    source = ASTSource(kernel.compiled, signature, constants)
    made = triton.compile(source, target=GPUTarget("cuda", capability, 32), options={"num_warps": warps})
    label = f"{kernel.function.__name__} sm{capability} {dtype} {width} {layer_norm} {frozen} {ones}"
    print(json.dumps({"kernel": label, "bytes": {kind: len(made.asm[kind]) for kind in ("ptx", "cubin")}}))


def compile_all():
    from methods.kernels import film, gather

    norms = {film.film_forward_kernel: (True, False), film.film_backward_kernel: (True, False)}
    kernels = (gather.gather_forward_kernel, gather.gather_backward_kernel, *norms)
    for capability in TARGETS:
        for dtype in ("fp32", "bf16"):
            for kernel in kernels:
                for layer_norm in norms.get(kernel, (True,)):
                    compiled(kernel, capability, dtype, ODD, layer_norm=layer_norm)
    for kernel in kernels:
        compiled(kernel, 90, "bf16", REAL)
        compiled(kernel, 90, "fp64", ODD)
        compiled(kernel, 90, "fp32", 1)
        compiled(kernel, 90, "bf16", WIDEST)
    compiled(gather.gather_forward_kernel, 90, "bf16", ODD, ones=("R",))
    compiled(gather.gather_backward_kernel, 90, "bf16", ODD, frozen=("src_grad",), ones=("R", "rows"))
    compiled(gather.gather_backward_kernel, 90, "bf16", ODD, frozen=("weight_grad",), ones=("rows",))
    compiled(film.film_backward_kernel, 90, "bf16", ODD, frozen=("states_grad",), ones=("rows",))
    frozen = ("states_grad", "weight_grad", "bias_grad", "shift_grad")
    compiled(film.film_backward_kernel, 90, "bf16", ODD, frozen=frozen, ones=("N", "rows"))


def outside(cache, *command):
    """What `command` of Python prints where nothing asks for the interpreter."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment |= {"TRITON_CACHE_DIR": str(cache), "PYTHONPATH": str(Path(__file__).parent.parent)}
    done = subprocess.run([sys.executable, *command], env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@LINUX
def test_every_kernel_compiles_for_every_target(tmp_path):
    binaries = [json.loads(line) for line in outside(tmp_path, __file__)]
    assert all(size > 0 for binary in binaries for size in binary["bytes"].values())
    names = [binary["kernel"] for binary in binaries]
    assert len(set(names)) == len(names)
    for kernel in ("gather_forward", "gather_backward", "film_forward", "film_backward"):
        for target in TARGETS:
            for dtype in ("fp32", "bf16"):
                assert any(name.startswith(f"{kernel}_kernel sm{target} {dtype} {ODD}") for name in names)


REFUSED = """
import sys
if {hidden}:
    sys.modules["triton"] = None
import torch
before = set(sys.modules)
import methods.kernels as kernels
assert not [name for name in set(sys.modules) - before if name.split(".")[0] in ("triton", "harness")]
gather = torch.randn(3, 4), torch.tensor([0, -1]), torch.ones(4)
film = torch.randn(2, 4), torch.tensor([True, False]), *torch.randn(2, 4), *torch.randn(2, 2, 4), torch.randn(4)
assert kernels.relay_gather(*gather, 1e-6)[1].eq(0).all()
assert kernels.relay_film(*film, 1e-6)[1].equal(film[-1])
# No row to run a kernel on is no excuse.
empty = gather[0], gather[1][:0], gather[2]
for function, given in ((kernels.relay_gather, gather), (kernels.relay_gather, empty), (kernels.relay_film, film)):
    try:
        function(*given, 1e-6, impl="triton")
    except RuntimeError as error:
        print(error)
"""


@pytest.mark.parametrize(
    ("hidden", "words"),
    [(True, "pip install 'triton>=3.6'"), pytest.param(False, "set TRITON_INTERPRET=1", marks=LINUX)],
)
def test_without_triton_or_interpreter_references_work_and_kernels_say_what_is_missing(hidden, words, tmp_path):
    said = outside(tmp_path, "-c", REFUSED.format(hidden=hidden))
    assert len(said) == 3 and all(words in line for line in said)


if __name__ == "__main__":
    compile_all()
