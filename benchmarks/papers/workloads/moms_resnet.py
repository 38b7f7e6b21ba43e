"""ResNet-50 and its bottleneck variants (He et al. 2016), of any depth and width; ``wide=2`` is Wide-ResNet-50-2."""

import torch
from torch import nn
from torch.nn import functional

_EXPANSION = 4
_FIRST_TWO_AND_LAST = (3, 4, 3)
"""Blocks of the stages that do not grow: between ResNet-50 and ResNet-101 only the third does."""


class Bottleneck(nn.Module):
    """Three convolutions, the middle one narrow, with a shortcut."""

    def __init__(self, channels_in, inside, channels, stride=1):
        super().__init__()
        self.conv1 = nn.Conv2d(channels_in, inside, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(inside)
        self.conv2 = nn.Conv2d(inside, inside, 3, stride, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(inside)
        self.conv3 = nn.Conv2d(inside, channels, 1, bias=False)
        self.norm3 = nn.BatchNorm2d(channels)
        self.shortcut = nn.Sequential()
        if stride > 1 or channels != channels_in:
            projection = nn.Conv2d(channels_in, channels, 1, stride, bias=False)
            self.shortcut = nn.Sequential(projection, nn.BatchNorm2d(channels))

    def forward(self, image):
        """One block: three layers of the depth."""
        inside = functional.relu(self.norm1(self.conv1(image)))
        inside = functional.relu(self.norm2(self.conv2(inside)))
        return functional.relu(self.norm3(self.conv3(inside)) + self.shortcut(image))


def build_model(layers=50, width=64, wide=1, classes=1000):
    third = (layers - 2) // 3 - sum(_FIRST_TWO_AND_LAST)
    depths = (*_FIRST_TWO_AND_LAST[:2], third, _FIRST_TWO_AND_LAST[2])
    stages, before = [], width
    for stage, depth in enumerate(depths):
        narrow = width * 2**stage
        channels = _EXPANSION * narrow
        first = Bottleneck(before, wide * narrow, channels, stride=1 if stage == 0 else 2)
        others = (Bottleneck(channels, wide * narrow, channels) for _ in range(depth - 1))
        stages.append(nn.Sequential(first, *others))
        before = channels
    stem = [nn.Conv2d(3, width, 7, 2, padding=3, bias=False), nn.BatchNorm2d(width), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, classes)]
    return nn.Sequential(*stem, *stages, *head)


def build_optimizer(parameters):
    return torch.optim.SGD(parameters, lr=0.01, momentum=0.9, weight_decay=1e-4)


def make_batch(batch_size, pixels=224, classes=1000):
    return torch.randn(batch_size, 3, pixels, pixels), torch.randint(classes, (batch_size,))


def compute_loss(model, batch):
    images, labels = batch
    return functional.cross_entropy(model(images), labels)
