"""Residual chains of any depth whose activations far outweigh their parameters, and the memory that one step takes."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from advisor.measure.memory.meters import memory_meter
from advisor.measure.memory.storages import HostData
from advisor.methods.compose import apply_settings
from advisor.methods.setting import MethodSetting
from advisor.training.training import Training

WIDTH = 4
INPUT_BYTES = 4 * WIDTH * 2048
"""Bytes of the input of a block."""


class Scale(nn.Module):
    """A weight for each feature: parameters that take next to no memory."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(0.01 * torch.randn(WIDTH))

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden * self.weight


class Residual(nn.Module):
    """``x - relu(w x)``; as ``wide`` as many of these as that, one after the other."""

    def __init__(self, wide: int = 1) -> None:
        super().__init__()
        self.scales = nn.ModuleList(Scale() for _ in range(wide))
        self.activation = nn.ReLU()

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        for scale in self.scales:
            hidden = hidden - self.activation(scale(hidden))
        return hidden


def deep(depth: int, settings: Sequence[MethodSetting] = (), wide: Sequence[int] = (1,)) -> Training:
    """A chain of ``depth`` blocks, settled: methods that measure at first have measured."""
    torch.manual_seed(0)
    model = nn.Sequential(*[Residual(wide[number % len(wide)]) for number in range(depth)])
    training = Training(
        model,
        compute_loss=lambda model, batch: model(batch).square().mean(),
        build_optimizer=lambda parameters: torch.optim.SGD(parameters, lr=1e-6),
    )
    apply_settings(training, settings)
    for _ in range(training.settling_steps):
        training.step(batch())
    return training


def batch() -> torch.Tensor:
    return torch.randn(INPUT_BYTES // (4 * WIDTH), WIDTH, generator=torch.Generator().manual_seed(0))


def activation_peak(training: Training) -> int:
    """Bytes at the peak of a step beside parameters, gradients and the batch, by the meter that trials use."""
    device = torch.device("cpu")
    host_data = HostData()
    host_data.add_living(device)
    with memory_meter(device, 2**40, host_data) as meter:
        _, memory = meter.measured_step(training, batch())
    breakdown = memory.breakdown
    return memory.peak_bytes - breakdown.parameters - breakdown.gradients - INPUT_BYTES
