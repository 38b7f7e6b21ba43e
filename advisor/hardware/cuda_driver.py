"""Query the CUDA driver about GPUs, in a child process.

The query needs a CUDA context, and a process that has one cannot fork.
"""

from __future__ import annotations

import ctypes
import functools
import json
import os
import subprocess
import sys
from collections.abc import Mapping

import msgspec

__all__ = ["Told", "ToldGpu", "ask_driver"]

_SECONDS = 60.0
"""A machine with many GPUs takes ten seconds to wake them."""

_VARIABLES = ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER")


class ToldGpu(msgspec.Struct, frozen=True, kw_only=True):
    """One device as CUDA shows it.

    Attributes:
        uuid: ``"GPU-..."``, also for an instance.
        name: Marketing name.
        memory_bytes: Total memory.
        free_bytes: Free memory, as seen by the querying process.
        compute_capability: ``(major, minor)``.
    """

    uuid: str
    name: str
    memory_bytes: int
    free_bytes: int
    compute_capability: tuple[int, int]


class Told(msgspec.Struct, frozen=True, kw_only=True):
    """The visible devices in CUDA's order, and the newest CUDA version that the driver supports."""

    cuda_version: tuple[int, int]
    gpus: tuple[ToldGpu, ...]


def ask_driver(environment: Mapping[str, str]) -> Told | None:
    """Query the driver; ``None`` without one.

    Args:
        environment: The environment to read ``CUDA_VISIBLE_DEVICES`` and ``CUDA_DEVICE_ORDER`` from.
    """
    return _ask(tuple((name, environment[name]) for name in _VARIABLES if name in environment))


@functools.cache
def _ask(variables: tuple[tuple[str, str], ...]) -> Told | None:
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
        return msgspec.convert(json.loads(answer.stdout), Told)
    except (OSError, subprocess.SubprocessError, ValueError, msgspec.ValidationError):
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
for device in range(number("cuDeviceGetCount")):
    device = number("cuDeviceGet", device)
    name, bytes = ctypes.create_string_buffer(100), ctypes.create_string_buffer(16)
    cuda.cuDeviceGetName(name, 100, device)
    cuda.cuDeviceGetUuid_v2(bytes, device)
    context, free, total = ctypes.c_void_p(), ctypes.c_size_t(), ctypes.c_size_t()
    if not cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device):
        cuda.cuCtxSetCurrent(context)
        cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total))
        cuda.cuDevicePrimaryCtxRelease_v2(device)
    gpus.append({
        "uuid": f"GPU-{uuid.UUID(bytes=bytes.raw)}", "name": name.value.decode(),
        "memory_bytes": number("cuDeviceTotalMem_v2", device, kind=ctypes.c_size_t), "free_bytes": free.value,
        "compute_capability": [number("cuDeviceGetAttribute", 75, device), number("cuDeviceGetAttribute", 76, device)],
    })
print(json.dumps({"cuda_version": [version // 1000, version % 1000 // 10], "gpus": gpus}))
"""
