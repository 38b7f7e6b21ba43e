"""Query the CUDA driver about GPUs, in a child process.

The query needs a CUDA context, and a process that has one cannot fork.
"""

from __future__ import annotations

import ctypes
import functools
import os
import subprocess
import sys
from collections.abc import Mapping

import msgspec

__all__ = ["Gpu", "GpuList", "ask_driver"]

_SECONDS = 60.0
"""A machine with many GPUs takes ten seconds to wake them."""

_VARIABLES = ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER")


class Gpu(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU, or one MIG instance of a GPU, that CUDA would show to this process.

    Attributes:
        index: CUDA's number for it.
        name: Marketing name; a MIG instance has its slice in it.
        memory_bytes: Total memory.
        free_bytes: Memory that no process holds.
        held_bytes: Memory that this process holds.
        compute_capability: ``(major, minor)``.
    """

    index: int
    uuid: str
    name: str
    memory_bytes: int
    free_bytes: int
    held_bytes: int = 0
    compute_capability: tuple[int, int]
    driver_version: str = "unknown"


class GpuList(msgspec.Struct, frozen=True, kw_only=True):
    """The GPUs found, or the reason why there are none.

    Attributes:
        gpus: The visible GPUs in CUDA's order.
        reason: Why ``gpus`` is empty; empty otherwise.
        cuda_version: The newest CUDA version that the driver supports, ``(major, minor)``; ``None`` if unknown.
    """

    gpus: tuple[Gpu, ...] = ()
    reason: str = ""
    cuda_version: tuple[int, int] | None = None


def ask_driver(environment: Mapping[str, str]) -> GpuList | None:
    """Query the driver about the devices that ``CUDA_VISIBLE_DEVICES`` shows; ``None`` without a driver."""
    return _ask(tuple((name, environment[name]) for name in _VARIABLES if name in environment))


@functools.cache
def _ask(variables: tuple[tuple[str, str], ...]) -> GpuList | None:
    try:
        ctypes.CDLL("libcuda.so.1")  # a quick check, so that no process is started without a driver
    except OSError:
        return None
    others = {name: value for name, value in os.environ.items() if name not in _VARIABLES}
    try:
        answer = subprocess.run(
            [sys.executable, "-I", "-c", _SCRIPT],
            env=others | dict(variables), capture_output=True, text=True, check=True, timeout=_SECONDS,
        )  # fmt: skip
        return msgspec.json.decode(answer.stdout, type=GpuList)
    except (OSError, subprocess.SubprocessError, msgspec.DecodeError):
        return None


# The numbers are those of CUdevice_attribute. If free memory is unknown (a GPU in exclusive use), it counts as full.
_SCRIPT = """
import ctypes, json, uuid
cuda = ctypes.CDLL("libcuda.so.1")
def number(function, *arguments, kind=ctypes.c_int):
    value = kind()
    if getattr(cuda, function)(ctypes.byref(value), *arguments):
        raise SystemExit(1)
    return value.value
if cuda.cuInit(0):
    raise SystemExit(1)
version = number("cuDriverGetVersion")
gpus = []
for index in range(number("cuDeviceGetCount")):
    device = number("cuDeviceGet", index)
    name, bytes = ctypes.create_string_buffer(100), ctypes.create_string_buffer(16)
    cuda.cuDeviceGetName(name, 100, device)
    cuda.cuDeviceGetUuid_v2(bytes, device)
    context, free, total = ctypes.c_void_p(), ctypes.c_size_t(), ctypes.c_size_t()
    if not cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device):
        cuda.cuCtxSetCurrent(context)
        cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total))
        cuda.cuDevicePrimaryCtxRelease_v2(device)
    gpus.append({
        "index": index, "uuid": f"GPU-{uuid.UUID(bytes=bytes.raw)}", "name": name.value.decode(),
        "memory_bytes": number("cuDeviceTotalMem_v2", device, kind=ctypes.c_size_t), "free_bytes": free.value,
        "compute_capability": [number("cuDeviceGetAttribute", 75, device), number("cuDeviceGetAttribute", 76, device)],
    })
print(json.dumps({"cuda_version": [version // 1000, version % 1000 // 10], "gpus": gpus}))
"""
