"""A model that reads values: while it is built (``when=1``), in every step (2), or that has shapes of values (3)."""

import torch

BATCH_SIZE = 4
SIZES = {"when": [0, 1, 2, 3]}


class Reading(torch.nn.Module):
    def __init__(self, when):
        super().__init__()
        self.layer = torch.nn.Linear(16, 16)
        self.when = when
        if when == 1:
            self.scale = float(self.layer.weight.abs().max())

    def forward(self, inputs):
        outputs = self.layer(inputs)
        if self.when == 2 and outputs.abs().max().item() > 1e9:
            outputs = outputs * 2
        if self.when == 3:
            outputs = outputs[outputs > -1e9]
        return outputs.square().mean()


def build_model(when=0):
    return Reading(when)


def make_batch(batch_size):
    return torch.randn(batch_size, 16)
