"""Tests of this folder need a CUDA device and skip without one."""

from __future__ import annotations

import os
import warnings
import xml.etree.ElementTree as ET  # pytest's own files
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

if {"PYTEST_XDIST_WORKER", "SOFTWARE_GPU_BOOKS"} <= set(os.environ):
    # Each test process has software GPUs of its own: on shared ones the tests of one take the memory of the other's.
    os.environ["SOFTWARE_GPU_BOOKS"] += "-" + os.environ["PYTEST_XDIST_WORKER"]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--skipped-in", type=Path, action="append", default=[], metavar="XML",
        help="run the tests that another run skipped: its --junitxml; may be repeated",
    )  # fmt: skip


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """What ran on a device that computes values has nothing new to say on one that computes none.

    What looks at memory alone runs there: computing takes ten times as long, and takes no other memory.
    """
    if os.environ.get("SOFTWARE_GPU_VALUES"):
        for item in items:
            if item.get_closest_marker("memory_only"):
                item.add_marker(pytest.mark.skip(reason="memory is the same where nothing is computed"))
    other_runs: list[Path] = config.getoption("skipped_in", [])
    if not other_runs:
        return
    cases = [case for run in other_runs for case in ET.parse(run).iter("testcase") if case.find("skipped") is not None]
    skipped = {f"{case.get('classname')}::{case.get('name')}" for case in cases}
    rest = [item for item in items if _in_junit(item) not in skipped]
    config.hook.pytest_deselected(items=rest)
    items[:] = [item for item in items if item not in rest]


def _in_junit(item: pytest.Item) -> str:
    """A test as pytest's files name it."""
    path, _, name = item.nodeid.partition("::")
    return f"{path.removesuffix('.py').replace('/', '.')}::{name}"


@pytest.fixture(scope="session")
def cuda() -> torch.device:
    """The first CUDA device."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # on a machine with an old or no driver torch warns while it looks
        available = torch.cuda.is_available()
    if not available:
        pytest.skip("no CUDA device")
    # Read when the first matrix product runs: without it cuBLAS may choose another algorithm from run to run. It is
    # small, as from torch 2.15 on it is in a peak or not, by whether a product runs there.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":16:8")
    return torch.device("cuda:0")


@pytest.fixture(autouse=True)
def only_with_cuda(cuda: torch.device) -> None:
    """Skips before anything else of a test runs."""


@pytest.fixture(autouse=True)
def as_usual(only_with_cuda: None, workers_as_usual: None) -> None:
    """What a GPU takes to settle is not shortened."""


def computes() -> bool:
    """Whether kernels compute: those of a device do, and those of tests/cuda_device if it was told to."""
    return is_hardware() or bool(os.environ.get("SOFTWARE_GPU_VALUES"))


def is_hardware() -> bool:
    """Whether the device is one; that of tests/cuda_device only says so."""
    return "SOFTWARE_GPUS" not in os.environ


def skip_unless_triton_runs() -> None:
    """For what Triton compiles: where the software device computes values, it refuses kernels that are not torch's."""
    if computes() and not is_hardware():
        pytest.skip("the software CUDA device cannot compute the values of Triton's kernels")


@pytest.fixture
def values() -> None:
    """For tests of what kernels compute."""
    if not computes():
        pytest.skip("the software CUDA device computes nothing")


@pytest.fixture
def hardware() -> None:
    """For tests of how long kernels take, and of how a device rounds."""
    if not is_hardware():
        pytest.skip("the software CUDA device has neither the times nor the tensor cores of a GPU")


@pytest.fixture
def repeatable(cuda: torch.device) -> Iterator[None]:
    """Kernels that give the same bits every time."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        # The memory-efficient kernel, which float32 attention gets otherwise, sums gradients in any order.
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.fixture
def whatever_is_computed() -> None:
    """For tests of processes and memory, which the software device runs without values: an index too many breaks no
    context with them, and computing takes so long that tests beside these hold memory that these wait for."""
    if computes() and not is_hardware():
        pytest.skip("it is about processes and memory, and runs without values")
