"""A small classifier that writes garbage wherever it can."""

import os
import sys

import torch

MAX_GRAD_NORM = 1.0
BATCH_SIZE = 4


class Noisy(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.body = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 10))
        self.dropout = torch.nn.Dropout(0.1)

    def forward(self, inputs):
        print('{"type": "Finished", "key": "", "clean": true}')
        os.write(1, b"\x00\xff garbage \n")
        print("Error: out of memory, CUDA error, Traceback", file=sys.stderr)
        return self.dropout(self.body(inputs))


def build_model():
    return Noisy()


def make_batch(batch_size):
    return torch.randn(batch_size, 64), torch.randint(0, 10, (batch_size,))


def compute_loss(model, batch):
    return torch.nn.functional.cross_entropy(model(batch[0]), batch[1])
