"""Hardware profiles: a device's published values, each with its source and date.

A profile never contains measurements: predictions start from it, but recommendations are not based on it.
"""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import Generic, TypeVar

import msgspec

from advisor.errors import OptionError
from advisor.goal import Price
from advisor.hardware.hardware import DeviceKind
from advisor.package_data import data_folder

__all__ = ["Fact", "Figure", "Profile", "load_profile", "load_profiles", "match_profile", "resolve_price"]

_T = TypeVar("_T")

_SCALE = {
    "GB": 1e9,
    "GiB": float(2**30),
    "GB/s": 1e9,
    "TB/s": 1e12,
    "TFLOPS": 1e12,
    "USD/hour": 1.0,
}


class Figure(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One published value.

    Attributes:
        value: The number, or ``None`` if no source gives it (``note`` says why) or the device lacks the feature.
        unit: One of GB, GiB, GB/s, TB/s, TFLOPS, USD/hour.
        source: Name and address of the document.
        date: Date of the document, or of its retrieval, as stated.
        note: How the value was derived, or which variant it is for.
    """

    value: float | None
    unit: str
    source: str
    date: str
    note: str = ""

    def __post_init__(self) -> None:
        if self.unit not in _SCALE:
            raise ValueError(f"a unit must be one of {', '.join(_SCALE)}, but got {self.unit!r}")
        if self.value is not None and self.value <= 0:
            raise ValueError(f"a figure must be positive, or null where there is none, but got {self.value}")
        if self.value is None and not self.note:
            raise ValueError("a figure without a value must have a note that says why")

    @property
    def base_value(self) -> float | None:
        """The value in bytes, bytes per second, operations per second, or dollars per hour."""
        return None if self.value is None else self.value * _SCALE[self.unit]


class Fact(msgspec.Struct, Generic[_T], frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A published value without a unit, with its source, date and note as in :class:`Figure`."""

    value: _T
    source: str
    date: str
    note: str = ""


class Profile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The published values of one device. Matrix rates are dense: half of the number "with sparsity".

    Attributes:
        schema: Version of this format.
        name: The file's name.
        title: The device for people.
        matches: Regular expressions that must match the whole of NVML's (or the CPU's) name.
        compute_capability: ``(major, minor)`` of a CUDA device, else ``None``.
        multiprocessors: Of a CUDA device, else ``None``.
        fp32_rate: Floating-point operations per second of float32 without tensor cores.
        tf32_rate: With tensor cores in TF32.
        bf16_rate: With tensor cores in bfloat16.
        fp16_rate: With tensor cores in float16.
        fp8_rate: With tensor cores in 8-bit floats.
        host_link_bandwidth: Between host and device, one direction.
        gpu_link_bandwidth: Between GPUs, one direction.
        price: On-demand list price of one device.
    """

    schema: int
    name: str
    title: str
    kind: DeviceKind
    matches: tuple[str, ...]
    compute_capability: Fact[tuple[int, int]] | None = None
    multiprocessors: Fact[int] | None = None
    memory: Figure
    memory_bandwidth: Figure
    fp32_rate: Figure
    tf32_rate: Figure
    bf16_rate: Figure
    fp16_rate: Figure
    fp8_rate: Figure
    host_link_bandwidth: Figure
    gpu_link_bandwidth: Figure
    price: Figure

    def __post_init__(self) -> None:
        if self.schema != 1:
            raise ValueError(f"the schema of a profile must be 1, but got {self.schema}")
        if (self.compute_capability is None) is (self.kind is DeviceKind.CUDA):
            raise ValueError("a CUDA device, and no other, must have a compute capability")
        if (self.multiprocessors is None) is (self.kind is DeviceKind.CUDA):
            raise ValueError("a CUDA device, and no other, must have multiprocessors")


def load_profile(path: Path) -> Profile:
    """Read and validate one profile.

    Raises:
        msgspec.ValidationError: The file does not follow the schema.
    """
    return msgspec.yaml.decode(path.read_bytes(), type=Profile)


@functools.cache
def load_profiles() -> dict[str, Profile]:
    """Every profile by name."""
    return {path.stem: load_profile(path) for path in sorted(data_folder("profiles").glob("*.yaml"))}


def match_profile(kind: DeviceKind, device_name: str) -> str | None:
    """The name of a device's profile; ``None`` if there is none, or the device is only part of one (MIG).

    Args:
        kind: CPU or CUDA.
        device_name: The name by NVML or the operating system.
    """
    profiles = (profile for profile in load_profiles().values() if profile.kind is kind)
    found = (one.name for one in profiles if any(re.fullmatch(pattern, device_name) for pattern in one.matches))
    return next(found, None)


def resolve_price(given: Price | None, profile: Profile | None, *, device_name: str) -> Price:
    """The price that was given, or that of the device's profile, whose source begins with the profile's file.

    Raises:
        OptionError: There is no price; the message says why the profile has none.
    """
    if given is not None:
        return given
    why = "there is no profile of this device"
    if profile is not None:
        figure, file = profile.price, f"profiles/{profile.name}.yaml"
        if figure.value is not None:
            return Price(usd_per_hour=figure.value, source=f"{file}: {figure.source}", date=figure.date)
        why = f"{file} has none: {figure.note}"
    raise OptionError(
        f"--goal cheapest needs the price of an hour of one device, but {why} (device: {device_name}). "
        "Say it with --price USD, e.g. --price 2.49."
    )
