"""How many devices may train together, and what the least of them has to offer."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from advisor.errors import OptionError
from advisor.goal import GoalKind
from advisor.hardware.hardware import DeviceKind, Hardware
from advisor.session.request import TuneRequest

__all__ = ["Devices", "choose_devices"]

_RANKS_PER_CORE = 4
"""To see how it works a few ranks may share a core; hundreds of processes only bring the machine down."""


class Devices(msgspec.Struct, frozen=True, kw_only=True):
    """The devices of a search.

    Attributes:
        counts: How many may train together, ascending.
        hardware: The first of them, with the free memory of the fullest.
        notes: What the user should know.
    """

    counts: tuple[int, ...]
    hardware: Hardware
    notes: tuple[str, ...] = ()


def choose_devices(request: TuneRequest, hardware: Hardware, visible: Sequence[Hardware]) -> Devices:
    """Check ``--gpus`` against what is there, or choose the counts.

    On a CPU the ranks are processes that share its cores and memory: any number of them can be tried.

    Args:
        request: What is asked for.
        hardware: The device that was asked for or chosen.
        visible: Every visible device.

    Raises:
        OptionError: More devices than there are, or several with one that is named.
    """
    machines = request.nodes.count
    counts = request.gpu_counts or _default_counts(request.goal, hardware, machines)
    uneven = [count for count in counts if count > 1 and count % machines]
    if uneven or (machines > 1 and counts[-1] == 1):
        assert request.gpu_counts is not None, f"counts that nobody typed must be right, got {counts}"
        raise OptionError(
            f"Every one of {machines} machines runs an equal share of the devices: --gpus must be multiples of "
            f"{machines}, such as {machines} or {2 * machines} (and 1, on the first machine alone), "
            f"but got {', '.join(map(str, counts))}."
        )
    most = max(count // machines for count in counts if count > 1) if counts[-1] > 1 else 1
    if counts[-1] == 1:
        return Devices(counts=counts, hardware=hardware)
    if hardware.kind is DeviceKind.CPU:
        if most <= hardware.host_cores:
            return Devices(counts=counts, hardware=hardware)
        if most > _RANKS_PER_CORE * hardware.host_cores:
            raise OptionError(
                f"--gpus on a CPU must be at most {_RANKS_PER_CORE} ranks for each of its {hardware.host_cores} cores, "
                f"{_RANKS_PER_CORE * hardware.host_cores * machines} in all, but got {counts[-1]}. "
                "Name fewer: more of them only wait for each other."
            )
        note = f"{most} ranks share {hardware.host_cores} CPU cores: expect to see how it works, and no speed-up"
        return Devices(counts=counts, hardware=hardware, notes=(note,))
    if most > hardware.device_count:
        raise OptionError(
            f"--gpus must be at most the number of visible GPUs, {hardware.device_count * machines}, "
            f"but got {counts[-1]}. "
            "Name fewer, or make more visible with CUDA_VISIBLE_DEVICES."
        )
    if hardware.device != "cuda:0":
        raise OptionError(
            f"Several GPUs are taken from cuda:0 on, but --device is {hardware.device}. "
            "Leave --device out, and choose GPUs with CUDA_VISIBLE_DEVICES."
        )
    group = [device for device in visible if device.kind is DeviceKind.CUDA][:most]
    notes = []
    names = sorted({device.name for device in group})
    if len(names) > 1:
        notes.append(f"the GPUs differ ({', '.join(names)}): the slowest sets the pace of all")
    fullest = min(group, key=lambda device: device.free_bytes)
    least = msgspec.structs.replace(hardware, free_bytes=fullest.free_bytes, memory_bytes=fullest.memory_bytes)
    return Devices(counts=counts, hardware=least, notes=tuple(notes))


def _default_counts(goal: GoalKind, hardware: Hardware, machines: int) -> tuple[int, ...]:
    """One device; for ``cheapest``, whose question it is, and for several machines every power of two there is.

    Each of several machines has as many devices as this one. A device that is named is meant alone.
    """
    named = hardware.device not in ("cpu", "cuda:0")
    if machines == 1 and (goal is not GoalKind.CHEAPEST or hardware.kind is DeviceKind.CPU or named):
        return (1,)
    on_each = [1]
    while 2 * on_each[-1] <= hardware.device_count:
        on_each.append(2 * on_each[-1])
    return tuple(sorted({1, *(machines * count for count in on_each)}))
