"""GPUs as NVML reports them. NVML opens no CUDA context, so looking takes no device memory."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Mapping
from typing import Any

import msgspec

from advisor.problem.ranges import digits

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
    """What was found, and why there is nothing when there is nothing.

    Attributes:
        gpus: The visible GPUs in CUDA's order.
        installed: GPUs in the machine, visible or not.
        reason: Why ``gpus`` is empty; empty otherwise.
    """

    gpus: tuple[Gpu, ...] = ()
    installed: int = 0
    reason: str = ""


def list_gpus(nvml: Any = None, environment: Mapping[str, str] | None = None) -> GpuList:
    """List the GPUs that CUDA would show to this process, in its numbering.

    ``CUDA_VISIBLE_DEVICES`` is honoured as the CUDA runtime does: numbers or (abbreviated) UUIDs, ending at the first
    entry that names no device. Numbers are taken in NVML's order, that of the PCI bus, which is also CUDA's where all
    GPUs are equal or ``CUDA_DEVICE_ORDER=PCI_BUS_ID``. Of a GPU in MIG mode, CUDA shows one instance to a process:
    the first, unless ``CUDA_VISIBLE_DEVICES`` names another.

    Args:
        nvml: The ``pynvml`` module, or something that behaves like it.
        environment: The environment to read ``CUDA_VISIBLE_DEVICES`` from.
    """
    if nvml is None:
        nvml = importlib.import_module("pynvml")
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        return GpuList(reason=f"NVML, the driver's library, found no NVIDIA GPU ({error})")
    try:
        return _list(nvml, os.environ if environment is None else environment)
    finally:
        nvml.nvmlShutdown()


def _list(nvml: Any, environment: Mapping[str, str]) -> GpuList:
    installed = int(nvml.nvmlDeviceGetCount())
    if installed == 0:
        return GpuList(reason="the NVIDIA driver is there, but no GPU is")
    whole = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(installed)]
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    handles = whole if visible is None else _visible(nvml, whole, visible)
    shown = [instance for handle in handles if (instance := _instance(nvml, handle)) is not None]
    if not shown:
        cause = "MIG mode without an instance" if visible is None else f"CUDA_VISIBLE_DEVICES={visible!r}"
        return GpuList(installed=installed, reason=f"{cause} hides every GPU of this machine ({installed} installed)")
    return GpuList(gpus=tuple(_gpu(nvml, index, handle) for index, handle in enumerate(shown)), installed=installed)


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
    if (number := digits(entry)) is not None:
        return whole[number] if number < len(whole) else None
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
    memory = nvml.nvmlDeviceGetMemoryInfo(handle)
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
        memory_bytes=int(memory.total),
        free_bytes=int(memory.free),
        held_bytes=_held(nvml, handle, index),
        compute_capability=(int(major), int(minor)),
        driver_version=_text(nvml.nvmlSystemGetDriverVersion()),
    )


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
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized() or index >= torch.cuda.device_count():
        return listed
    return max(listed, int(torch.cuda.memory_reserved(index)))


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
