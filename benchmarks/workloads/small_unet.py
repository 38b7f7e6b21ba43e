"""A U-Net of three levels that denoises images of 32 pixels: the encoder's saved activations are large."""

import torch
from torch import nn
from torch.nn import functional

BATCH_SIZE = 4

_PIXELS = 32


class Double(nn.Module):
    """Two convolutions, each with its normalization."""

    def __init__(self, channels_in, channels):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(channels_in, channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(channels),
            nn.ReLU(),
            nn.Conv2d(channels, channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(channels),
            nn.ReLU(),
        )

    def forward(self, image):
        """One level."""
        return self.layers(image)


class UNet(nn.Module):
    """Three levels down, and up again with skip connections."""

    def __init__(self, width=16, depth=3):
        super().__init__()
        widths = [width * 2**level for level in range(depth + 1)]
        self.down = nn.ModuleList(
            Double(before, channels) for before, channels in zip((1, *widths), widths[:depth], strict=False)
        )
        self.bottom = Double(widths[depth - 1], widths[depth])
        self.up = nn.ModuleList(
            Double(widths[level + 1] + widths[level], widths[level]) for level in reversed(range(depth))
        )
        self.head = nn.Conv2d(width, 1, 1)

    def forward(self, image):
        """The denoised image."""
        seen, inside = [], image
        for level in self.down:
            inside = level(inside)
            seen.append(inside)
            inside = functional.max_pool2d(inside, 2)
        inside = self.bottom(inside)
        for level, beside in zip(self.up, reversed(seen), strict=True):
            inside = level(torch.cat([functional.interpolate(inside, scale_factor=2.0), beside], dim=1))
        return image + self.head(inside)


def build_model():
    return UNet()


def make_batch(batch_size):
    clean = torch.rand(batch_size, 1, _PIXELS // 8, _PIXELS // 8).repeat_interleave(8, 2).repeat_interleave(8, 3)
    return {"noisy": clean + 0.1 * torch.randn_like(clean), "clean": clean}


def compute_loss(model, batch):
    return functional.mse_loss(model(batch["noisy"]), batch["clean"])
