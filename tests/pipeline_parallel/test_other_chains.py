"""Blocks that return, take or do more than hidden states are cut into stages, or refused before anything is trained."""

from __future__ import annotations

from typing import Any

import pytest

from tests.distributed.ranks import Launcher
from tests.pipeline_parallel import on_stages
from tests.pipeline_parallel.other_chains import CUT, IN_EVERY_SCHEDULE, REFUSED, SHARED
from tests.pipeline_parallel.test_stages_train_alike import is_one_process_step


@pytest.fixture(scope="module")
def found(launcher: Launcher, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return launcher.run(on_stages.on_other_chains, 2, tmp_path_factory.mktemp("chains"))


@pytest.mark.parametrize("kind", CUT)
def test_what_blocks_return_take_or_do_besides_does_not_matter_where_nobody_reads_it(
    found: list[dict[str, Any]], kind: str
) -> None:
    # A router's gradient is a small difference of large ones.
    tolerance = 2e-5 if kind == "routes" else 2e-6
    for rank in found:
        is_one_process_step(rank["cut"][f"{kind}, 1f1b"], 0.9, tolerance)
        if kind in IN_EVERY_SCHEDULE:
            is_one_process_step(rank["cut"][f"{kind}, zero_bubble"], 0.9)


@pytest.mark.parametrize("kind", SHARED)
def test_weights_outside_of_blocks_that_meet_several_are_refused_by_the_zero_bubble_schedule(
    found: list[dict[str, Any]], kind: str
) -> None:
    for rank in found:
        assert "meet the hidden states in one block only" in rank["cut"][f"{kind}, zero_bubble"]


@pytest.mark.parametrize("kind", REFUSED)
def test_a_chain_that_stages_would_compute_wrongly_is_refused_on_every_rank(
    found: list[dict[str, Any]], kind: str
) -> None:
    for rank in found:
        assert REFUSED[kind] in rank["refused"][kind]
