"""How much device memory a training may take."""

from __future__ import annotations

import msgspec

from advisor.errors import OptionError
from advisor.hardware.hardware import DeviceKind, Hardware
from advisor.text.units import format_bytes

__all__ = ["CUDA_CONTEXT_BYTES", "MemoryBudget", "memory_budget"]

CUDA_CONTEXT_BYTES = 600 * 2**20
"""Memory that a training process holds on a GPU outside torch's allocator: the CUDA context and its libraries."""

_HOST_SHARE = 0.8
"""Share of free host memory that trials on a CPU may fill: the interpreter and the rest of the machine need some."""


class MemoryBudget(msgspec.Struct, frozen=True, kw_only=True):
    """The limit that trials run under.

    Attributes:
        usable_bytes: Free memory for profiling runs, which find the need even if it is above the limit.
    """

    limit_bytes: int
    usable_bytes: int
    notes: tuple[str, ...]


def memory_budget(hardware: Hardware, asked_bytes: int | None) -> MemoryBudget:
    """Derive the limit from the requested limit, free memory, and the memory that this process already holds.

    A process that tunes from inside its training script still holds that memory when training starts. The user's limit
    is for the whole process, so the held memory is subtracted.

    Raises:
        OptionError: Nothing would be left.
    """
    if hardware.kind is DeviceKind.CUDA:
        usable = hardware.free_bytes - CUDA_CONTEXT_BYTES
    else:
        usable = int(hardware.free_bytes * _HOST_SHARE)
    notes = []
    limit = usable
    if asked_bytes is not None:
        limit = asked_bytes - hardware.held_bytes
        if limit > usable:
            notes.append(
                f"--memory-limit {format_bytes(asked_bytes)} exceeds the free memory of {hardware.device}; "
                f"trials may take {format_bytes(usable)}"
            )
            limit = usable
    if hardware.held_bytes > 0:
        notes.append(
            f"this process already holds {format_bytes(hardware.held_bytes)} on {hardware.device}; "
            f"{format_bytes(max(limit, 0))} are left for the trials"
        )
    if limit <= 0:
        raise OptionError(
            f"Some device memory must be left for trials, but {hardware.device} has "
            f"{format_bytes(hardware.free_bytes)} free of {format_bytes(hardware.memory_bytes)}"
            + (f", the limit is {format_bytes(asked_bytes)}" if asked_bytes is not None else "")
            + (f" and this process holds {format_bytes(hardware.held_bytes)}" if hardware.held_bytes else "")
            + ". Free some, or raise --memory-limit."
        )
    return MemoryBudget(limit_bytes=limit, usable_bytes=usable, notes=tuple(notes))
