"""An optional library is imported to see whether it works, without what it would do only when it is used."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from advisor.trial.worker.optional_libraries import compiling_later, imported


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, dict[str, Any]]]:
    """What torch has been asked to compile, and how; the result adds 100."""
    asked: list[tuple[Any, dict[str, Any]]] = []

    def fake(model: Callable[[int], int], **options: Any) -> Callable[[int], int]:
        asked.append((model, options))
        return lambda value: 100 + model(value)

    monkeypatch.setattr(torch, "compile", fake)
    return asked


def add_one(value: int) -> int:
    """Adds one."""
    return value + 1


@pytest.mark.parametrize("as_decorator", [False, True])
def test_a_function_is_compiled_when_it_is_first_called_and_once(
    compiled: list[tuple[Any, dict[str, Any]]], as_decorator: bool
) -> None:
    with compiling_later():
        later = torch.compile(dynamic=False)(add_one) if as_decorator else torch.compile(add_one, dynamic=False)
    assert compiled == []
    assert later.__doc__ == add_one.__doc__
    assert [later(1), later(2)] == [102, 103]
    assert compiled == [(add_one, {"dynamic": False})]


def test_what_is_no_function_is_compiled_at_once(compiled: list[tuple[Any, dict[str, Any]]]) -> None:
    layer = torch.nn.Linear(1, 1)
    with compiling_later():
        torch.compile(layer)
    assert compiled == [(layer, {})]


def test_afterwards_torch_compiles_as_before() -> None:
    before = torch.compile
    with compiling_later():
        assert torch.compile is not before
    assert torch.compile is before


def test_each_library_has_its_version_or_the_error_and_those_that_are_missing_have_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "some_library.py").write_text("__version__ = '1.2'")
    (tmp_path / "broken_library.py").write_text("raise OSError('libcuda.so: no such file')")
    (tmp_path / "unversioned_library.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    names = ["broken_library", "missing_library", "some_library", "unversioned_library"]
    assert imported(names) == {
        "broken_library": "error: OSError: libcuda.so: no such file",
        "some_library": "1.2",
        "unversioned_library": "unknown version",
    }
    for name in names:
        sys.modules.pop(name, None)
