"""A model in stages takes the step that it would take in one process."""

from __future__ import annotations

from typing import Any

import pytest

from tests.distributed.ranks import Launcher
from tests.pipeline_parallel import on_stages
from tests.pipeline_parallel.on_stages import CASES, CASES_ON_FOUR
from tests.pipeline_parallel.staged_models import HIDDEN, LENGTH, VOCABULARY


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


def test_recomputed_blocks_compute_the_same_in_every_schedule(two: list[dict[str, Any]]) -> None:
    assert len(two[0]["recomputed"]) == 12
    for found in two[0]["recomputed"].values():
        is_one_process_step(found, 0.63)


def test_a_wrapper_that_recomputes_around_the_hand_over_is_an_error_and_would_be_right_all_the_same(
    two: list[dict[str, Any]],
) -> None:
    """Trap: where the first own block takes what came from the stage before, a recomputation of it finds nothing there.

    The block before it returns what came instead, and is not recomputed.
    """
    assert two[0]["wrapped wrongly, naively"] < 2e-6
    assert "only runs inside of Training.step" in two[1]["wrapped wrongly"]
    assert "StageLostError" in two[0]["wrapped wrongly"]


@pytest.mark.parametrize(
    "case",
    [
        "naive model parallelism",
        "1f1b, fewer",
        "interleaved, fewer",
        "zero_bubble, fewer",
        "interleaved, more",
        "uneven",
        "frozen, gpipe",
        "frozen, 1f1b",
        "frozen, interleaved",
    ],
)
def test_numbers_of_micro_batches_and_blocks_do_not_matter_nor_does_what_is_frozen(
    two: list[dict[str, Any]], case: str
) -> None:
    is_one_process_step(two[0]["other numbers"][case], 0.63)


def test_a_stage_before_which_nothing_is_trained_is_no_use_to_the_zero_bubble_schedule(
    two: list[dict[str, Any]],
) -> None:
    assert "nothing before it is trained" in two[0]["other numbers"]["frozen, zero_bubble"]


def test_tied_weights_are_stepped_alike_clipped_once_and_move_to_other_stages_with_the_optimizer(
    two: list[dict[str, Any]], four: list[dict[str, Any]]
) -> None:
    for ranks in (two, four):
        for rank in ranks:
            assert rank["trained"]["copies"]
            assert rank["trained"]["norm"] < 1e-6
        assert ranks[0]["trained"]["movement"] < 5e-6


def test_an_evaluation_runs_through_all_stages_and_returns_the_same_on_each(two: list[dict[str, Any]]) -> None:
    for rank in two:
        found = rank["evaluated"]
        for case in ("1f1b, before", "1f1b, after", "zero_bubble, before", "zero_bubble, after"):
            assert max(found[case]) < 2e-6, case
        assert "only runs inside of Training.step and Training.evaluate" in found["1f1b, outside"]


def test_stages_draw_the_same_noise_for_the_loss_and_other_masks_in_their_blocks(two: list[dict[str, Any]]) -> None:
    """Each of two ranks has two stages of two blocks: every pass draws the noise, the first before it is left."""
    first, second = (rank["drawn"] for rank in two)
    for rank in (first, second):
        assert rank["kept"]
        assert len(rank["noise"]) == 2 * 4
        distinct = {tuple(noise.flatten().tolist()) for noise in rank["noise"]}
        assert len(distinct) == 4  # one for each micro-batch
    assert {tuple(one.flatten().tolist()) for one in first["noise"]} == {
        tuple(one.flatten().tolist()) for one in second["noise"]
    }
    masks = {**first["masks"], **second["masks"]}
    assert sorted(masks) == list(range(8))
    flat = [mask.flatten() for number in sorted(masks) for mask in masks[number]]
    assert len(flat) == 8 * 4
    for number, mask in enumerate(flat):
        for other in flat[:number]:
            assert 0.4 < float((mask == other).float().mean()) < 0.6


def test_a_recomputation_draws_the_masks_of_its_stage_again(two: list[dict[str, Any]]) -> None:
    plain, recomputed = two[0]["drawn"]["gradients"], two[0]["drawn, recomputed"]["gradients"]
    assert set(plain) == set(recomputed)
    for name, gradient in plain.items():
        assert gradient.equal(recomputed[name]), name


REFUSED = {
    "used again": "only hidden states travel",
    "reads a block": "weight is not here: block 0 (Block) is in another stage",
    "left out": "but block 2 is called when block 1 is due",
    "penalized": "the loss reads parameters of blocks besides running them",
    "in the end": "ZeroDivisionError",
    "twice": "but block 0 is called when block 8 is due",
    "never": "compute_loss must call the model",
    "vector": "must return a scalar tensor",
    "shapes": "all micro-batches of a step must have the same shapes",
    "few blocks": "the model has 3 for 4 stages",
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_only_some_stages_can_compute_is_said_on_every_rank(two: list[dict[str, Any]], case: str) -> None:
    for rank in two:
        assert REFUSED[case] in rank["refused"][case]


@pytest.mark.parametrize("case", ["full", "full without what it can do without"])
def test_a_stage_without_memory_is_no_failure_of_the_others(two: list[dict[str, Any]], case: str) -> None:
    first, last = (rank["refused"][case] for rank in two)
    assert last == "OutOfMemoryError: CUDA out of memory"
    assert first.startswith("DeviceOutOfMemoryError: every stage of a pipeline must fit")
    assert f"but stage 1 raised {last}" in first


def test_the_blocks_of_other_stages_are_freed_at_once_and_the_embedding_that_is_not_needed_after_a_step(
    two: list[dict[str, Any]],
) -> None:
    first, last = (rank["freed"] for rank in two)
    assert first["left"]
    assert last["left"]
    assert first["held"] == {"transformer.wte.weight": VOCABULARY * HIDDEN, "transformer.wpe.weight": LENGTH * HIDDEN}
    assert last["held"] == {"transformer.wte.weight": VOCABULARY * HIDDEN, "transformer.wpe.weight": 0}


def test_a_rank_that_ends_in_the_middle_is_named_within_the_timeout(
    launcher: Launcher, tmp_path_factory: pytest.TempPathFactory
) -> None:
    found, _ = launcher.run(on_stages.lost, 2, tmp_path_factory.mktemp("lost"))
    assert "another one ended or did not answer rank 0 in time" in found["said"]
    assert found["seconds"] < 20


def test_a_rank_that_takes_no_part_is_named_after_the_timeout(
    launcher: Launcher, tmp_path_factory: pytest.TempPathFactory
) -> None:
    found, _ = launcher.run(on_stages.silent, 2, tmp_path_factory.mktemp("silent"))
    assert "another one ended or did not answer rank 0 in time" in found["said"]
