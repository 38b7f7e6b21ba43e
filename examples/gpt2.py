"""GPT-2 small (124 million parameters) learns Python from Python's own standard library.

    momadvise --goal faster examples/gpt2.py
    momadvise --goal bigger examples/gpt2.py --min-throughput 0.5x

The architecture is the published one with random weights; the text is the sources that every Python installation has,
so nothing is downloaded.
"""

import functools
import sysconfig
from pathlib import Path

import torch
from transformers import GPT2Config, GPT2LMHeadModel

# GPT-2 reads 1024 tokens at a time. A step at that length takes a CPU of two cores about a minute, so without a GPU
# the samples are cut to 32: what you then learn is true for short samples on this CPU, and says nothing about a GPU.
CONTEXT = 1024 if torch.cuda.is_available() else 32

# The batch that you train with today: momadvise measures it first, and compares everything with it.
BATCH_SIZE = 4

# For --goal bigger: depth and width of the published GPT-2 models (medium has 24 and 1024, large 36 and 1280, XL 48 and
# 1600), and what lies between. A head stays 64 wide.
SIZES = {"layers": [12, 16, 24, 36, 48], "width": [768, 1024, 1280, 1600]}


def build_model(layers=12, width=768):
    return GPT2LMHeadModel(GPT2Config(n_layer=layers, n_embd=width, n_head=width // 64, use_cache=False))


def make_batch(batch_size):
    text = standard_library()
    starts = torch.randint(len(text) - CONTEXT, (batch_size, 1))
    # Bytes stand for tokens: the vocabulary, and so the cost of the last layer, stays that of GPT-2 (50,257).
    tokens = text[starts + torch.arange(CONTEXT)].long()
    # The model shifts the labels itself: each token is predicted from those before it.
    return {"input_ids": tokens, "labels": tokens.clone()}


@functools.cache
def standard_library():
    """The sources of the library's modules as bytes, read once."""
    files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    return torch.frombuffer(bytearray(b"".join(path.read_bytes() for path in files)), dtype=torch.uint8)
