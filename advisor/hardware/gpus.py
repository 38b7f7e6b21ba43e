"""GPUs as reported by NVML, which opens no CUDA context and so takes no device memory."""

from __future__ import annotations

import importlib
import itertools
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from advisor.hardware.cuda_driver import Gpu, GpuList, ask_driver
from advisor.hardware.host import host_memory
from advisor.text.ranges import digits

__all__ = ["list_gpus"]

Driver = Callable[[Mapping[str, str]], GpuList | None]


def list_gpus(
    nvml: Any = None,
    environment: Mapping[str, str] | None = None,
    driver: Driver = ask_driver,
) -> GpuList:
    """List the GPUs that CUDA would show to this process, in its numbering.

    ``CUDA_VISIBLE_DEVICES`` is honoured as the CUDA runtime does: numbers or (abbreviated) UUIDs, ending at the first
    entry that names no device. NVML numbers in the order of the PCI bus, which is also CUDA's where all GPUs are equal
    or ``CUDA_DEVICE_ORDER=PCI_BUS_ID``; otherwise, with MIG, and without NVML, CUDA's driver is asked. Where it does
    not answer, CUDA is taken to show one instance of a GPU in MIG mode: the first, unless ``CUDA_VISIBLE_DEVICES``
    names another.

    Args:
        nvml: The ``pynvml`` module, or something that behaves like it.
        environment: Where ``CUDA_VISIBLE_DEVICES`` is read.
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


def _without_nvml(found: GpuList | None, error: str) -> GpuList:
    """The GPUs of a container that has CUDA but no NVML."""
    if found is None or not found.gpus:
        return GpuList(reason=f"NVML, the driver's library, found no NVIDIA GPU: {error}")
    gpus = tuple(msgspec.structs.replace(gpu, held_bytes=_held_by_torch(gpu.index)) for gpu in found.gpus)
    return msgspec.structs.replace(found, gpus=gpus)


def _list(nvml: Any, environment: Mapping[str, str], driver: Driver) -> GpuList:
    installed = int(nvml.nvmlDeviceGetCount())
    if installed == 0:
        return GpuList(reason="the NVIDIA driver is there, but no GPU is")
    whole = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(installed)]
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    names = {_text(_ask(nvml, "nvmlDeviceGetName", handle, otherwise="")) for handle in whole}
    in_parts = any(_mig_mode(nvml, handle) for handle in whole)
    asks = in_parts or (len(names) > 1 and environment.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID")
    found = driver(environment) if asks else None
    if found is not None and found.gpus:
        shown = _in_order(nvml, whole, [gpu.uuid for gpu in found.gpus])
    else:
        handles = whole if visible is None else _visible(nvml, whole, visible)
        firsts = (_instances(nvml, handle)[:1] if _mig_mode(nvml, handle) else [handle] for handle in handles)
        shown = list(itertools.chain.from_iterable(firsts))
    if not shown:
        cause = "MIG mode without an instance" if visible is None else f"CUDA_VISIBLE_DEVICES={visible!r}"
        return GpuList(reason=f"{cause} hides every GPU of this machine ({installed} installed)")
    version = _ask(nvml, "nvmlSystemGetCudaDriverVersion_v2")
    return GpuList(
        gpus=tuple(_gpu(nvml, index, handle) for index, handle in enumerate(shown)),
        cuda_version=None if version is None else (version // 1000, version % 1000 // 10),
    )


def _in_order(nvml: Any, whole: list[Any], uuids: Sequence[str]) -> list[Any]:
    """The devices with these UUIDs; CUDA does not distinguish GPUs from instances."""
    by_uuid = {_text(nvml.nvmlDeviceGetUUID(one)).partition("-")[2]: one for one in _with_instances(nvml, whole)}
    return [by_uuid[uuid] for full in uuids if (uuid := full.partition("-")[2]) in by_uuid]


def _with_instances(nvml: Any, whole: list[Any]) -> list[Any]:
    return [*whole, *(instance for handle in whole for instance in _instances(nvml, handle))]


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
    if not entry.startswith(("GPU-", "MIG-")):
        return None
    every = _with_instances(nvml, whole)
    found = [one for one in every if _text(nvml.nvmlDeviceGetUUID(one)).startswith(entry)]
    return found[0] if len(found) == 1 else None  # CUDA accepts an abbreviation when it is unique


def _mig_mode(nvml: Any, handle: Any) -> bool:
    """Whether a GPU is divided; one without MIG, and an instance itself, are not."""
    return bool(_ask(nvml, "nvmlDeviceGetMigMode", handle, otherwise=(0, 0))[0])


def _instances(nvml: Any, handle: Any) -> list[Any]:
    if not _mig_mode(nvml, handle):
        return []
    slots = range(int(nvml.nvmlDeviceGetMaxMigDeviceCount(handle)))
    found = [_ask(nvml, "nvmlDeviceGetMigDeviceHandleByIndex", handle, slot) for slot in slots]
    return [instance for instance in found if instance is not None]


def _gpu(nvml: Any, index: int, handle: Any) -> Gpu:
    # A GPU without memory of its own uses the host's, which NVML does not report.
    memory = _ask(nvml, "nvmlDeviceGetMemoryInfo", handle)
    total, free = (memory.total, memory.free) if memory is not None else host_memory()
    whole = _ask(nvml, "nvmlDeviceGetDeviceHandleFromMigDeviceHandle", handle, otherwise=handle)
    major, minor = nvml.nvmlDeviceGetCudaComputeCapability(whole)
    return Gpu(
        index=index,
        uuid=_text(nvml.nvmlDeviceGetUUID(handle)),
        name=_text(nvml.nvmlDeviceGetName(handle)),
        memory_bytes=int(total),
        free_bytes=int(free),
        held_bytes=_held(nvml, handle, index),
        compute_capability=(int(major), int(minor)),
        driver_version=_text(nvml.nvmlSystemGetDriverVersion()),
    )


def _held(nvml: Any, handle: Any, index: int) -> int:
    """Device memory of this process.

    NVML lists processes by the host's process ids. In a container those differ from ours; then torch's allocator, if
    this process uses it, gives a lower bound (without the CUDA context).
    """
    processes = _ask(nvml, "nvmlDeviceGetComputeRunningProcesses", handle, otherwise=())
    listed = sum(int(process.usedGpuMemory or 0) for process in processes if process.pid == os.getpid())
    return max(listed, _held_by_torch(index))


def _held_by_torch(index: int) -> int:
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized() or index >= torch.cuda.device_count():
        return 0
    return int(torch.cuda.memory_reserved(index))


def _ask(nvml: Any, question: str, *about: Any, otherwise: Any = None) -> Any:
    """NVML's answer; ``otherwise`` if it has none: the device lacks the feature or is lost, or it is not permitted."""
    try:
        return getattr(nvml, question)(*about)
    except nvml.NVMLError:
        return otherwise


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
