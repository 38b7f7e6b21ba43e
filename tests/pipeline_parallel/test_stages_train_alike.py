"""A model in stages takes the step that it would take in one process."""

from __future__ import annotations

from typing import Any

import pytest

from tests.distributed.ranks import Launcher
from tests.pipeline_parallel import on_stages
from tests.pipeline_parallel.on_stages import CASES, CASES_ON_FOUR


@pytest.fixture(scope="session")
def two(launcher: Launcher, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return launcher.run(on_stages.on_two, 2, tmp_path_factory.mktemp("two"))


@pytest.fixture(scope="session")
def four(launcher: Launcher, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return launcher.run(on_stages.on_four, 4, tmp_path_factory.mktemp("four"))


def is_one_process_step(found: Any, held: float, tolerance: float = 2e-6) -> None:
    assert not isinstance(found, str), found
    assert found["names"]
    assert found["loss"] < 1e-5
    assert found["gradients"] < tolerance
    assert found["state"] < tolerance
    assert found["held"] < held


@pytest.mark.parametrize(("kind", "schedule"), [case for case in CASES if case != ("conditioned", "zero_bubble")])
def test_a_step_in_stages_on_two_ranks_is_that_of_one_process(
    two: list[dict[str, Any]], kind: str, schedule: str
) -> None:
    for rank in two:
        is_one_process_step(rank["steps"][f"{kind}, {schedule}"], 0.63)


@pytest.mark.parametrize(("kind", "schedule"), CASES_ON_FOUR)
def test_a_step_in_stages_on_four_ranks_is_that_of_one_process(
    four: list[dict[str, Any]], kind: str, schedule: str
) -> None:
    for rank in four:
        is_one_process_step(rank["steps"][f"{kind}, {schedule}"], 0.43)


def test_weights_that_several_blocks_take_are_no_use_to_the_zero_bubble_schedule(two: list[dict[str, Any]]) -> None:
    assert "meet the hidden states in one block only" in two[0]["steps"]["conditioned, zero_bubble"]
