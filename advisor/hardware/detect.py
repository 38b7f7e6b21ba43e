"""Find the devices that momadvise can measure on. Uses no torch and no CUDA context."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from typing import Any, NamedTuple

import psutil

from advisor.errors import HardwareError
from advisor.hardware.cuda_driver import Gpu, GpuList
from advisor.hardware.gpus import list_gpus
from advisor.hardware.hardware import DeviceKind, Hardware
from advisor.hardware.host import cpu_name, host_fields
from advisor.hardware.profiles import match_profile
from advisor.hardware.torch_build import architectures_of_torch, cuda_version_of_torch
from advisor.text.printable import quoted

__all__ = ["SIMULATED", "DeviceChoice", "choose_device", "detect_hardware", "list_devices"]

SIMULATED = "MOMADVISE_SIMULATED_DEVICE"
"""Set by what emulates CUDA devices in software, to anything but 0: what runs on them is not called measured."""

_EVERY_BUILD = (7, 5), (10, 0)
"""Range of capabilities (the upper end excluded) for which every supported build of torch has kernels; for others, ask
torch."""


class DeviceChoice(NamedTuple):
    """The device to use when none is given, by torch's name, and why it was chosen, as a clause."""

    device: str
    reason: str


def detect_hardware(
    device: str | None = None, *, nvml: Any = None, environment: Mapping[str, str] | None = None
) -> Hardware:
    """Describe the device to train on.

    Args:
        device: ``"cpu"``, ``"cuda"``, ``"cuda:1"``, or ``None`` to take the first GPU that torch can use, else the CPU.
        nvml: The ``pynvml`` module, or something that behaves like it.
        environment: The environment to read ``CUDA_VISIBLE_DEVICES`` and ``SIMULATED`` from.

    Raises:
        HardwareError: The device does not exist, or the installed torch cannot use it.
    """
    if device is None or device == "auto":
        device = choose_device(nvml=nvml, environment=environment).device
    if device == "cpu":
        return _cpu()
    matched = re.fullmatch(r"cuda(?::([0-9]{1,9}))?", device) if isinstance(device, str) else None
    if matched is None:
        found = ", ".join(f"{one.device} ({one.name})" for one in list_devices(nvml=nvml, environment=environment))
        raise HardwareError(f"a device must be cpu, cuda or cuda:N, but got {quoted(device)}. Found: {found}.")
    visible = list_gpus(nvml, environment)
    index = int(matched.group(1) or 0)
    if not visible.gpus:
        raise HardwareError(f"{device} needs a GPU, but {visible.reason}. Use --device cpu, or leave --device out.")
    if index >= len(visible.gpus):
        valid = ", ".join(f"cuda:{gpu.index} ({gpu.name})" for gpu in visible.gpus)
        raise HardwareError(f"a GPU must be one of {valid}, but got {device!r}.")
    if obstacle := _obstacle(visible.gpus[index], visible):
        raise HardwareError(
            f"{device} needs a torch that can use it, but {obstacle.reason}. {obstacle.fix}, or use --device cpu."
        )
    return _cuda(visible.gpus[index], visible, environment)


def choose_device(*, nvml: Any = None, environment: Mapping[str, str] | None = None) -> DeviceChoice:
    """Choose the first GPU that the installed torch can use, else the CPU, and give the reason."""
    found = list_gpus(nvml, environment)
    if not found.gpus:
        return DeviceChoice("cpu", found.reason)
    usable = next((gpu.index for gpu in found.gpus if _obstacle(gpu, found) is None), None)
    if usable is not None:
        place = "the first that torch can use" if usable else "the first"
        reason = f"{place} of {len(found.gpus)} visible GPU(s), and {cuda_version_of_torch()[1]}"
        return DeviceChoice(f"cuda:{usable}", reason)
    obstacle = _obstacle(found.gpus[0], found)
    assert obstacle is not None
    return DeviceChoice("cpu", f"there is a {found.gpus[0].name}, but {obstacle.reason}")


def list_devices(*, nvml: Any = None, environment: Mapping[str, str] | None = None) -> list[Hardware]:
    """Every visible GPU, then the CPU."""
    found = list_gpus(nvml, environment)
    return [*(_cuda(gpu, found, environment) for gpu in found.gpus), _cpu()]


class _Obstacle(NamedTuple):
    """Why the installed torch cannot use a GPU, and what to do."""

    reason: str
    fix: str


def _obstacle(gpu: Gpu, found: GpuList) -> _Obstacle | None:
    version, build = cuda_version_of_torch()
    if version is None:
        return _Obstacle(build, "Install a CUDA build (see pytorch.org/get-started)")
    major = int(version.partition(".")[0])
    # Within a major version, CUDA runs on every driver.
    if found.cuda_version is not None and found.cuda_version[0] < major:
        newest = ".".join(map(str, found.cuda_version))
        return _Obstacle(
            f"{build}, and the driver ({gpu.driver_version}) is for CUDA {newest} at most",
            f"Update the driver, or install a torch that is built for CUDA {found.cuda_version[0]}",
        )
    if _EVERY_BUILD[0] <= gpu.compute_capability < _EVERY_BUILD[1]:
        return None
    compiled = architectures_of_torch()
    if not compiled or any(_runs(name, gpu.compute_capability) for name in compiled):
        return None
    capability = ".".join(map(str, gpu.compute_capability))
    age = "an older" if gpu.compute_capability < _EVERY_BUILD[0] else "a newer"
    return _Obstacle(
        f"torch has no kernels for the {gpu.name}, of compute capability {capability} (it has {', '.join(compiled)})",
        f"Install a torch that is built for {age} CUDA (see pytorch.org/get-started)",
    )


def _runs(compiled: str, capability: tuple[int, int]) -> bool:
    """Whether a GPU runs compiled code: binaries for its major version, or PTX that the driver compiles."""
    matched = re.fullmatch(r"(sm|compute)_(\d+)(\d)([a-z]?)", compiled)
    if matched is None:
        return False
    kind, major, minor, alone = matched.groups()
    made_for = int(major), int(minor)
    if alone:
        return capability == made_for
    return made_for <= capability and (kind == "compute" or made_for[0] == capability[0])


def _cuda(gpu: Gpu, found: GpuList, environment: Mapping[str, str] | None) -> Hardware:
    return Hardware(
        kind=DeviceKind.CUDA,
        device=f"cuda:{gpu.index}",
        name=gpu.name,
        memory_bytes=gpu.memory_bytes,
        free_bytes=gpu.free_bytes,
        held_bytes=gpu.held_bytes,
        device_count=len(found.gpus),
        compute_capability=gpu.compute_capability,
        driver_version=gpu.driver_version,
        profile=match_profile(DeviceKind.CUDA, gpu.name),
        simulated=(os.environ if environment is None else environment).get(SIMULATED, "0") not in ("", "0"),
        **host_fields(),
    )


def _cpu() -> Hardware:
    host, name = host_fields(), cpu_name()
    return Hardware(
        kind=DeviceKind.CPU,
        device="cpu",
        name=name,
        memory_bytes=host["host_memory_bytes"],
        free_bytes=host["host_free_bytes"],
        held_bytes=_held_here(),
        profile=match_profile(DeviceKind.CPU, name),
        **host,
    )


def _held_here() -> int:
    """Host memory of this process that a training does not account for; without torch a few megabytes, so none."""
    return int(psutil.Process().memory_info().rss) if "torch" in sys.modules else 0
