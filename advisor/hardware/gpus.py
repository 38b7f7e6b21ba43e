"""GPUs as reported by NVML, which opens no CUDA context and so takes no device memory."""

from __future__ import annotations

import importlib
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from advisor.hardware.cuda_driver import Told, ask_driver
from advisor.hardware.host import host_memory
from advisor.text.ranges import digits

__all__ = ["Gpu", "GpuList", "list_gpus"]


class Gpu(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU, or one MIG instance of a GPU, that CUDA would show to this process.

    Attributes:
        index: CUDA's number for it.
        uuid: Its unique name.
        name: Marketing name; a MIG instance has its slice in it.
        memory_bytes: Total memory.
        free_bytes: Memory that no process holds.
        held_bytes: Memory that this process holds.
        compute_capability: ``(major, minor)``.
        driver_version: Version of the driver.
    """

    index: int
    uuid: str
    name: str
    memory_bytes: int
    free_bytes: int
    held_bytes: int
    compute_capability: tuple[int, int]
    driver_version: str


class GpuList(msgspec.Struct, frozen=True, kw_only=True):
    """The GPUs found, or the reason why there are none.

    Attributes:
        gpus: The visible GPUs in CUDA's order.
        installed: GPUs in the machine, visible or not.
        reason: Why ``gpus`` is empty; empty otherwise.
        cuda_version: The newest CUDA version that the driver supports, ``(major, minor)``; ``None`` if unknown.
    """

    gpus: tuple[Gpu, ...] = ()
    installed: int = 0
    reason: str = ""
    cuda_version: tuple[int, int] | None = None


def list_gpus(
    nvml: Any = None,
    environment: Mapping[str, str] | None = None,
    driver: Callable[[Mapping[str, str]], Told | None] = ask_driver,
) -> GpuList:
    """List the GPUs that CUDA would show to this process, in its numbering.

    ``CUDA_VISIBLE_DEVICES`` is honoured as the CUDA runtime does: numbers or (abbreviated) UUIDs, ending at the first
    entry that names no device. NVML numbers in the order of the PCI bus, which is also CUDA's where all GPUs are equal
    or ``CUDA_DEVICE_ORDER=PCI_BUS_ID``; otherwise, with MIG, and without NVML, CUDA's driver is asked. Where it does
    not answer, CUDA is taken to show one instance of a GPU in MIG mode: the first, unless ``CUDA_VISIBLE_DEVICES``
    names another.

    Args:
        nvml: The ``pynvml`` module, or something that behaves like it.
        environment: The environment to read ``CUDA_VISIBLE_DEVICES`` from.
        driver: Asks CUDA's driver.
    """
    if nvml is None:
        nvml = importlib.import_module("pynvml")
    if environment is None:
        environment = os.environ
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        return _without_nvml(driver(environment), str(error))
    try:
        return _list(nvml, environment, driver)
    finally:
        nvml.nvmlShutdown()


def _without_nvml(told: Told | None, error: str) -> GpuList:
    """The GPUs of a container that has CUDA but no NVML."""
    if told is None or not told.gpus:
        return GpuList(reason=f"NVML, the driver's library, found no NVIDIA GPU ({error})")
    gpus = tuple(
        Gpu(
            index=index,
            uuid=gpu.uuid,
            name=gpu.name,
            memory_bytes=gpu.memory_bytes,
            free_bytes=gpu.free_bytes,
            held_bytes=_held_by_torch(index),
            compute_capability=gpu.compute_capability,
            driver_version="unknown",
        )
        for index, gpu in enumerate(told.gpus)
    )
    return GpuList(gpus=gpus, installed=len(gpus), cuda_version=told.cuda_version)


def _list(nvml: Any, environment: Mapping[str, str], driver: Callable[[Mapping[str, str]], Told | None]) -> GpuList:
    installed = int(nvml.nvmlDeviceGetCount())
    if installed == 0:
        return GpuList(reason="the NVIDIA driver is there, but no GPU is")
    whole = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(installed)]
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    unequal = len({_kind(nvml, handle) for handle in whole}) > 1
    in_parts = any(_mig_mode(nvml, handle) for handle in whole)
    asks = in_parts or (unequal and environment.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID")
    told = driver(environment) if asks else None
    if told is not None and told.gpus:
        shown = _in_order(nvml, whole, [gpu.uuid for gpu in told.gpus])
    else:
        handles = whole if visible is None else _visible(nvml, whole, visible)
        shown = [instance for handle in handles if (instance := _instance(nvml, handle)) is not None]
    if not shown:
        cause = "MIG mode without an instance" if visible is None else f"CUDA_VISIBLE_DEVICES={visible!r}"
        return GpuList(installed=installed, reason=f"{cause} hides every GPU of this machine ({installed} installed)")
    gpus = tuple(_gpu(nvml, index, handle) for index, handle in enumerate(shown))
    return GpuList(gpus=gpus, installed=installed, cuda_version=_cuda_version(nvml))


def _kind(nvml: Any, handle: Any) -> str:
    """The model name of a GPU; a lost one has none."""
    try:
        return _text(nvml.nvmlDeviceGetName(handle))
    except nvml.NVMLError:
        return ""


def _in_order(nvml: Any, whole: list[Any], uuids: Sequence[str]) -> list[Any]:
    """The devices with these UUIDs; CUDA does not distinguish GPUs from instances."""
    every = [*whole, *(instance for handle in whole for instance in _instances(nvml, handle))]
    by_uuid = {_text(nvml.nvmlDeviceGetUUID(handle)).partition("-")[2]: handle for handle in every}
    return [by_uuid[uuid] for full in uuids if (uuid := full.partition("-")[2]) in by_uuid]


def _cuda_version(nvml: Any) -> tuple[int, int] | None:
    try:
        version = int(nvml.nvmlSystemGetCudaDriverVersion_v2())
    except nvml.NVMLError:
        return None
    return version // 1000, version % 1000 // 10


def _visible(nvml: Any, whole: list[Any], entries: str) -> list[Any]:
    chosen: list[Any] = []
    taken: set[str] = set()
    for entry in (part.strip() for part in entries.split(",")):
        handle = _named(nvml, whole, entry)
        if handle is None:
            break  # CUDA ignores what follows an entry it cannot resolve
        uuid = _text(nvml.nvmlDeviceGetUUID(handle))
        if uuid in taken:
            return []  # CUDA shows no device at all when one is named twice
        taken.add(uuid)
        chosen.append(handle)
    return chosen


def _named(nvml: Any, whole: list[Any], entry: str) -> Any | None:
    if matched := re.match(r"\+?([0-9]+)", entry):  # whatever follows: CUDA reads it as C does
        number = digits(matched[1])
        return whole[number] if number is not None and number < len(whole) else None
    if entry.startswith("MIG-"):
        instances = [instance for handle in whole for instance in _instances(nvml, handle)]
        return _by_uuid(nvml, instances, entry)
    return _by_uuid(nvml, whole, entry) if entry.startswith("GPU-") else None


def _by_uuid(nvml: Any, handles: list[Any], prefix: str) -> Any | None:
    """The one device whose UUID starts so; CUDA accepts an abbreviation when it is unique."""
    found = [handle for handle in handles if _text(nvml.nvmlDeviceGetUUID(handle)).startswith(prefix)]
    return found[0] if len(found) == 1 else None


def _instance(nvml: Any, handle: Any) -> Any | None:
    """The device itself, or its first MIG instance where MIG mode is on (``None`` if it has none)."""
    if not _mig_mode(nvml, handle):
        return handle
    return next(iter(_instances(nvml, handle)), None)


def _mig_mode(nvml: Any, handle: Any) -> bool:
    try:
        current, _ = nvml.nvmlDeviceGetMigMode(handle)
    except nvml.NVMLError:
        return False  # a GPU without MIG, or an instance itself
    return bool(current)


def _instances(nvml: Any, handle: Any) -> list[Any]:
    if not _mig_mode(nvml, handle):
        return []
    instances: list[Any] = []
    for position in range(int(nvml.nvmlDeviceGetMaxMigDeviceCount(handle))):
        try:
            instances.append(nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, position))
        except nvml.NVMLError:
            continue  # an empty slot
    return instances


def _gpu(nvml: Any, index: int, handle: Any) -> Gpu:
    total, free = _memory(nvml, handle)
    name = _text(nvml.nvmlDeviceGetName(handle))
    try:
        parent = nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle)
    except nvml.NVMLError:
        parent = handle  # not a MIG instance
    major, minor = nvml.nvmlDeviceGetCudaComputeCapability(parent)
    return Gpu(
        index=index,
        uuid=_text(nvml.nvmlDeviceGetUUID(handle)),
        name=name,
        memory_bytes=total,
        free_bytes=free,
        held_bytes=_held(nvml, handle, index),
        compute_capability=(int(major), int(minor)),
        driver_version=_text(nvml.nvmlSystemGetDriverVersion()),
    )


def _memory(nvml: Any, handle: Any) -> tuple[int, int]:
    """Total and free memory. A GPU without its own uses the host's, which NVML does not report."""
    try:
        memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    except nvml.NVMLError:
        host = host_memory()
        return host.total_bytes, host.free_bytes
    return int(memory.total), int(memory.free)


def _held(nvml: Any, handle: Any, index: int) -> int:
    """Device memory of this process.

    NVML lists processes by the host's process ids. In a container those differ from ours; then torch's allocator, if
    this process uses it, gives a lower bound (without the CUDA context).
    """
    try:
        processes = nvml.nvmlDeviceGetComputeRunningProcesses(handle)
    except nvml.NVMLError:
        processes = []  # not permitted, or not supported on a MIG instance
    listed = sum(int(process.usedGpuMemory or 0) for process in processes if process.pid == os.getpid())
    return max(listed, _held_by_torch(index))


def _held_by_torch(index: int) -> int:
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized() or index >= torch.cuda.device_count():
        return 0
    return int(torch.cuda.memory_reserved(index))


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
