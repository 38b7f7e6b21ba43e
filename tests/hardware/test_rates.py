from __future__ import annotations

import msgspec
import pytest

from advisor.hardware.profiles import load_profiles
from advisor.hardware.rates import Bandwidth, DeviceRates


def test_a_bandwidth_lies_between_its_points_and_stays_beyond_them() -> None:
    bandwidth = Bandwidth(sizes=(100.0, 10_000.0), bytes_per_second=(30.0, 10.0))
    assert bandwidth.at(100) == 30
    assert bandwidth.at(1000) == pytest.approx(20)
    assert bandwidth.at(0) == 30
    assert bandwidth.at(1e9) == 10


def test_the_rates_of_a_profile_are_its_published_figures() -> None:
    rates = DeviceRates.of_profile(load_profiles()["h100_80gb_sxm"])
    assert rates is not None
    profile = load_profiles()["h100_80gb_sxm"]
    assert rates.matmul("bfloat16") == profile.bf16_rate.base_value
    assert rates.convolution("tf32") == profile.tf32_rate.base_value
    assert rates.bandwidth.at(2**30) == profile.memory_bandwidth.base_value
    assert rates.to_host_bytes_per_second == profile.host_link_bandwidth.base_value
    assert rates.launch_seconds is None
    assert not rates.measured


@pytest.mark.parametrize("name", sorted(load_profiles()))
def test_every_profile_has_rates(name: str) -> None:
    rates = DeviceRates.of_profile(load_profiles()[name])
    assert rates is not None
    assert rates.matmul("float32") > 0


def test_a_format_that_a_device_lacks_is_computed_in_float32() -> None:
    rates = DeviceRates.of_profile(load_profiles()["v100_16gb"])
    assert rates is not None
    assert rates.matmul("bfloat16") == rates.matmul("float32") < rates.matmul("float16")


def test_without_a_published_bandwidth_there_are_no_rates() -> None:
    profile = load_profiles()["l4"]
    unknown = msgspec.structs.replace(profile.memory_bandwidth, value=None, note="no document found gives it")
    assert DeviceRates.of_profile(msgspec.structs.replace(profile, memory_bandwidth=unknown)) is None
