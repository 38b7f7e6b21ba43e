"""What a step changes in a model besides its parameters: counters, statistics, and what is collected."""

from __future__ import annotations

import collections
from typing import Any

import pytest
import torch
from torch import nn

from advisor.measure.state.model_state import state_changes, state_values


class Keeper(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("steps", torch.zeros((), dtype=torch.long))
        self.register_buffer("mean", torch.zeros(4))
        self.plain, self.calls, self.rate, self.is_new = torch.ones(2), 0, 0.5, True
        self.history: list[Any] = []
        self.recent: Any = collections.deque(maxlen=2)
        self.cache: Any = None
        self.weight = nn.Parameter(torch.ones(4))


def changes(keeper: Keeper, names: tuple[str, ...] | None = None, **values: Any) -> dict[str, float]:
    before = state_values({"a": keeper})
    for name, value in values.items():
        setattr(keeper, name, value)
    return state_changes(before, state_values({"a": keeper}), names)


def test_nothing_changes_where_nothing_was_done() -> None:
    assert changes(Keeper()) == {}


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("steps", torch.tensor(3), {"a.steps": 3.0}),
        ("mean", torch.tensor([3.0, 0.0, 4.0, 0.0]), {"a.mean": 5.0}),
        ("plain", torch.tensor([1.0, -1.0]), {"a.plain": 2.0}),
        ("plain", torch.ones(3), {"a.plain": 3.0}),
        ("calls", 2, {"a.calls": 2.0}),
        ("rate", 0.25, {"a.rate": -0.25}),
        ("is_new", False, {}),
        ("history", [1, 2], {"len(a.history)": 2.0}),
        ("cache", torch.ones(3), {}),
        ("new", 7, {"a.new": 7.0}),
    ],
)
def test_each_kind_has_its_measure(name: str, value: Any, expected: dict[str, float]) -> None:
    assert changes(Keeper(), **{name: value}) == expected


def test_what_is_watched_is_told_though_it_has_not_changed() -> None:
    assert changes(Keeper(), ("a.calls", "a.gone"), rate=1.0) == {"a.calls": 0.0}


def test_parameters_are_no_state() -> None:
    keeper = Keeper()
    with torch.no_grad():
        before = state_values({"": keeper})
        keeper.weight += 1
    assert state_changes(before, state_values({"": keeper})) == {}


class Large(nn.Module):
    """Keeps more than a training may have room for."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.register_buffer("queue", torch.zeros(2**14, 80).to(dtype))
        self.register_buffer("flat", torch.ones(2**20 + 1).to(dtype))
        self.register_buffer("turned", torch.zeros(80, 2**14).to(dtype).t())


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float16, torch.complex64, torch.int8, torch.bool, torch.float8_e4m3fn], ids=str
)
def test_of_what_is_large_there_are_sums_which_change_with_a_few_elements(dtype: torch.dtype) -> None:
    large = Large(dtype)
    before = state_values({"a": large})
    sums = {name: value.numel() for name, value in before.items()}
    assert sums == {"a.queue": 2**14 * 80 // 1024 + 1, "a.flat": 1025, "a.turned": 16 * 80}
    assert state_changes(before, state_values({"a": large})) == {}
    large.queue[5] = torch.ones(80).to(dtype)
    large.flat[7] = torch.zeros(()).to(dtype)
    large.turned[1, 2] = torch.ones(()).to(dtype)
    assert state_changes(before, state_values({"a": large})) == {"a.queue": 80.0, "a.flat": 1.0, "a.turned": 1.0}
