"""A transformer over patches of images."""

import torch
from transformers import ViTConfig, ViTForImageClassification

BATCH_SIZE = 8


def build_model(blocks=6):
    return ViTForImageClassification(
        ViTConfig(
            hidden_size=384, num_hidden_layers=blocks, num_attention_heads=6, intermediate_size=1536, image_size=224,
            num_labels=1000,
        )
    )  # fmt: skip


def make_batch(batch_size):
    return {"pixel_values": torch.randn(batch_size, 3, 224, 224), "labels": torch.randint(1000, (batch_size,))}
