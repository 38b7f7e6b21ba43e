"""Ranks that share a model's blocks compute what one process does, and keep and draw what they should."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch

from advisor.methods.tensor_parallel._collectives import in_threads
from benchmarks.block_activations.forms import DEGREES, FORMS, SAMPLES, TOKENS, WIDTH, Form
from tests.distributed.ranks import Launcher
from tests.tensor_parallel import on_ranks
from tests.tensor_parallel.masks import independent
from tests.tensor_parallel.models import VOCABULARY
from tests.tensor_parallel.on_ranks import KINDS, KINDS_ON_FOUR


@pytest.fixture(scope="session")
def two(launcher: Launcher, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return launcher.run(on_ranks.on_two, 2, tmp_path_factory.mktemp("two"))


@pytest.fixture(scope="session")
def four(launcher: Launcher, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return launcher.run(on_ranks.on_four, 4, tmp_path_factory.mktemp("four"))


def is_one_process_step(found: Any, tolerance: float = 2e-6) -> None:
    assert not isinstance(found, str), found
    assert found["names"]
    assert found["loss"] < 1e-5
    assert found["gradients"] < tolerance
    assert found["parameters"] < tolerance
    assert found["held"] < 0.96


@pytest.mark.parametrize(("kind", "sequence"), [*itertools.product(KINDS, (False, True))])
def test_a_step_of_two_ranks_is_that_of_one_process(two: list[dict[str, Any]], kind: str, sequence: bool) -> None:
    is_one_process_step(two[0]["steps"][f"{kind}, sequence={sequence}"])


@pytest.mark.parametrize(("kind", "sequence"), [*itertools.product(KINDS_ON_FOUR, (False, True))])
def test_a_step_of_four_ranks_is_that_of_one_process(four: list[dict[str, Any]], kind: str, sequence: bool) -> None:
    is_one_process_step(four[0]["steps"][f"{kind}, sequence={sequence}"])


def test_a_step_with_recomputation_is_that_of_one_process(two: list[dict[str, Any]]) -> None:
    assert len(two[0]["recomputed"]) == 40
    for found in two[0]["recomputed"].values():
        is_one_process_step(found)


def test_collectives_run_again_only_where_everything_does(two: list[dict[str, Any]]) -> None:
    """Two blocks of two regions. What is gathered is gathered once more in the backward pass, not kept."""
    found = two[0]["collectives"]
    assert found["nothing, sequence=False"] == {"all_reduce": 4 + 4}
    assert found["but products, sequence=False"] == found["nothing, sequence=False"]
    assert found["but sums, sequence=False"] == found["nothing, sequence=False"]
    assert found["attention, sequence=False"] == found["nothing, sequence=False"]  # it stops before its exit's sum
    assert found["blocks, sequence=False"] == {"all_reduce": 4 + 4 + 2}
    # Into regions, back out of them, once more for the weights; and at the beginning and the end.
    assert found["nothing, sequence=True"] == {
        "all_gather_into_tensor": 4 + 4 + 4 + 2,
        "reduce_scatter_tensor": 4 + 4,
    }
    assert found["but products, sequence=True"] == found["nothing, sequence=True"]
    assert found["blocks, sequence=True"] == {"all_gather_into_tensor": 14 + 4, "reduce_scatter_tensor": 8 + 2}
    assert found["but sums, sequence=True"] == {"all_gather_into_tensor": 14 + 4, "reduce_scatter_tensor": 8}
    assert found["but own products, sequence=True"] == {"all_gather_into_tensor": 14, "reduce_scatter_tensor": 8 + 2}


def test_recomputation_draws_the_masks_again_and_leaves_random_numbers_where_they_were(
    two: list[dict[str, Any]],
) -> None:
    first, second = (each["dropped"] for each in two)
    assert not isinstance(first, str), first
    assert any("half of a region" in name for name in first)
    for name, found in first.items():
        assert found["error"] == 0.0, name
        assert torch.equal(found["stands"], second[name]["stands"]), name
        assert torch.equal(found["stands"], found["stands after backward"]), name
        assert found["loss"] == second[name]["loss"], name
    losses = {name: found["loss"] for name, found in first.items() if "nothing" in name}
    assert losses["gpt2, nothing, sequence=False"] != losses["gpt2, nothing, sequence=True"]


INSIDE = ("blocks.0.attention.core.dropout", "blocks.0.inner", "blocks.1.attention.core.dropout", "blocks.1.inner")
BETWEEN = ("blocks.0.after", "blocks.1.after")


@pytest.mark.parametrize("sequence", [False, True])
def test_masks_agree_between_ranks_where_values_do_and_are_independent_where_they_differ(
    two: list[dict[str, Any]], sequence: bool
) -> None:
    first, second = (each["masks"][f"sequence={sequence}"]["forward"] for each in two)
    assert set(first) == {"dropout", *INSIDE, *BETWEEN}
    for name, own in first.items():
        for mask, other in zip(own, second[name], strict=True):
            if name == "dropout" or (name in BETWEEN and not sequence):
                assert torch.equal(mask, other), name
            else:
                kept = torch.ones_like(mask) if "core" not in name else _past(mask)
                independent(mask[kept], other[kept])


@pytest.mark.parametrize("sequence", [False, True])
def test_masks_of_different_layers_are_independent(two: list[dict[str, Any]], sequence: bool) -> None:
    drawn = two[0]["masks"][f"sequence={sequence}"]["forward"]
    for name in (*INSIDE, *BETWEEN):
        if name.startswith("blocks.0"):
            mask, other = drawn[name][0], drawn[name.replace("blocks.0", "blocks.1")][0]
            kept = torch.ones_like(mask) if "core" not in name else _past(mask)
            independent(mask[kept], other[kept])


@pytest.mark.parametrize("sequence", [False, True])
def test_a_recomputed_mask_is_the_same_one(two: list[dict[str, Any]], sequence: bool) -> None:
    for rank in two:
        drawn = rank["masks"][f"sequence={sequence}"]
        for name in (*INSIDE, *BETWEEN):
            again = drawn["again"][name]
            assert again, name
            for mask, one in zip(drawn["forward"][name], again, strict=False):
                assert torch.equal(mask, one), name


def _past(mask: torch.Tensor) -> torch.Tensor:
    """Where attention looks: elsewhere everything is zero."""
    return torch.ones_like(mask).tril()


def test_fused_steps_with_clipping_and_a_stop_in_between_are_those_of_one_process(two: list[dict[str, Any]]) -> None:
    found = two[0]["trained"]
    assert not isinstance(found, str), found
    assert found["norm"] < 2e-6
    assert found["movement"] < 1e-5


def test_a_number_of_tokens_that_ranks_cannot_share_is_an_error_and_the_next_batch_trains(
    two: list[dict[str, Any]],
) -> None:
    for rank in two:
        good, bad, again = rank["refused tokens"]["said"]
        assert (good, again) == ("", "")
        assert "17 tokens and 2 ranks" in bad


def test_ranks_with_different_plans_are_told_and_do_not_wait_for_each_other(two: list[dict[str, Any]]) -> None:
    for rank in two:
        assert "must find the same way to slice the same model" in rank["different plans"]["said"]


def test_a_state_of_four_ranks_loads_on_two_and_data_parallel_training_goes_around_them(
    four: list[dict[str, Any]],
) -> None:
    for rank in four:
        found = rank["degrees"]
        assert not isinstance(found, str), found
        assert found["state"] == 0.0
        assert found["plain"] == 0.0
        assert 0.0 < found["fsdp"] < 1e-5
    assert 0.0 < four[0]["degrees"]["ddp"] < 2e-6


def test_under_autocast_ranks_are_no_farther_from_float32_than_one_process(two: list[dict[str, Any]]) -> None:
    found = two[0]["mixed"]
    assert not isinstance(found, str), found
    for sequence in (False, True):
        assert found[f"ranks, sequence={sequence}"] < 1.5 * found[f"one process, sequence={sequence}"]


def test_a_sliced_vocabulary_trains_alike_and_tied_weights_stay_tied(two: list[dict[str, Any]]) -> None:
    assert len(two[0]["vocabulary"]) == 8
    for name, found in two[0]["vocabulary"].items():
        assert found["loss"] < 1e-6, name
        assert 0.0 < found["gradients"] < 2e-6, name
        assert found["state"] == 0.0, name
        assert found["tied"] == name.startswith("gpt2"), name
        assert found["rows"] == VOCABULARY // 2, name


@pytest.mark.parametrize(
    ("form", "size"), [*itertools.product(FORMS, DEGREES)], ids=lambda one: getattr(one, "name", one)
)
def test_a_block_keeps_the_bytes_of_the_formula(
    two: list[dict[str, Any]], four: list[dict[str, Any]], form: Form, size: int
) -> None:
    for rank in two if size == 2 else four:
        found = rank["bytes"][form.name]
        assert found == pytest.approx(SAMPLES * TOKENS * WIDTH * form.bytes_at(size), rel=0.02)


def test_a_rehearsal_ends_for_all_ranks_when_one_fails() -> None:
    def run(ranks: Any) -> torch.Tensor:
        if ranks.rank == 1:
            raise ValueError("of one rank")
        return ranks.summed(torch.ones(1))

    with pytest.raises(ValueError, match="of one rank"):
        in_threads(3, run)
