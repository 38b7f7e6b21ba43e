"""A vision transformer of half a million parameters: attention over the patches of small pictures."""

import torch
from transformers import ViTConfig, ViTForImageClassification

BATCH_SIZE = 4

_PIXELS = 32
_CLASSES = 10


def build_model():
    return ViTForImageClassification(
        ViTConfig(
            image_size=_PIXELS,
            patch_size=4,
            hidden_size=96,
            num_hidden_layers=4,
            num_attention_heads=4,
            intermediate_size=384,
            num_labels=_CLASSES,
        )
    )


def make_batch(batch_size):
    return {
        "pixel_values": torch.randn(batch_size, 3, _PIXELS, _PIXELS),
        "labels": torch.randint(_CLASSES, (batch_size,)),
    }
