"""Methods whose gradients are random: several ranks cannot be held against one step by step, only on the average."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from torch import nn

from advisor.methods.setting import MethodSetting, use
from advisor.training.processes.world import current_world
from tests.distributed.models import DDP, ZERO_1, ZERO_3, Case, padded_text, started, trained
from tests.distributed.ranks import Launcher, share
from tests.methods.tiny import gpt2, text

pytestmark = pytest.mark.slow

WAYS = {"ddp": DDP, "zero_1": ZERO_1, "zero_3": ZERO_3}
HALF = use("randomized_linear", keep=0.5)
DRAWS = 32


def on_each_rank() -> dict[str, Any]:
    """What the ranks bring back."""
    return {name: {"mean": _mean(way), "gone on": _gone_on(way)} for name, way in WAYS.items()}


def _mean(way: MethodSetting) -> dict[str, torch.Tensor]:
    """How far the parameters move in many small steps, in which they hardly change: the mean of the gradients."""
    training = started((HALF, way), current_world(), build=two_blocks, build_optimizer=small_steps)
    for _ in range(DRAWS):
        training.step(share(text(8, 32)))
    return training.state_dict()["model"]


def _gone_on(way: MethodSetting) -> dict[str, Any]:
    world = current_world()
    whole, _ = trained(Case((HALF, use("checkpoint", every=1), way)), world, share)
    first, second = (started((HALF, use("checkpoint", every=1), way), world) for _ in range(2))
    for step in range(2):
        first.step(share(padded_text(step)))
    gathered = [first.state_dict()]
    torch.distributed.broadcast_object_list(gathered)
    second.load_state_dict(gathered[0])
    second.step(share(padded_text(2)))
    return {"whole": whole, "resumed": second.state_dict()}


def two_blocks() -> nn.Module:
    """The fewest that can be sharded: what is averaged does not need more."""
    return gpt2(2, dropout=0.0)


def small_steps(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=1e-4)


@pytest.fixture(scope="module")
def found(launcher: Launcher, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return launcher.run(on_each_rank, 2, tmp_path_factory.mktemp("two"))


@functools.cache
def _alone() -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """Where the parameters begin, and how far those of a single process without the method move."""
    plain = started((), None, build=two_blocks, build_optimizer=small_steps)
    begin = {key: value.clone() for key, value in plain.state_dict()["model"].items()}
    for _ in range(DRAWS):
        plain.step(text(8, 32))
    return begin, {key: value.double() - begin[key].double() for key, value in plain.state_dict()["model"].items()}


@pytest.mark.parametrize("name", WAYS)
def test_the_mean_gradient_is_that_of_one_process(name: str, found: list[dict[str, Any]]) -> None:
    begin, exact = _alone()
    moved = {key: value.double() - begin[key].double() for key, value in found[0][name]["mean"].items()}
    wrong = sum(float((moved[key] - exact[key]).square().sum()) for key in exact)
    assert (wrong / sum(float(one.square().sum()) for one in exact.values())) ** 0.5 < 0.25


@pytest.mark.parametrize("name", WAYS)
def test_several_ranks_go_on_from_a_state_with_the_numbers_that_come_next(
    name: str, found: list[dict[str, Any]]
) -> None:
    whole, resumed = (found[0][name]["gone on"][key] for key in ("whole", "resumed"))
    assert resumed["randomized_linear"] == whole["randomized_linear"] == {"passes": 3}
    for key, value in whole["model"].items():
        torch.testing.assert_close(resumed["model"][key], value, rtol=1e-4, atol=1e-6)
