"""Parameters after a few steps on several ranks are those of one process on the same global batch."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
from torch import nn

from tests.distributed import on_ranks
from tests.distributed.models import (
    CASES,
    FEWER_STEPS,
    Branching,
    Case,
    movement_error,
    padded_text,
    trained,
    transformer,
    vectors,
)
from tests.distributed.ranks import Launcher
from tests.methods.quick_compiler import quick_compiler
from tests.methods.tiny import import_bitsandbytes, uncompiled_optimizers

pytestmark = pytest.mark.slow

Found = list[dict[str, Any]]


@pytest.fixture(scope="module")
def on_two(launcher: Launcher, tmp_path_factory: pytest.TempPathFactory) -> Found:
    return launcher.run(on_ranks.all_cases, 2, tmp_path_factory.mktemp("two"))


@pytest.fixture(scope="module")
def on_four(launcher: Launcher, tmp_path_factory: pytest.TempPathFactory) -> Found:
    return launcher.run(on_ranks.few_cases, 4, tmp_path_factory.mktemp("four"))


@functools.cache
def _alone(key: str) -> tuple[dict[str, Any], list[float]]:
    """What a single process makes of cases that differ only in how they are distributed."""
    case = next(case for case in CASES.values() if _key(case) == key)
    with uncompiled_optimizers(), quick_compiler():
        return trained(case, None, steps=FEWER_STEPS)


@functools.cache
def _plain(build: Callable[[], nn.Module], data: Callable[[int], Any]) -> tuple[dict[str, Any], list[float]]:
    return trained(Case((), micro_batch=1), None, build=build, data=data)


def _key(case: Case) -> str:
    settings = ", ".join(setting.label for setting in case.single)
    return f"{settings}; {case.micro_batch}; {case.clip}; {case.build_optimizer.__name__}"


@pytest.mark.parametrize("name", CASES)
def test_two_ranks_train_as_one(name: str, on_two: Found) -> None:
    case = CASES[name]
    import_bitsandbytes()
    found = on_two[0][name]
    assert not isinstance(found, str), found
    plain, plain_losses = _alone(_key(case))
    state, _ = found
    assert list(state["model"]) == list(plain["model"])
    assert movement_error(state["model"], plain["model"], transformer()) < case.tolerance
    losses = [sum(pair) / 2 for pair in zip(*(rank[name][1] for rank in on_two), strict=True)]
    assert losses == pytest.approx(plain_losses, rel=max(case.tolerance, 1e-5))


@pytest.mark.parametrize("name", CASES)
def test_only_the_first_rank_holds_what_was_gathered(name: str, on_two: Found) -> None:
    state, _ = on_two[1][name]
    assert state["model"] == state["optimizer"] == {}


@pytest.mark.parametrize("name", on_ranks.DISTRIBUTING)
def test_four_ranks_train_as_one(name: str, on_four: Found) -> None:
    plain, plain_losses = _plain(transformer, padded_text)
    state, _ = on_four[0][name]
    assert movement_error(state["model"], plain["model"], transformer()) < 1e-4
    losses = [sum(each) / 4 for each in zip(*(rank[name][1] for rank in on_four), strict=True)]
    assert losses == pytest.approx(plain_losses, rel=1e-5)


@pytest.mark.parametrize("name", on_ranks.DISTRIBUTING)
def test_sizes_that_four_ranks_do_not_divide_are_trained_and_gathered_all_the_same(name: str, on_four: Found) -> None:
    plain, _ = _plain(Branching, vectors)
    state, _ = on_four[0][f"{name}, odd"]
    assert {key: value.shape for key, value in state["model"].items()} == {
        key: value.shape for key, value in plain["model"].items()
    }
    assert movement_error(state["model"], plain["model"], Branching()) < 1e-4
