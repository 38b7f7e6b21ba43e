"""A residual network small enough that a whole search takes seconds, with blocks that can be checkpointed."""

import torch
from torch import nn

BATCH_SIZE = 4
WIDTH = 64


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inside = nn.Linear(WIDTH, 4 * WIDTH)
        self.outside = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return inputs + self.outside(torch.relu(self.inside(inputs)))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.Sequential(*(Block() for _ in range(6)))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.blocks(inputs).square().mean()


def build_model() -> nn.Module:
    return Model()


def make_batch(batch_size: int) -> dict[str, torch.Tensor]:
    return {"inputs": torch.randn(batch_size, 32, WIDTH)}
