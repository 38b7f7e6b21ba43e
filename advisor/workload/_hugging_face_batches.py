"""Batches for models built from a config: real text for text models, noise for image models.

Speed and memory depend on shapes and types alone; the content matters only for losses, which are compared on equal
batches.
"""

from __future__ import annotations

import functools
import sysconfig
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from advisor.errors import WorkloadError

__all__ = [
    "causal_batches",
    "classified_text_batches",
    "image_batches",
    "masked_batches",
    "sequence_to_sequence_batches",
]

Batch = dict[str, torch.Tensor]
MakeBatch = Callable[..., Batch]
"""Takes the number of samples and, optionally, tokens per sample or pixels per side."""

_IGNORED = -100
"""Label that torch's cross entropy leaves out."""
_MASKED_SHARE = 0.15
"""Share of tokens to predict, as BERT was trained (Devlin 2018, section 3.1)."""


def causal_batches(vocabulary: int, length: int) -> tuple[MakeBatch, str]:
    """Text for next-token prediction."""

    def make_batch(batch_size: int, *, tokens: int = length) -> Batch:
        text = _text(batch_size, tokens, vocabulary)
        return {"input_ids": text, "labels": text.clone()}

    return make_batch, _described(length)


def masked_batches(vocabulary: int, length: int) -> tuple[MakeBatch, str]:
    """Text with 15 % of its tokens to be predicted, and an attention mask without padding."""

    def make_batch(batch_size: int, *, tokens: int = length) -> Batch:
        text = _text(batch_size, tokens, vocabulary)
        chosen = torch.rand(text.shape) < _MASKED_SHARE
        chosen[:, 0] = True  # never a batch without a target
        return {
            "input_ids": text.masked_fill(chosen, vocabulary - 1),
            "attention_mask": torch.ones_like(text),
            "labels": text.masked_fill(~chosen, _IGNORED),
        }

    return make_batch, f"{_described(length)}, 15 % of them masked"


def sequence_to_sequence_batches(vocabulary: int, length: int) -> tuple[MakeBatch, str]:
    """Text and the text that follows it."""

    def make_batch(batch_size: int, *, tokens: int = length) -> Batch:
        both = _text(batch_size, 2 * tokens, vocabulary)
        source, target = both[:, :tokens].contiguous(), both[:, tokens:].contiguous()
        return {"input_ids": source, "attention_mask": torch.ones_like(source), "labels": target}

    return make_batch, f"{_described(length)} on either side"


def classified_text_batches(vocabulary: int, length: int, labels: int) -> tuple[MakeBatch, str]:
    """Text with a random class."""

    def make_batch(batch_size: int, *, tokens: int = length) -> Batch:
        text = _text(batch_size, tokens, vocabulary)
        return {
            "input_ids": text,
            "attention_mask": torch.ones_like(text),
            "labels": torch.randint(labels, (batch_size,)),
        }

    return make_batch, f"{_described(length)}, of {labels} random classes"


def image_batches(config: Any) -> tuple[MakeBatch, str]:
    """Noise with a random class, at the config's image size, or 224 where a convolutional config names none."""
    size = getattr(config, "image_size", None) or 224
    height, width = (size, size) if isinstance(size, int) else tuple(size)
    channels, labels = int(getattr(config, "num_channels", 3)), int(config.num_labels)

    def make_batch(batch_size: int, *, image_size: int | None = None) -> Batch:
        sides = (height, width) if image_size is None else (image_size, image_size)
        return {
            "pixel_values": torch.randn(batch_size, channels, *sides),
            "labels": torch.randint(labels, (batch_size,)),
        }

    return make_batch, f"noise of {channels} x {height} x {width} pixels, of {labels} random classes"


def _described(length: int) -> str:
    return f"{length} tokens, the bytes of Python's own library"


def _text(batch_size: int, length: int, vocabulary: int) -> torch.Tensor:
    corpus = _corpus()
    starts = torch.randint(len(corpus) - length, (batch_size, 1))
    # Byte values lie below most vocabularies; a smaller one wraps around.
    return corpus[starts + torch.arange(length)].long() % vocabulary


@functools.cache
def _corpus() -> torch.Tensor:
    """The sources of the standard library's top folder, about six megabytes of real text that every Python has."""
    folder = Path(sysconfig.get_path("stdlib"))
    content = b"".join(path.read_bytes() for path in sorted(folder.glob("*.py")))
    if not content:
        raise WorkloadError(
            f"text batches are made of the Python library's sources, but {folder} holds none. "
            "Write a Python file with build_model and make_batch."
        )
    return torch.frombuffer(bytearray(content), dtype=torch.uint8)
