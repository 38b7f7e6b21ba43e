"""Models that ranks slice train as in one process, with every other method that declares no conflict, on every mesh."""

from __future__ import annotations

import functools
from typing import Any

import pytest

from tests.distributed.models import Case, movement_error, two_groups
from tests.distributed.ranks import Launcher
from tests.methods.quick_compiler import quick_compiler
from tests.methods.tiny import import_bitsandbytes, uncompiled_optimizers
from tests.tensor_parallel import policies
from tests.tensor_parallel.policies import CASES, MODELS, ON_FOUR, begun, trained

pytestmark = pytest.mark.slow

Found = list[dict[Any, Any]]


@pytest.fixture(scope="module")
def on_two(launcher: Launcher, tmp_path_factory: pytest.TempPathFactory) -> Found:
    return launcher.run(policies.on_two, 2, tmp_path_factory.mktemp("policies"))


@pytest.fixture(scope="module")
def on_four(launcher: Launcher, tmp_path_factory: pytest.TempPathFactory) -> Found:
    return launcher.run(policies.on_four, 4, tmp_path_factory.mktemp("meshes"))


def _alone(model: str, case: Case) -> dict[str, Any]:
    settings = ", ".join(setting.label for setting in case.single)
    key = f"{settings}; {case.micro_batch}; {case.clip}; {case.build_optimizer.__name__}"
    return _known(model, key, Held(case))


class Held:
    """A case that is no part of a key."""

    def __init__(self, case: Case) -> None:
        self.case = case

    def __eq__(self, other: object) -> bool:
        return True

    def __hash__(self) -> int:
        return 0


@functools.cache
def _known(model: str, key: str, held: Held) -> dict[str, Any]:
    import_bitsandbytes()
    with uncompiled_optimizers(), quick_compiler():
        return trained(model, held.case, None)


def trains_alike(found: Any, model: str, case: Case) -> None:
    assert not isinstance(found, str), found
    plain = _alone(model, case)
    assert found["same"], "ranks that are to hold the same parameters do not"
    assert list(found["model"]) == list(plain["model"])
    assert found["optimizer"]["state"].keys() == plain["optimizer"]["state"].keys()
    assert movement_error(found["model"], plain["model"], MODELS[model][0]()) < case.tolerance


@pytest.mark.parametrize("key", CASES, ids=": ".join)
def test_training_on_two_ranks_is_that_of_one_process(on_two: Found, key: tuple[str, str]) -> None:
    trains_alike(on_two[0][key], key[0], CASES[key])


@pytest.mark.parametrize("name", ON_FOUR)
def test_training_on_a_mesh_of_four_ranks_is_that_of_one_process(on_four: Found, name: str) -> None:
    trains_alike(on_four[0][name], "gpt2", ON_FOUR[name][0])


def test_a_state_goes_from_mesh_to_mesh_and_into_a_plain_training(on_four: Found) -> None:
    found = on_four[0]["from mesh to mesh"]
    assert not isinstance(found, str), found
    case = Case((), build_optimizer=two_groups)
    plain = begun("gpt2", case, None)
    for _ in range(3):
        plain.step(MODELS["gpt2"][1](0))
    start = MODELS["gpt2"][0]()
    assert movement_error(found["model"], plain.state_dict()["model"], start) < 1e-4
    resumed = begun("gpt2", case, None)
    resumed.load_state_dict(found)
    for training in (plain, resumed):
        training.step(MODELS["gpt2"][1](1))
    assert movement_error(resumed.state_dict()["model"], plain.state_dict()["model"], start) < 1e-4


@pytest.fixture(scope="module")
def guarded(launcher: Launcher, tmp_path_factory: pytest.TempPathFactory) -> Found:
    return launcher.run(policies.guards, 2, tmp_path_factory.mktemp("guards"))


def test_ranks_with_other_samples_or_without_a_plan_are_all_told(guarded: Found) -> None:
    for rank in guarded:
        assert "must be given the same samples" in rank["other samples"]
        assert "apply_policy(..., example_batch=batch)" in rank["no batch"]
        assert rank["rank without a batch"] == ""


def test_a_degree_that_does_not_divide_the_heads_is_refused_before_anything_is_sliced(guarded: Found) -> None:
    for rank in guarded:
        assert "which 3 ranks cannot share evenly" in rank["heads"]


def test_a_step_is_left_out_on_all_ranks_when_a_slice_of_one_overflows(guarded: Found) -> None:
    assert [rank["overflow"] for rank in guarded] == [{"still": True, "scale": 0.5}] * 2


def test_the_whole_model_never_stands_on_the_device(guarded: Found) -> None:
    """Norms, the biases that are added after sums, and the embedding of positions are whole."""
    assert [0.5 < rank["moved"] < 0.53 for rank in guarded] == [True, True]
