"""Tests of this folder run commands on machines with software GPUs, and skip where none can be built."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from tests.cuda_device.build import can_build
from tests.cuda_device.machine import Machine

Python = Callable[..., str]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.cuda_device)


@pytest.fixture(autouse=True, scope="session")
def only_where_it_can_be_built() -> None:
    if missing := can_build():
        pytest.skip(f"the software CUDA device cannot be built: {missing}")


_AT_ONCE = """
import os, sys
sys.stdout.flush()
os._exit(0)
"""
"""The end of a script. One that trained may still have a thread of autograd that lets go of its last objects; where it
waits for an interpreter that is being taken down (before Python 3.14), the process aborts. That is torch's affair.
"""


@pytest.fixture
def python() -> Python:
    """Runs a script on a machine, and gives what it prints."""

    def run(script: str, machine: Machine | None = None, **variables: str) -> str:
        result: CompletedProcess[str] = (machine or Machine()).run(
            [sys.executable, "-c", script + _AT_ONCE], variables, capture_output=True, timeout=200
        )
        assert result.returncode == 0, result.stderr
        return result.stdout

    return run
