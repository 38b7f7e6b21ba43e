"""The memory meter of a device."""

from __future__ import annotations

import torch

from advisor.measure.memory.cpu import CpuMemory
from advisor.measure.memory.cuda import CudaMemory
from advisor.measure.memory.meter import MemoryMeter
from advisor.measure.memory.storages import HostData

__all__ = ["memory_meter"]


def memory_meter(device: torch.device, limit_bytes: int, host_data: HostData) -> MemoryMeter:
    """The meter for a device; ``host_data`` are storages that are no memory of the training (matters on the CPU)."""
    if device.type == "cuda":
        return CudaMemory(device, limit_bytes)
    return CpuMemory(device, limit_bytes, host_data)
