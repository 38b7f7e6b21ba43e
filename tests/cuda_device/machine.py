"""A machine with software GPUs: how it is described, and how a command is run on it."""

from __future__ import annotations

import contextlib
import os
import resource
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tests.cuda_device.build import build

__all__ = ["A100", "H100", "V100", "Gpu", "Machine"]

HOST_BYTES = 8 * 2**30
"""Of private memory, for each process: what is read from a GPU that computes nothing may be taken for a size."""


VALUES_MEBIBYTES = 4096
"""Of each GPU, at most, where values are computed: it is memory of the host."""


@dataclass(frozen=True)
class Gpu:
    """One GPU.

    Attributes:
        name: As the driver tells it.
        mebibytes: Its memory.
        capability: ``"MAJOR.MINOR"``.
        instances: In MIG mode the profile and the memory of each instance; ``None`` elsewhere.
    """

    name: str
    mebibytes: int
    capability: str
    instances: tuple[tuple[str, int], ...] | None = None

    def __str__(self) -> str:
        parts = [] if self.instances is None else ["MIG", *(f"{name}={size}" for name, size in self.instances)]
        return "/".join([self.name, str(self.mebibytes), self.capability, *parts])


H100 = Gpu("NVIDIA H100 80GB HBM3", 81_080, "9.0")
A100 = Gpu("NVIDIA A100-SXM4-40GB", 40_442, "8.0")
V100 = Gpu("Tesla V100-SXM2-16GB", 16_144, "7.0")


@dataclass(frozen=True)
class Machine:
    """A machine.

    Attributes:
        gpus: In the order of the PCI bus.
        driver: The CUDA version that the driver is for.
        nvml: Whether the management library is there.
        nvml_lacks: Functions of it that are not supported.
        time: How long the device takes, as a multiple; 0 is no time at all.
        trace: A file to which every process adds which kernels it launched on which device, how often.
        host_bytes: Private memory that a process may have.
        values: Whether what kernels compute is computed, on the CPU; a GPU then has no more than VALUES_MEBIBYTES.
    """

    gpus: tuple[Gpu, ...] = (H100,)
    driver: str = "13.0"
    nvml: bool = True
    nvml_lacks: tuple[str, ...] = ()
    time: float = 1
    trace: Path | None = None
    host_bytes: int = HOST_BYTES
    values: bool = False

    @contextlib.contextmanager
    def environment(self, given: Mapping[str, str] = os.environ) -> Iterator[dict[str, str]]:
        """Variables with which a process is on this machine, while the context lasts."""
        folder = build()
        libraries = [str(folder), *([str(folder / "nvml")] if self.nvml else [])]
        with tempfile.TemporaryDirectory(prefix="software-gpus-", dir="/dev/shm") as shared:
            yield {
                **given,
                "LD_PRELOAD": _joined([str(folder / "libcuda.so.1")], given.get("LD_PRELOAD")),
                "LD_LIBRARY_PATH": _joined(libraries, given.get("LD_LIBRARY_PATH")),
                "TRITON_LIBCUDA_PATH": str(folder),
                "MOMADVISE_SIMULATED_DEVICE": "1",
                "SOFTWARE_GPUS": ";".join(self._described(gpu) for gpu in self.gpus),
                "SOFTWARE_GPU_VALUES": str(folder / "libvalues.so") if self.values else "",
                "SOFTWARE_GPU_DRIVER": self.driver,
                "SOFTWARE_GPU_NVML_LACKS": ",".join(self.nvml_lacks),
                "SOFTWARE_GPU_TIME": str(self.time),
                "SOFTWARE_GPU_TRACE": "" if self.trace is None else str(self.trace),
                "SOFTWARE_GPU_BOOKS": str(Path(shared) / "books"),
            }

    def run(
        self, command: Sequence[str | Path], variables: Mapping[str, str] | None = None, **options: Any
    ) -> subprocess.CompletedProcess[str]:
        """Run a command on this machine; its output is text.

        Args:
            command: The command.
            variables: Further variables of its environment.
            options: As for ``subprocess.run``.
        """
        with self.environment({**os.environ, **(variables or {})}) as environment:
            return subprocess.run(
                [str(part) for part in command],
                env=environment, text=True, check=False, preexec_fn=self._limit, **options,
            )  # fmt: skip

    def _described(self, gpu: Gpu) -> str:
        return str(replace(gpu, mebibytes=min(gpu.mebibytes, VALUES_MEBIBYTES)) if self.values else gpu)

    def _limit(self) -> None:
        # Memory of the device is address space that nobody may write, which does not count.
        resource.setrlimit(resource.RLIMIT_DATA, (self.host_bytes, self.host_bytes))


def _joined(first: list[str], rest: str | None) -> str:
    return ":".join([*first, *([rest] if rest else [])])
