"""A model whose depth, width and input length can be set."""

import torch

BATCH_SIZE = 4
SIZES = {"layers": [1, 2, 4], "width": [16, 32], "length": [8, 16]}


def build_model(layers=2, width=16):
    return torch.nn.Sequential(*(torch.nn.Linear(width, width) for _ in range(layers)))


def make_batch(batch_size, *, width=16, length=8):
    return torch.randn(batch_size, length, width)


def compute_loss(model, batch):
    return model(batch).square().mean()
