"""What methods declare about the time of a step: the weak prior of the search."""

from __future__ import annotations

import pytest

from advisor.methods.base import Method
from advisor.methods.catalogue import CATALOGUE, get_method
from advisor.methods.compose import settings_of
from advisor.methods.expected_time import expected_time_ratio
from advisor.methods.use import use
from advisor.problem.hardware import DeviceKind
from tests.methods.tiny import cpu

CPU = cpu()
GPU = cpu(kind=DeviceKind.CUDA, device="cuda:0", name="a GPU")


@pytest.mark.parametrize("method", CATALOGUE, ids=lambda method: method.name)
def test_every_setting_has_a_ratio_that_is_possible(method: Method) -> None:
    for parameter in method.parameters:
        assert set(parameter.time_ratio) <= set(parameter.choices), parameter.name
    for setting in settings_of(method):
        assert 0.3 < expected_time_ratio(method, setting, GPU) < 4


def test_recomputing_all_blocks_is_a_third_more_and_fewer_blocks_are_less() -> None:
    checkpoint = get_method("checkpoint")
    ratios = [expected_time_ratio(checkpoint, use("checkpoint", every=every), GPU) for every in (1, 2, 3, 4)]
    assert ratios[0] == pytest.approx(4 / 3, rel=0.01)
    assert ratios == sorted(ratios, reverse=True)
    assert ratios[1] == pytest.approx(7 / 6, rel=0.01)


def test_on_a_cpu_costs_are_expected_and_gains_are_not() -> None:
    precision, checkpoint = get_method("precision"), get_method("checkpoint")
    half, every = use("precision", dtype="bf16"), use("checkpoint", every=1)
    assert expected_time_ratio(precision, half, GPU) < 1 == expected_time_ratio(precision, half, CPU)
    assert expected_time_ratio(checkpoint, every, CPU) == expected_time_ratio(checkpoint, every, GPU) > 1
