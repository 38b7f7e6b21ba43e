"""The bytes that cuBLAS holds are found by taking them away, and then it has them again."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from advisor.measure.memory.cuda import held_workspace_bytes

CPU = torch.device("cpu")


def held(bytes_held: int, monkeypatch: pytest.MonkeyPatch) -> tuple[int, list[str]]:
    """What is found where cuBLAS holds so many bytes, and what was done on the way."""
    allocated, done = [1000 + bytes_held], []

    def clear() -> None:
        done.append("cleared")
        allocated[0] = 1000

    plain = torch.autograd.grad

    def grad(*args: Any, **kwargs: Any) -> Any:
        done.append("multiplied forward and backward")
        return plain(*args, **kwargs)

    monkeypatch.setattr(torch.autograd, "grad", grad)
    cuda = SimpleNamespace(memory_allocated=lambda device: allocated[0])
    return held_workspace_bytes(CPU, cuda, SimpleNamespace(_cuda_clearCublasWorkspaces=clear)), done


def test_they_are_measured_and_taken_again_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    assert held(64, monkeypatch) == (64, ["cleared", "multiplied forward and backward"])


def test_without_any_nothing_is_multiplied(monkeypatch: pytest.MonkeyPatch) -> None:
    assert held(0, monkeypatch) == (0, ["cleared"])


def test_a_build_without_cublas_holds_nothing() -> None:
    assert held_workspace_bytes(CPU, SimpleNamespace(), SimpleNamespace()) == 0
