"""A ConvNeXt of half a million parameters: depthwise convolutions, and normalization over channels."""

import torch
from transformers import ConvNextConfig, ConvNextForImageClassification

BATCH_SIZE = 4

_PIXELS = 32
_CLASSES = 10


def build_model():
    return ConvNextForImageClassification(
        ConvNextConfig(
            image_size=_PIXELS,
            patch_size=2,
            hidden_sizes=[32, 64, 96, 128],
            depths=[1, 1, 3, 1],
            num_labels=_CLASSES,
        )
    )


def make_batch(batch_size):
    return {
        "pixel_values": torch.randn(batch_size, 3, _PIXELS, _PIXELS),
        "labels": torch.randint(_CLASSES, (batch_size,)),
    }
