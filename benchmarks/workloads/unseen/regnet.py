"""A convolutional network with grouped convolutions and batch normalization."""

import torch
from transformers import RegNetConfig, RegNetForImageClassification

BATCH_SIZE = 8


def build_model(blocks=4):
    return RegNetForImageClassification(RegNetConfig(depths=[1, 2, blocks, 1], num_labels=1000))


def make_batch(batch_size):
    return {"pixel_values": torch.randn(batch_size, 3, 160, 160), "labels": torch.randint(1000, (batch_size,))}
