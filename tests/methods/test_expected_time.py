"""What methods declare about the time of a step: the weak prior of the search."""

from __future__ import annotations

import pytest

from advisor.hardware.hardware import DeviceKind
from advisor.methods.base import Method
from advisor.methods.catalogue import CATALOGUE, get_method
from advisor.methods.compose import settings_of
from advisor.methods.expected_time import expected_time_ratio
from advisor.methods.number_formats import FLOAT_FORMAT, format_of
from advisor.methods.setting import use
from tests.methods.tiny import cpu, facts_of

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


def test_on_a_cpu_what_a_method_says_of_cpus_is_expected() -> None:
    for name in ("retain_freed_memory", "fused_optimizer"):
        assert expected_time_ratio(get_method(name), use(name), CPU) < 1


@pytest.mark.parametrize("rate", [0.31, 0.8, 1.0, 2.0, 16.0])
def test_what_a_format_is_expected_to_gain_follows_from_its_measured_rate(rate: float) -> None:
    facts = facts_of("convnet", matmul_flops_per_second={"float32": 1e11, "bfloat16": rate * 1e11})
    for setting in (use("precision", dtype="bf16"), use("pure_bf16", rounding="stochastic")):
        method = get_method(setting.name)
        for device in (CPU, GPU):
            ratio = expected_time_ratio(method, setting, device, facts)
            assert (ratio > 1) == (rate < 0.85)
            assert ratio >= 0.55, "no more than is declared of the best device"
    unknown = use("precision", dtype="tf32")
    precision = get_method("precision")
    assert expected_time_ratio(precision, unknown, GPU, facts) == expected_time_ratio(precision, unknown, GPU)


def test_methods_that_decide_the_float_format_declare_it_for_every_setting() -> None:
    for method in CATALOGUE:
        if method.decides == FLOAT_FORMAT:
            assert all(format_of(method, setting) for setting in settings_of(method)), method.name
    assert format_of(get_method("fsdp"), use("fsdp", reshard=True, mixed_precision="none", offload=False)) == ""
    assert format_of(get_method("fsdp"), use("fsdp", reshard=True, mixed_precision="bf16", offload=False)) == "bf16"
