"""A convolutional network of alternating narrow and wide layers."""

import torch
from transformers import MobileNetV2Config, MobileNetV2ForImageClassification

BATCH_SIZE = 8


def build_model():
    return MobileNetV2ForImageClassification(MobileNetV2Config(num_labels=1000))


def make_batch(batch_size):
    return {"pixel_values": torch.randn(batch_size, 3, 160, 160), "labels": torch.randint(1000, (batch_size,))}
