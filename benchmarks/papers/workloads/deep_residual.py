"""A pre-activation residual network of any depth: the network of He et al. that Chen et al. train with 1,000 layers."""

import torch
from torch import nn
from torch.nn import functional

_PIXELS = 16
_CLASSES = 10


class Block(nn.Module):
    """BatchNorm, ReLU and convolution, twice, with a residual connection."""

    def __init__(self, channels):
        super().__init__()
        self.norm1 = nn.BatchNorm2d(channels)
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)

    def forward(self, image):
        """One block: two layers of the depth."""
        inside = self.conv1(functional.relu(self.norm1(image)))
        return image + self.conv2(functional.relu(self.norm2(inside)))


def build_model(layers=20, channels=8):
    blocks = [Block(channels) for _ in range(layers // 2)]
    stem = nn.Conv2d(3, channels, 3, padding=1, bias=False)
    return nn.Sequential(stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, _CLASSES))


def make_batch(batch_size):
    return torch.randn(batch_size, 3, _PIXELS, _PIXELS), torch.randint(_CLASSES, (batch_size,))


def compute_loss(model, batch):
    images, labels = batch
    return functional.cross_entropy(model(images), labels)
