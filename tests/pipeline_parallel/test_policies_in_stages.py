"""Policies with a pipeline train as one process does, beside other methods and on meshes of four ranks."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.distributed.ranks import Launcher
from tests.pipeline_parallel import on_policies
from tests.pipeline_parallel.on_policies import DATA
from tests.pipeline_parallel.on_stages import SCHEDULES
from tests.tensor_parallel.masks import independent


@pytest.fixture(scope="session")
def two(launcher: Launcher, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return launcher.run(on_policies.on_two, 2, tmp_path_factory.mktemp("policies"))


@pytest.fixture(scope="session")
def four(launcher: Launcher, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return launcher.run(on_policies.on_four, 4, tmp_path_factory.mktemp("meshes"))


@pytest.fixture(scope="session")
def eight(launcher: Launcher, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return launcher.run(on_policies.on_eight, 8, tmp_path_factory.mktemp("three axes"))


def is_one_process_training(found: Any, tolerance: float = 5e-6) -> None:
    assert not isinstance(found, str), found
    assert found["names"]
    assert found["losses"] < 1e-5
    assert found["movement"] < tolerance


@pytest.mark.parametrize("case", [*SCHEDULES, "two groups", "bf16", "fp16"])
def test_steps_of_a_policy_are_those_of_one_process_clipped_and_in_any_format(
    two: list[dict[str, Any]], case: str
) -> None:
    # In 16 bits, rounding makes more of a difference in the last place.
    is_one_process_training(two[0][case], 1e-3 if case == "fp16" else 5e-6)


@pytest.mark.parametrize("partner", on_policies.CLOSE)
def test_a_method_beside_the_pipeline_changes_what_it_changes_alone(two: list[dict[str, Any]], partner: str) -> None:
    is_one_process_training(two[0]["partners"][partner])


def test_every_other_method_goes_with_the_pipeline_or_says_why_not(two: list[dict[str, Any]]) -> None:
    found = two[0]["partners"]
    for name, reason in on_policies.REFUSED.items():
        assert reason in found[name], name
    for name in set(found) - set(on_policies.REFUSED):
        assert not isinstance(found[name], str), f"{name}: {found[name]}"
        assert found[name]["names"]


def test_states_move_to_other_stages_and_an_evaluation_is_that_of_the_whole_model(two: list[dict[str, Any]]) -> None:
    found = two[0]["resumed"]
    assert found["movement"] < 5e-6
    for rank in two:
        assert rank["resumed"]["evaluated"] < 1e-5


def test_passes_cannot_be_called_apart(two: list[dict[str, Any]]) -> None:
    for name in ("apart", "backward"):
        assert "call training.step(batch)" in two[1]["resumed"][name]


def test_a_policy_says_where_to_cut_once_blocks_were_measured(two: list[dict[str, Any]]) -> None:
    bounds = two[0]["resumed"]["settled"]["pipeline"].split(",")
    assert (bounds[0], bounds[-1]) == ("0", "8")
    found = [rank["bounds"] for rank in two]
    assert found[0]["own"] < found[0]["even"]
    assert found[1]["own"] > found[1]["even"]
    for case in ("wrong", "none"):
        assert "must be the first block of every stage and the number of blocks, 8" in found[0][case]


def test_stages_are_cut_by_measured_bytes_where_the_memory_limit_calls_for_it(two: list[dict[str, Any]]) -> None:
    found = two[0]["below a limit"]
    assert not isinstance(found, str), found
    assert found == two[1]["below a limit"]
    assert found[0] <= 2
    assert sum(found) == 8


@pytest.mark.parametrize("data", DATA)
def test_data_and_blocks_are_divided_at_once(four: list[dict[str, Any]], data: str) -> None:
    is_one_process_training(four[0]["data"][f"{data}, 1f1b"])


@pytest.mark.parametrize("data", ["ddp", "zero_1"])
def test_data_is_divided_beside_the_zero_bubble_schedule_without_hooks(four: list[dict[str, Any]], data: str) -> None:
    is_one_process_training(four[0]["data"][f"{data}, zero_bubble"])


@pytest.mark.parametrize("data", ["zero_1", "zero_3"])
def test_sharded_states_of_stages_are_gathered_and_loaded_again(four: list[dict[str, Any]], data: str) -> None:
    """Trap: a sharded optimizer has no state to show before all parts are put together."""
    found = four[0]["resumed"][data]
    assert not isinstance(found, str), found
    assert found["movement"] < 5e-6


@pytest.mark.parametrize("sequence", [False, True])
@pytest.mark.parametrize("schedule", ["1f1b", "zero_bubble"])
def test_layers_and_blocks_are_divided_at_once(four: list[dict[str, Any]], schedule: str, sequence: bool) -> None:
    is_one_process_training(four[0]["tensor"][f"sequence={sequence}, {schedule}"])


@pytest.mark.parametrize("sequence", [False, True])
def test_a_vocabulary_is_shared_beside_stages_that_tie_its_weights(four: list[dict[str, Any]], sequence: bool) -> None:
    is_one_process_training(four[0]["vocabulary"][f"sequence={sequence}"])


@pytest.mark.parametrize("sequence", [False, True])
def test_masks_agree_where_values_do_and_are_independent_between_ranks_stages_and_micro_batches(
    four: list[dict[str, Any]], sequence: bool
) -> None:
    ranks = [rank["dropped"][f"sequence={sequence}"] for rank in four]
    assert not any(isinstance(rank, str) for rank in ranks), ranks[0]
    for stage in (0, 1):
        first, second = ranks[2 * stage : 2 * stage + 2]
        assert {name[:8] for name in first if name != "dropout"} == {f"blocks.{2 * stage + block}" for block in (0, 1)}
        for name in first:
            for mask, other in zip(first[name], second[name], strict=True):
                if name == "dropout" or ("after" in name and not sequence):
                    assert torch.equal(mask, other), name
                elif "core" not in name:
                    independent(mask, other)
    for name, calls in {"inner": 4, "after": 8}.items():
        passes = ranks[0][f"blocks.0.{name}"]
        assert len(passes) == calls
        independent(passes[0], passes[-1])
        independent(passes[0], ranks[2][f"blocks.2.{name}"][0])


@pytest.mark.parametrize("data", ["ddp", "zero_3"])
def test_data_layers_and_blocks_are_divided_at_once(eight: list[dict[str, Any]], data: str) -> None:
    is_one_process_training(eight[0][data])
