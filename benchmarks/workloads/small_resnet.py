"""A ResNet of basic blocks on images of 24 pixels: three widths, three blocks each, half a million parameters."""

import torch
from torch import nn
from torch.nn import functional

BATCH_SIZE = 4

_PIXELS = 24
_CLASSES = 10


class Block(nn.Module):
    """Two convolutions beside a shortcut."""

    def __init__(self, channels_in, channels, stride=1):
        super().__init__()
        self.conv1 = nn.Conv2d(channels_in, channels, 3, stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(channels)
        self.shortcut = nn.Sequential()
        if stride > 1 or channels != channels_in:
            self.shortcut = nn.Sequential(
                nn.Conv2d(channels_in, channels, 1, stride, bias=False), nn.BatchNorm2d(channels)
            )

    def forward(self, image):
        """One block."""
        inside = functional.relu(self.norm1(self.conv1(image)))
        return functional.relu(self.norm2(self.conv2(inside)) + self.shortcut(image))


def build_model():
    layers = [nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU()]
    before = 16
    for channels, stride in ((16, 1), (32, 2), (64, 2)):
        layers += [Block(before, channels, stride), Block(channels, channels), Block(channels, channels)]
        before = channels
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, _CLASSES))


def make_batch(batch_size):
    return torch.randn(batch_size, 3, _PIXELS, _PIXELS), torch.randint(_CLASSES, (batch_size,))


def compute_loss(model, batch):
    images, labels = batch
    return functional.cross_entropy(model(images), labels)
