"""The machine: its name, and its total and free memory."""

from __future__ import annotations

import enum

import msgspec

__all__ = ["DeviceKind", "Hardware"]


class DeviceKind(enum.Enum):
    """The kinds of device that momadvise measures on."""

    CPU = "cpu"
    CUDA = "cuda"


class Hardware(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One device and its host, as found before any trial.

    Attributes:
        device: torch's name of the device, e.g. ``"cuda:0"`` or ``"cpu"``.
        name: Marketing name, e.g. ``"NVIDIA H100 80GB HBM3"`` or the CPU's model name.
        memory_bytes: Total device memory. For CPU: host memory (or the container's limit if lower).
        free_bytes: Device memory that no process holds at detection.
        held_bytes: Device memory that *this* process already holds (0 for the command).
        device_count: Devices of this kind that are visible.
        host_memory_bytes: Total host memory.
        host_free_bytes: Host memory available at detection.
        host_cores: Cores this process may use.
        compute_capability: ``(major, minor)`` of a CUDA device, else ``None``.
        multiprocessors: Of an absent CUDA device, from its profile; a present one is queried in a trial.
        driver_version: Of a CUDA device, else ``None``.
        profile: Name of the matching file in ``profiles/``, if any.
        simulated: Whether software stands in for the device, so that no time says anything about a real one.
    """

    kind: DeviceKind
    device: str
    name: str
    memory_bytes: int
    free_bytes: int
    held_bytes: int = 0
    device_count: int = 1
    host_memory_bytes: int
    host_free_bytes: int
    host_cores: int
    compute_capability: tuple[int, int] | None = None
    multiprocessors: int | None = None
    driver_version: str | None = None
    profile: str | None = None
    simulated: bool = False

    @property
    def title(self) -> str:
        """Its name, and whether it is simulated."""
        return f"{self.name} (simulated)" if self.simulated else self.name
