"""BERT-base (110 million parameters) reads a snippet of source code and tells which package it comes from.

    momadvise --goal faster examples/bert_classifier.py

The snippets are real text of different lengths, padded to one length as usual, from the standard library that every
Python installation has; nothing is downloaded, and the weights start random.
"""

import functools
import sysconfig
from pathlib import Path

import torch
from transformers import BertConfig, BertForSequenceClassification

# BERT reads up to 512 tokens. Without a GPU the snippets are shorter, so that a step on a CPU of two cores takes
# seconds: what you then learn is true for short snippets on this CPU.
LONGEST = 512 if torch.cuda.is_available() else 64

# The batch that you train with today: momadvise measures it first, and compares everything with it.
BATCH_SIZE = 8

PADDING, START = 0, 101  # [PAD] and [CLS] in BERT's vocabulary
FIRST_BYTE = 1000  # bytes stand for tokens, behind the special ones


def build_model():
    return BertForSequenceClassification(BertConfig(num_labels=len(standard_library())))


def build_optimizer(parameters):
    return torch.optim.AdamW(parameters, lr=5e-5)


def make_batch(batch_size):
    packages = standard_library()
    labels = torch.randint(len(packages), (batch_size,))
    lengths = torch.randint(LONGEST // 4, LONGEST, (batch_size,))
    tokens = torch.full((batch_size, LONGEST), PADDING)
    tokens[:, 0] = START
    for row, (label, length) in enumerate(zip(labels.tolist(), lengths.tolist(), strict=True)):
        start = int(torch.randint(len(packages[label]) - length, ()))
        tokens[row, 1 : 1 + length] = FIRST_BYTE + packages[label][start : start + length].long()
    return {"input_ids": tokens, "attention_mask": (tokens != PADDING).long(), "labels": labels}


@functools.cache
def standard_library():
    """The sources of each package of the library, read once: one tensor of bytes for every label."""
    library = Path(sysconfig.get_path("stdlib"))
    packages = []
    for folder in sorted(path.parent for path in library.glob("*/__init__.py")):
        content = b"".join(path.read_bytes() for path in sorted(folder.rglob("*.py")))
        if len(content) > 50_000:
            packages.append(torch.frombuffer(bytearray(content), dtype=torch.uint8))
    return packages
