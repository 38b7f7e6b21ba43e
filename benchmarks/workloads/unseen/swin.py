"""A transformer over windows of images, with a relative position bias in each."""

import torch
from transformers import SwinConfig, SwinForImageClassification

BATCH_SIZE = 8


def build_model(blocks=4):
    return SwinForImageClassification(
        SwinConfig(image_size=224, embed_dim=64, depths=[2, 2, blocks, 2], num_heads=[2, 4, 8, 16], num_labels=1000)
    )


def make_batch(batch_size):
    return {"pixel_values": torch.randn(batch_size, 3, 224, 224), "labels": torch.randint(1000, (batch_size,))}
