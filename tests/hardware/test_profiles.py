"""Profiles: every figure has a unit, a source and a date, and every device name finds its own."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from advisor.hardware.hardware import DeviceKind
from advisor.hardware.profiles import Figure, Profile, load_profile, load_profiles, match_profile
from advisor.package_data import data_folder

NO_FIGURES = ("schema", "name", "title", "kind", "matches", "compute_capability", "multiprocessors")
FIGURES = [name for name in Profile.__struct_fields__ if name not in NO_FIGURES]
UNITS = {"memory": {"GB", "GiB"}, "price": {"USD/hour"}}


@pytest.fixture(params=sorted(load_profiles()))
def profile(request: pytest.FixtureRequest) -> Profile:
    return load_profiles()[request.param]


def test_the_devices_that_people_train_on_are_there() -> None:
    assert set(load_profiles()) >= {
        "h100_80gb_sxm", "h200", "a100_80gb", "a100_40gb", "v100_16gb", "v100_32gb", "l4", "rtx_4090", "cpu"
    }  # fmt: skip


def test_a_profile_is_named_as_its_file(profile: Profile) -> None:
    assert (data_folder("profiles") / f"{profile.name}.yaml").is_file()
    assert profile.title


@pytest.mark.parametrize("name", FIGURES)
def test_every_figure_has_unit_source_and_date(profile: Profile, name: str) -> None:
    figure: Figure = getattr(profile, name)
    expected = UNITS.get(name, {"TFLOPS"} if name.endswith("_rate") else {"GB/s", "TB/s"})
    assert figure.unit in expected
    assert re.search(r"\b20\d\d(-\d\d(-\d\d)?)?\b", figure.date), figure.date
    assert len(figure.source) > 10
    assert figure.value is None or "https://" in figure.source, "a number comes from a document with an address"


def test_the_figures_of_a_device_are_in_proportion(profile: Profile) -> None:
    if profile.kind is DeviceKind.CPU:
        pytest.skip("depends on the machine")
    rates = [profile.fp32_rate, profile.tf32_rate, profile.bf16_rate, profile.fp8_rate]
    known = [rate.base_value for rate in rates if rate.base_value is not None]
    assert known == sorted(known), "fewer bits are never slower"
    assert profile.memory.base_value is not None
    assert profile.memory_bandwidth.base_value is not None
    assert 1e9 < profile.memory.base_value < 1e12
    assert 1e11 < profile.memory_bandwidth.base_value < 1e13


@pytest.mark.parametrize(
    ("device", "expected"),
    [
        ("NVIDIA H100 80GB HBM3", "h100_80gb_sxm"),
        ("NVIDIA H200", "h200"),
        ("NVIDIA A100-SXM4-80GB", "a100_80gb"),
        ("NVIDIA A100-SXM4-40GB", "a100_40gb"),
        ("Tesla V100-SXM2-16GB", "v100_16gb"),
        ("Tesla V100-SXM2-32GB", "v100_32gb"),
        ("NVIDIA L4", "l4"),
        ("NVIDIA GeForce RTX 4090", "rtx_4090"),
        ("NVIDIA L40S", None),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", None),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", None),
    ],
)
def test_a_device_finds_its_profile_by_name(device: str, expected: str | None) -> None:
    assert match_profile(DeviceKind.CUDA, device) == expected


def test_no_two_profiles_match_the_same_device() -> None:
    patterns = [(p.kind, pattern) for p in load_profiles().values() for pattern in p.matches]
    assert len(patterns) == len(set(patterns))


def test_any_cpu_finds_the_profile_of_a_cpu() -> None:
    assert match_profile(DeviceKind.CPU, "Some CPU @ 2.00GHz") == "cpu"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{value: 1, unit: parsecs, source: s, date: d}", "a unit must be one of"),
        ("{value: 0, unit: GB, source: s, date: d}", "must be positive"),
        ("{value: null, unit: GB, source: s, date: d}", "must have a note"),
        ("{value: 1, unit: GB, source: s}", "date"),
    ],
)
def test_a_malformed_figure_is_refused(tmp_path: Path, line: str, said: str) -> None:
    text = (data_folder("profiles") / "l4.yaml").read_text()
    path = tmp_path / "x.yaml"
    path.write_text(re.sub(r"(?m)^memory:\n(  .*\n)+", f"memory: {line}\n", text))
    with pytest.raises(msgspec.ValidationError, match=said):
        load_profile(path)


def test_every_gpu_has_its_compute_capability_with_its_source(profile: Profile) -> None:
    capability = profile.compute_capability
    if profile.kind is DeviceKind.CPU:
        assert capability is None
        return
    assert capability is not None
    assert (7, 0) <= capability.value <= (9, 0)
    assert capability.source.startswith("https://developer.nvidia.com/")
    assert re.search(r"\b20\d\d\b", capability.date)


def test_every_gpu_has_its_multiprocessors_with_their_source(profile: Profile) -> None:
    """As many as its published rate of float32 takes: 128 lanes in each since Ada and Hopper, 64 before."""
    count = profile.multiprocessors
    if profile.kind is DeviceKind.CPU:
        assert count is None
        return
    assert count is not None
    assert profile.compute_capability is not None
    assert profile.fp32_rate.base_value is not None
    lanes = 64 if profile.compute_capability.value < (8, 9) else 128
    assert 1.2e9 < profile.fp32_rate.base_value / (2 * lanes * count.value) < 2.7e9, "the clock"
    assert count.source.startswith("https://")
    assert re.search(r"\b20\d\d\b", count.date)
