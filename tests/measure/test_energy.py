from __future__ import annotations

import os
from types import SimpleNamespace

from advisor.measure.speed.energy import EnergyMeter, NvmlDevice


class NvmlError(Exception):
    pass


class Library:
    """What the code needs of pynvml."""

    NVMLError = NvmlError

    def __init__(
        self,
        *,
        there: bool = True,
        counts_energy: bool = True,
        process: int | None = None,
        uuid: str = "GPU-1",
        in_parts: bool = False,
    ) -> None:
        self.there = there
        self.counts_energy = counts_energy
        self.uuid = uuid
        self.in_parts = in_parts
        self.process = os.getpid() if process is None else process
        self.millijoules = 1000.0

    def nvmlInit(self) -> None:  # noqa: N802
        if not self.there:
            raise NvmlError

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:  # noqa: N802
        if uuid != self.uuid:
            raise NvmlError
        return uuid

    def nvmlDeviceGetMigMode(self, handle: str) -> list[int]:  # noqa: N802
        return [int(self.in_parts), int(self.in_parts)]

    def nvmlDeviceGetComputeRunningProcesses(self, handle: str) -> list[SimpleNamespace]:  # noqa: N802
        return [SimpleNamespace(pid=1, usedGpuMemory=5), SimpleNamespace(pid=self.process, usedGpuMemory=700)]

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: str) -> float:  # noqa: N802
        if not self.counts_energy:
            raise NvmlError
        return self.millijoules


def test_energy_is_the_difference_of_the_counter_in_joules() -> None:
    library = Library()
    meter = EnergyMeter(NvmlDevice("1", library))
    meter.start()
    library.millijoules += 2500
    assert meter.joules(1.0) == 2.5


def test_less_than_half_a_second_is_the_luck_of_the_counters_refresh() -> None:
    library = Library()
    meter = EnergyMeter(NvmlDevice("1", library))
    meter.start()
    library.millijoules += 2500
    assert meter.joules(0.49) is None
    assert meter.joules(0.5) == 2.5


def test_without_counter_driver_or_gpu_there_is_no_figure() -> None:
    for device in (NvmlDevice("1", Library(counts_energy=False)), NvmlDevice("1", Library(there=False)), None):
        meter = EnergyMeter(device)
        meter.start()
        assert meter.joules(1.0) is None


def test_used_memory_is_this_process_alone() -> None:
    assert NvmlDevice("1", Library()).used_bytes() == 700


def test_used_memory_is_unknown_where_the_driver_numbers_processes_otherwise() -> None:
    assert NvmlDevice("1", Library(process=-1)).used_bytes() is None
    assert NvmlDevice("1", Library(there=False)).used_bytes() is None


def test_a_mig_instance_has_its_own_memory() -> None:
    assert NvmlDevice("1", Library(uuid="MIG-1")).used_bytes() == 700


def test_the_counter_of_a_gpu_in_parts_is_no_figure_of_a_part() -> None:
    assert NvmlDevice("1", Library(in_parts=True)).energy_joules() is None
