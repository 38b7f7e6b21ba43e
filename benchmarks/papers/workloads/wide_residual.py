"""A wide residual network with identity shortcuts (WRN-28-2 by default), on small images that need no download.

The images are scikit-learn's handwritten digits if scikit-learn is installed: 1,797 of 8 x 8 pixels, enlarged to
CIFAR-10's 32 x 32. Otherwise they are synthetic, the same number and size: ten fixed patterns, shifted and with noise.
"""

import functools

import torch
from torch import nn
from torch.nn import functional

_CLASSES = 10
_SYNTHETIC = 1800
_NOISE = 1.5


class Block(nn.Module):
    """BatchNorm, ReLU and convolution, twice, with a subsampled shortcut, zero-padded for missing channels."""

    def __init__(self, before, after, stride):
        super().__init__()
        self.stride, self.more = stride, after - before
        self.norm1 = nn.BatchNorm2d(before)
        self.conv1 = nn.Conv2d(before, after, 3, stride, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(after)
        self.conv2 = nn.Conv2d(after, after, 3, padding=1, bias=False)

    def forward(self, image):
        """One block: two layers of the depth."""
        inside = self.conv1(functional.relu(self.norm1(image)))
        inside = self.conv2(functional.relu(self.norm2(inside)))
        if self.stride > 1 or self.more:
            image = functional.pad(image[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, 0, self.more))
        return image + inside


def build_model(depth=28, widen=2):
    each = (depth - 4) // 6
    channels, blocks = 16, []
    for group, width in enumerate((16 * widen, 32 * widen, 64 * widen)):
        for number in range(each):
            blocks.append(Block(channels, width, 2 if group and not number else 1))
            channels = width
    stem = nn.Conv2d(3, 16, 3, padding=1, bias=False)
    head = (nn.BatchNorm2d(channels), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, _CLASSES))
    return nn.Sequential(stem, *blocks, *head)


def build_optimizer(parameters):
    # The paper's Table 5; the learning rate of the dense network from its Table 6, also for the sparse one.
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9, nesterov=True, weight_decay=5e-4)


def rate(progress):
    """The paper's schedule: divide the learning rate by five after 30, 60 and 80 % of the steps."""
    return 0.2 ** sum(progress >= share for share in (0.3, 0.6, 0.8))


def make_batch(batch_size, pixels=32):
    images, labels = _images(held_out=False)
    chosen = torch.randint(len(images), (batch_size,))
    return _enlarged(images[chosen], pixels), labels[chosen]


def compute_loss(model, batch):
    images, labels = batch
    return functional.cross_entropy(model(images), labels)


def score(model, device, pixels=32, held_out=360):
    """Accuracy on held-out images, in per cent."""
    images, labels = (part[:held_out] for part in _images(held_out=True))
    right = 0
    for some, answers in zip(images.split(100), labels.split(100), strict=True):
        right += int((model(_enlarged(some, pixels).to(device)).argmax(1).cpu() == answers).sum())
    return 100 * right / len(labels)


def _enlarged(images, pixels):
    larger = functional.interpolate(images, size=(pixels, pixels), mode="bilinear", align_corners=False)
    return larger.expand(-1, 3, -1, -1).contiguous()


def data():
    """A description of the training data."""
    return _all_images()[2]


def _images(held_out):
    """Images of one channel and labels; every fifth is held out."""
    images, labels, _ = _all_images()
    kept = (torch.arange(len(images)) % 5 == 0) == held_out
    return images[kept], labels[kept]


@functools.cache
def _all_images():
    try:
        from sklearn.datasets import load_digits
    except ImportError:  # It is not installed, or one of its dependencies is missing.
        return *_synthetic_images(), "synthetic images"
    digits = load_digits()
    images = torch.from_numpy(digits.images).float().unsqueeze(1)
    return (images - images.mean()) / images.std(), torch.from_numpy(digits.target).long(), "scikit-learn's digits"


def _synthetic_images():
    generator = torch.Generator().manual_seed(0)
    patterns = torch.randn(_CLASSES, 1, 8, 8, generator=generator)
    labels = torch.randint(_CLASSES, (_SYNTHETIC,), generator=generator)
    shifts = torch.randint(-1, 2, (_SYNTHETIC, 2), generator=generator).tolist()
    images = torch.stack([patterns[one].roll(by, (1, 2)) for one, by in zip(labels.tolist(), shifts, strict=True)])
    return images + _NOISE * torch.randn(images.shape, generator=generator), labels
