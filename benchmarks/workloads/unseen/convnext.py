"""A convolutional network with normalization over channels, which permutes them to the last dimension and back."""

import torch
from transformers import ConvNextConfig, ConvNextForImageClassification

BATCH_SIZE = 8


def build_model(blocks=5):
    return ConvNextForImageClassification(
        ConvNextConfig(hidden_sizes=[64, 128, 256, 512], depths=[2, 2, blocks, 2], num_labels=1000)
    )


def make_batch(batch_size):
    return {"pixel_values": torch.randn(batch_size, 3, 192, 192), "labels": torch.randint(1000, (batch_size,))}
