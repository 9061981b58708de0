"""Surroundings of every test: no network, one thread, no GPU assumed.

Set before torch, transformers or triton is imported anywhere: these read the environment once, at import.
"""

import os
from pathlib import Path

for name, value in {
    "OMP_NUM_THREADS": "1",
    "OMP_WAIT_POLICY": "PASSIVE",
    "MKL_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "HF_DATASETS_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "MPLBACKEND": "Agg",
}.items():
    os.environ.setdefault(name, value)

HAS_GPU = any(Path("/proc/driver/nvidia/gpus").glob("*"))
if not HAS_GPU:
    # Triton decides between compiler and interpreter when a kernel is decorated, that is at import.
    os.environ.setdefault("TRITON_INTERPRET", "1")

import pytest  # noqa: E402
import torch  # noqa: E402

torch.set_num_threads(1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """GPU tests are skipped only where there is no GPU; one that torch cannot use is a failure."""
    if not HAS_GPU:
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.skip(reason="no GPU on this machine"))


def pytest_configure(config: pytest.Config) -> None:
    """Under HARNESS_BREAK the code under test carries one fault of tests/breaks.py, before any test is imported."""
    broken = os.environ.get("HARNESS_BREAK")
    if broken:
        from tests.breaks import apply

        apply(broken)
