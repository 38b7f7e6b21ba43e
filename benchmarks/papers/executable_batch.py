"""accelerate's batch size finder, used as documented: the program behind one of the contenders of ``advice``.

Its function builds the model and trains a few steps of plain PyTorch; after an out-of-memory error accelerate calls it
again with nine tenths of the batch. It never tries a batch above the first. On a CPU, which has no limit of its own,
the memory limit ends a step with the error message of torch's CPU allocator, which accelerate recognizes.
"""

from __future__ import annotations

import time

import torch
from accelerate.utils import find_executable_batch_size

from advisor.errors import DeviceOutOfMemoryError
from advisor.measure.batches.batches import make_batches, seed_everything
from advisor.measure.memory.meters import memory_meter
from advisor.measure.memory.storages import HostData
from advisor.measure.speed.warm_up import warm_up
from advisor.workload._loading import load_workload
from advisor.workload.source import resolve_source
from benchmarks.papers.child import answer
from benchmarks.papers.contenders import ExecutableBatch, ExecutableBatchRequest
from benchmarks.papers.hand_written import HandWritten

__all__ = ["executable_batch"]

_STEPS = 3


def executable_batch(request: ExecutableBatchRequest) -> ExecutableBatch:
    """Let accelerate search."""
    device = torch.device(request.device)
    warm_up(device)
    workload = load_workload(resolve_source(request.workload))
    tried: list[int] = []

    def train(batch_size: int) -> int:
        tried.append(batch_size)
        seed_everything(0)
        batches = make_batches(workload.make_batch, batch_size, 1, seed=0)
        waiting = HostData()
        waiting.add(batches, torch.device("cpu"))
        with memory_meter(device, request.limit_bytes, waiting) as meter:
            try:
                loop = HandWritten(workload, workload.build_model(), device, (), "")
                for _ in range(_STEPS):
                    with meter.guarding(batches[0]):
                        loop.step(batches[0])
            except DeviceOutOfMemoryError as error:
                raise RuntimeError(f"DefaultCPUAllocator: can't allocate memory: {error}") from None
        return batch_size

    begin = time.perf_counter()
    found: int = find_executable_batch_size(train, starting_batch_size=request.first)()
    return ExecutableBatch(batch=found, tried=tried, seconds=time.perf_counter() - begin)


if __name__ == "__main__":
    answer(ExecutableBatchRequest, executable_batch)
