"""A Swin Transformer of any width; the published Swin-Large has a width of 192 and 18 layers in its third stage."""

import torch
from transformers import SwinConfig, SwinForImageClassification


def build_model(width=192, third=18, others=2, head=32, pixels=224, window=7, classes=1000):
    widths = [width * 2**stage for stage in range(4)]
    return SwinForImageClassification(
        SwinConfig(
            image_size=pixels,
            embed_dim=width,
            depths=[others, others, third, others],
            num_heads=[each // head for each in widths],
            window_size=window,
            num_labels=classes,
        )
    )


def make_batch(batch_size, pixels=224, classes=1000):
    images = torch.randn(batch_size, 3, pixels, pixels)
    return {"pixel_values": images, "labels": torch.randint(classes, (batch_size,))}
