"""A small training with every category of memory, and what tests need to look at it."""

from __future__ import annotations

import torch

from advisor.measure.memory.cpu import CpuMemory
from advisor.measure.memory.storages import HostData
from advisor.training.training import Training

CPU = torch.device("cpu")


def tiny_training(width: int = 64) -> Training:
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(8, width), torch.nn.BatchNorm1d(width), torch.nn.ReLU(), torch.nn.Linear(width, 4)
    )
    return Training(model, compute_loss=lambda model, batch: model(batch).square().mean())


def fresh_host_data() -> HostData:
    """Everything that exists now is somebody else's."""
    host_data = HostData()
    host_data.add_living(CPU)
    return host_data


def meter(limit_bytes: int = 2**40) -> CpuMemory:
    return CpuMemory(CPU, limit_bytes, fresh_host_data())
