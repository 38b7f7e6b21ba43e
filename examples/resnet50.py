"""ResNet-50 (25.6 million parameters) tells which package a piece of source code comes from, by its looks.

    momadvise --goal faster examples/resnet50.py
    momadvise --goal bigger examples/resnet50.py --min-throughput 0.5x

An image is a stretch of a package's source code whose bytes are taken as red, green and blue pixels, a way of seeing
files that is used to sort malware. It is real data with structure and labels that needs no download; it is not
photographs, and an accuracy on it means nothing elsewhere. The time and memory of a step are those of photographs of
the same size.
"""

import functools
import sysconfig
from pathlib import Path

import torch
from transformers import ResNetConfig, ResNetForImageClassification

# ImageNet's usual size. Without a GPU the images are smaller, so that a step on a CPU of two cores takes about a
# second: what you then learn is true for small images on this CPU.
PIXELS = 224 if torch.cuda.is_available() else 64

# The batch that you train with today: momadvise measures it first, and compares everything with it.
BATCH_SIZE = 16

# For --goal bigger: blocks of the third stage, which is where ResNet-101 (23 blocks) and larger ones grow.
SIZES = {"blocks": [6, 9, 12, 16, 23, 30, 36, 48, 64]}


def build_model(blocks=6):
    # ResNetConfig's defaults are ResNet-50. The last layer keeps ImageNet's 1000 classes, of which we use a few.
    return ResNetForImageClassification(ResNetConfig(depths=[3, 4, blocks, 3], num_labels=1000))


def build_optimizer(parameters):
    # The usual rate of 0.1 is for batches of 256; a smaller batch takes a smaller rate (Goyal 2017).
    return torch.optim.SGD(parameters, lr=0.1 * BATCH_SIZE / 256, momentum=0.9, weight_decay=1e-4)


def make_batch(batch_size):
    packages = standard_library()
    labels = torch.randint(len(packages), (batch_size,))
    images = torch.stack([window(packages[label]) for label in labels.tolist()])
    return {"pixel_values": images, "labels": labels}


def window(content):
    """A random stretch of a package as one image with values around zero."""
    size = 3 * PIXELS * PIXELS
    start = torch.randint(len(content) - size, ())
    return (content[start : start + size].float() / 64 - 1).reshape(3, PIXELS, PIXELS)


@functools.cache
def standard_library():
    """The sources of each package of the library that is large enough for one image, read once."""
    library = Path(sysconfig.get_path("stdlib"))
    packages = []
    for folder in sorted(path.parent for path in library.glob("*/__init__.py")):
        content = b"".join(path.read_bytes() for path in sorted(folder.rglob("*.py")))
        if len(content) > 2 * 3 * 224 * 224:
            packages.append(torch.frombuffer(bytearray(content), dtype=torch.uint8))
    return packages
