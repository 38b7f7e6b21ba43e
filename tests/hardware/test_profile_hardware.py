"""A GPU that is not here, from its published figures."""

from __future__ import annotations

import pytest

from advisor.errors import OptionError
from advisor.hardware.hardware import DeviceKind
from advisor.hardware.profile_hardware import find_profile, hardware_of


def test_a_profile_becomes_a_device_with_all_of_its_memory_free() -> None:
    hardware = hardware_of(find_profile("h100_80gb_sxm")[0])
    assert hardware.kind is DeviceKind.CUDA
    assert hardware.memory_bytes == hardware.free_bytes == 80 * 10**9
    assert hardware.compute_capability == (9, 0)
    assert hardware.profile == "h100_80gb_sxm"
    assert hardware.host_memory_bytes > 0
    assert hardware.driver_version is None


def test_a_name_of_its_own_leaves_nothing_to_say() -> None:
    for name in ("h100_80gb_pcie", "a100_80gb", "H100-80GB-PCIe"):
        profile, note = find_profile(name)
        assert profile.name == name.lower().replace("-", "_")
        assert note == ""


@pytest.mark.parametrize("name", ["h100_80gb", "h100", "H100-80GB"])
def test_variants_with_the_same_memory_are_the_fastest_of_them_and_the_others_are_named(name: str) -> None:
    profile, note = find_profile(name)
    assert profile.name == "h100_80gb_sxm"
    assert note == f"{name} was taken for h100_80gb_sxm; with as much memory there is also --profile h100_80gb_pcie."


def test_the_beginning_of_one_name_is_that_one() -> None:
    profile, note = find_profile("rtx")
    assert profile.name == "rtx_4090"
    assert note == "rtx was taken for rtx_4090."


def test_a_name_that_is_not_quite_right_gets_the_ones_that_may_be_meant() -> None:
    with pytest.raises(OptionError, match=r"got 'v100'. Did you mean v100_16gb or v100_32gb\?"):
        find_profile("v100")
    with pytest.raises(OptionError, match=r"Did you mean .*v100_16gb"):
        find_profile("v100_61gb")


def test_an_unknown_name_gets_all_of_them_and_a_cpu_is_none() -> None:
    with pytest.raises(OptionError, match=r"--profile must be one of a100_40gb, .*rtx_4090.*, but got 'cpu'\.$"):
        find_profile("cpu")
    with pytest.raises(OptionError, match=r"but got ''\.$"):
        find_profile("")
