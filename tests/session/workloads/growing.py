"""The tiny network with a depth that can be set: every further layer costs about the same time and memory."""

import torch
from torch import nn

BATCH_SIZE = 4
WIDTH = 64
SIZES = {"layers": [2, 4, 6, 8, 12, 16, 24, 32, 48, 64]}


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inside = nn.Linear(WIDTH, 4 * WIDTH)
        self.outside = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return inputs + self.outside(torch.relu(self.inside(inputs)))


def build_model(layers: int = 4) -> nn.Module:
    return nn.Sequential(*(Block() for _ in range(layers)))


def make_batch(batch_size: int) -> torch.Tensor:
    return torch.randn(batch_size, 32, WIDTH)


def compute_loss(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    return model(batch).square().mean()
