"""A GPU that is not here, from its published figures."""

from __future__ import annotations

import pytest

from advisor.errors import OptionError
from advisor.problem.hardware import DeviceKind
from advisor.problem.profile_hardware import find_profile, hardware_of


def test_a_profile_becomes_a_device_with_all_of_its_memory_free() -> None:
    hardware = hardware_of(find_profile("h100_80gb_sxm"))
    assert hardware.kind is DeviceKind.CUDA
    assert hardware.memory_bytes == hardware.free_bytes == 80 * 10**9
    assert hardware.compute_capability == (9, 0)
    assert hardware.profile == "h100_80gb_sxm"
    assert hardware.host_memory_bytes > 0
    assert hardware.driver_version is None


def test_a_name_that_is_not_quite_right_gets_the_ones_that_may_be_meant() -> None:
    with pytest.raises(OptionError, match=r"got 'h100_80gb'. Did you mean h100_80gb_pcie or h100_80gb_sxm\?"):
        find_profile("h100_80gb")
    with pytest.raises(OptionError, match=r"Did you mean .*v100_16gb"):
        find_profile("v100_16g")


def test_an_unknown_name_gets_all_of_them_and_a_cpu_is_none() -> None:
    with pytest.raises(OptionError, match=r"--profile must be one of a100_40gb, .*rtx_4090.*, but got 'cpu'\.$"):
        find_profile("cpu")
