"""A U-Net on ResNet-34 cleans noisy radiographs, by the similarity of structures and not of single pixels.

    momadvise --goal faster examples/unet.py
    momadvise --goal bigger examples/unet.py --min-throughput 0.25x

Radiology wants images as large as the memory of a GPU allows, and a loss that is made of small differences: here lower
precision and memory methods meet a training that shows what they cost (Rodriguez 2024). The radiographs are drawn: a
body of soft ellipses with lungs, ribs and small spots, seen through the noise of few photons, so nothing is downloaded;
time and memory of a step are those of real images of the same size.
"""

import torch
from torch import nn
from torch.nn import functional

# Without a GPU the images are smaller, so that a step on a CPU of two cores takes about a second: what you then learn
# is true for small images on this CPU.
PIXELS = 512 if torch.cuda.is_available() else 64

# The batch that you train with today: momadvise measures it first, and compares everything with it.
BATCH_SIZE = 4

# For --goal bigger: the side of the square images, a multiple of 32.
SIZES = {"pixels": [PIXELS * factor // 4 for factor in (2, 4, 6, 8, 12, 16, 24, 32)]}


def build_model(width=64):
    return UNet(width)


def build_optimizer(parameters):
    return torch.optim.Adam(parameters, lr=1e-3)


def make_batch(batch_size, pixels=PIXELS):
    clean = radiographs(batch_size, pixels)
    photons = 5.0  # in the brightest spot of a noisy image
    return {"noisy": torch.poisson(clean * photons) / photons, "clean": clean}


def compute_loss(model, batch):
    return 1 - similarity(model(batch["noisy"]), batch["clean"])


class Block(nn.Module):
    """ResNet's basic block: two convolutions beside a shortcut."""

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
        inside = functional.relu(self.norm1(self.conv1(image)))
        return functional.relu(self.norm2(self.conv2(inside)) + self.shortcut(image))


class Up(nn.Module):
    """Twice the size, joined with what the encoder saw at that size."""

    def __init__(self, channels_in, channels_beside, channels):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(channels_in + channels_beside, channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(channels),
            nn.ReLU(),
            nn.Conv2d(channels, channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(channels),
            nn.ReLU(),
        )

    def forward(self, image, beside):
        return self.layers(torch.cat([functional.interpolate(image, scale_factor=2.0), beside], dim=1))


class UNet(nn.Module):
    """The encoder is ResNet-34 (for one channel) at a width of 64; what is learned is added to the image."""

    def __init__(self, width=64, depths=(3, 4, 6, 3)):
        super().__init__()
        stem = [nn.Conv2d(1, width, 7, 2, padding=3, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
        self.stem, self.pool = nn.Sequential(*stem), nn.MaxPool2d(3, 2, padding=1)
        self.stages, before = nn.ModuleList(), width
        for stage, depth in enumerate(depths):
            channels = width * 2**stage
            first = Block(before, channels, stride=1 if stage == 0 else 2)
            self.stages.append(nn.Sequential(first, *(Block(channels, channels) for _ in range(depth - 1))))
            before = channels
        widths = [width, width, 2 * width, 4 * width]  # of the encoder, from the largest image to the smallest
        self.ups = nn.ModuleList()
        for beside in reversed(widths):
            self.ups.append(Up(before, beside, max(beside // 2, 8)))
            before = max(beside // 2, 8)
        self.head = nn.Conv2d(before, 1, 3, padding=1)

    def forward(self, image):
        seen = [self.stem(image)]
        inside = self.pool(seen[0])
        for stage in self.stages:
            inside = stage(inside)
            seen.append(inside)
        for up, beside in zip(self.ups, reversed(seen[:-1]), strict=True):
            inside = up(inside, beside)
        return image + self.head(functional.interpolate(inside, scale_factor=2.0))


def similarity(image, target, window=7, scales=5):
    """Multi-scale structural similarity (Wang 2003), with means over square windows; 1 for equal images."""
    # Variances are differences of nearly equal numbers: never in 16 bits, whatever the model computes in.
    image, target = image.float(), target.float()
    product = torch.ones((), device=image.device)
    weights = [0.0448, 0.2856, 0.3001, 0.2363, 0.1333][:scales]
    for scale, weight in enumerate(weights):
        mean_1, mean_2 = mean(image, window), mean(target, window)
        variances = mean(image**2, window) - mean_1**2 + mean(target**2, window) - mean_2**2
        covariance = mean(image * target, window) - mean_1 * mean_2
        structure = (2 * covariance + 0.03**2) / (variances + 0.03**2)
        last = scale == len(weights) - 1 or image.shape[-1] < 4 * window
        if last:
            structure = structure * (2 * mean_1 * mean_2 + 0.01**2) / (mean_1**2 + mean_2**2 + 0.01**2)
        product = product * structure.mean().clamp(min=1e-4) ** weight
        if last:
            return product
        image, target = functional.avg_pool2d(image, 2), functional.avg_pool2d(target, 2)
    return product


def mean(image, window):
    """The mean over every window of the image."""
    return functional.avg_pool2d(image, window, stride=1)


def radiographs(count, pixels):
    """Drawn chests, brightness from 0 to 1."""
    line = torch.linspace(-1, 1, pixels)
    rows, columns = line[:, None], line[None, :]

    def one(*size):  # a number for every image
        return torch.rand(count, *size, 1, 1)

    def ellipse(row, column, height, width, soft=0.05):
        inside = 1 - ((rows - row) / height) ** 2 - ((columns - column) / width) ** 2
        return torch.sigmoid(inside / soft)

    tilt = 0.1 * one() - 0.05
    chest = 0.55 * ellipse(0.1, tilt, 0.95, 0.75 + 0.15 * one())
    for side in (-1, 1):
        chest = chest - 0.35 * ellipse(0.1 * one(), tilt + 0.36 * side, 0.55 + 0.1 * one(), 0.24 + 0.06 * one())
    phase = 6.3 * one()
    ribs = torch.sigmoid(12 * (torch.sin(16 * (rows + 0.35 * (columns - tilt) ** 2) + phase) - 0.7))
    spine = ellipse(0.1, tilt, 1.2, 0.08)
    spots = ellipse(1.2 * one(6) - 0.6, 1.2 * one(6) - 0.6, 0.02 + 0.04 * one(6), 0.02 + 0.04 * one(6)).sum(dim=1)
    image = chest + (0.12 * ribs + 0.25 * spine + 0.15 * spots) * ellipse(0.1, tilt, 0.95, 0.8)
    return image.clamp(0, 1).reshape(count, 1, pixels, pixels)
