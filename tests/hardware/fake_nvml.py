"""A stand-in for the ``pynvml`` module with any number of GPUs, with and without MIG."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace

GIB = 2**30


class NVMLError(Exception):
    """As pynvml raises."""


@dataclass
class FakeGpu:
    """One GPU or one MIG instance."""

    uuid: str
    name: str = "NVIDIA H100 80GB HBM3"
    total: int = 80 * GIB
    free: int = 79 * GIB
    mig: bool = False
    instances: list[FakeGpu | None] = field(default_factory=list)
    parent: FakeGpu | None = None
    processes: dict[int, int | None] = field(default_factory=dict)
    capability: tuple[int, int] = (9, 0)
    integrated: bool = False
    used_percent: int | None = None


class FakeNvml:
    """The functions of pynvml that are used, over a list of GPUs; ``None`` for a machine without the driver."""

    NVMLError = NVMLError

    def __init__(self, gpus: list[FakeGpu] | None, *, cuda_version: int | None = 13000) -> None:
        self.gpus = gpus
        self.cuda_version = cuda_version
        self.open = 0
        for gpu in gpus or ():
            for instance in gpu.instances:
                if instance is not None:
                    instance.parent = gpu

    def nvmlInit(self) -> None:  # noqa: N802
        if self.gpus is None:
            raise NVMLError("NVML Shared Library Not Found")
        self.open += 1

    def nvmlShutdown(self) -> None:  # noqa: N802
        self.open -= 1

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        assert self.gpus is not None
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> FakeGpu:  # noqa: N802
        assert self.gpus is not None
        return self.gpus[index]

    def nvmlDeviceGetUUID(self, gpu: FakeGpu) -> bytes:  # noqa: N802
        return gpu.uuid.encode()

    def nvmlDeviceGetHandleByUUID(self, uuid: bytes) -> FakeGpu:  # noqa: N802
        return next(gpu for gpu in self.gpus or () if gpu.uuid.encode() == uuid)

    def nvmlDeviceGetUtilizationRates(self, gpu: FakeGpu) -> SimpleNamespace:  # noqa: N802
        if gpu.used_percent is None:
            raise NVMLError("Not Supported")
        return SimpleNamespace(gpu=gpu.used_percent, memory=0)

    def nvmlDeviceGetName(self, gpu: FakeGpu) -> str:  # noqa: N802
        return gpu.name

    def nvmlDeviceGetMemoryInfo(self, gpu: FakeGpu) -> SimpleNamespace:  # noqa: N802
        if gpu.integrated:
            raise NVMLError("Not Supported")
        return SimpleNamespace(total=gpu.total, free=gpu.free, used=gpu.total - gpu.free)

    def nvmlDeviceGetCudaComputeCapability(self, gpu: FakeGpu) -> list[int]:  # noqa: N802
        if gpu.parent is not None:
            raise NVMLError("not supported on a MIG instance")
        return list(gpu.capability)

    def nvmlSystemGetCudaDriverVersion_v2(self) -> int:  # noqa: N802
        if self.cuda_version is None:
            raise NVMLError("Function Not Found")
        return self.cuda_version

    def nvmlSystemGetDriverVersion(self) -> str:  # noqa: N802
        return "580.65"

    def nvmlDeviceGetMigMode(self, gpu: FakeGpu) -> list[int]:  # noqa: N802
        if gpu.parent is not None or "H100" not in gpu.name:
            raise NVMLError("Not Supported")
        return [int(gpu.mig), int(gpu.mig)]

    def nvmlDeviceGetMaxMigDeviceCount(self, gpu: FakeGpu) -> int:  # noqa: N802
        return 7

    def nvmlDeviceGetMigDeviceHandleByIndex(self, gpu: FakeGpu, position: int) -> FakeGpu:  # noqa: N802
        instance = gpu.instances[position] if position < len(gpu.instances) else None
        if instance is None:
            raise NVMLError("Not Found")
        return instance

    def nvmlDeviceGetDeviceHandleFromMigDeviceHandle(self, gpu: FakeGpu) -> FakeGpu:  # noqa: N802
        if gpu.parent is None:
            raise NVMLError("Invalid Argument")
        return gpu.parent

    def nvmlDeviceGetComputeRunningProcesses(self, gpu: FakeGpu) -> list[SimpleNamespace]:  # noqa: N802
        if gpu.parent is not None:
            raise NVMLError("Not Supported")
        return [SimpleNamespace(pid=pid, usedGpuMemory=used) for pid, used in gpu.processes.items()]
