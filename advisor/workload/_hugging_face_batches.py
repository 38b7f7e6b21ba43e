"""Batches for models built from a config: real text for text models, noise for models of images.

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

__all__ = ["image_batches", "text_batches"]

Batch = dict[str, torch.Tensor]
MakeBatch = Callable[..., Batch]
"""Takes the number of samples and, optionally, tokens per sample or pixels per side."""

_IGNORED = -100
"""Label that torch's cross entropy leaves out."""
_MASKED_SHARE = 0.15
"""Share of tokens to predict, as BERT was trained (Devlin 2018, section 3.1)."""


_SAMPLES = {
    "causal language model": "",
    "masked language model": ", 15 % of them masked",
    "sequence-to-sequence model": " on either side",
    "text classifier": ", of {labels} random classes",
    "token classifier": ", each of {labels} random classes",
    "question answering model": ", with a random answer in it",
}


def text_batches(head: str, vocabulary: int, length: int, labels: int) -> tuple[MakeBatch, str]:
    """Text for a head: to predict the next tokens, masked ones, the text that follows, or a random class.

    Args:
        head: One of those that take text.
        vocabulary: Number of token ids.
        length: Tokens of a sample by default.
        labels: Number of classes.

    Returns:
        The function that makes batches, without padding, and what a sample is.
    """

    def make_batch(batch_size: int, *, tokens: int = length) -> Batch:
        if head == "sequence-to-sequence model":
            both = _text(batch_size, 2 * tokens, vocabulary)
            source, target = both[:, :tokens].contiguous(), both[:, tokens:].contiguous()
            return {"input_ids": source, "attention_mask": torch.ones_like(source), "labels": target}
        text = _text(batch_size, tokens, vocabulary)
        if head == "causal language model":
            return {"input_ids": text, "labels": text.clone()}
        mask = torch.ones_like(text)
        if head == "text classifier":
            return {"input_ids": text, "attention_mask": mask, "labels": torch.randint(labels, (batch_size,))}
        if head == "token classifier":
            return {"input_ids": text, "attention_mask": mask, "labels": torch.randint(labels, text.shape)}
        if head == "question answering model":
            answer = torch.randint(tokens, (batch_size, 2)).sort(dim=1).values
            return {
                "input_ids": text,
                "attention_mask": mask,
                "start_positions": answer[:, 0].contiguous(),
                "end_positions": answer[:, 1].contiguous(),
            }
        chosen = torch.rand(text.shape) < _MASKED_SHARE
        chosen[:, 0] = True  # never a batch without a target
        inputs, targets = text.masked_fill(chosen, vocabulary - 1), text.masked_fill(~chosen, _IGNORED)
        return {"input_ids": inputs, "attention_mask": mask, "labels": targets}

    described = f"{length} tokens, the bytes of Python's own library{_SAMPLES[head].format(labels=labels)}"
    return make_batch, described


def image_batches(head: str, config: Any) -> tuple[MakeBatch, str]:
    """Noise with a random class of the image, or of each pixel, at the config's image size; 224 where it names none.

    Args:
        head: One of those that take images.
        config: Its config.

    Returns:
        The function that makes batches, and what a sample is.
    """
    size = getattr(config, "image_size", None) or 224
    height, width = (size, size) if isinstance(size, int) else tuple(size)
    channels, labels = int(getattr(config, "num_channels", 3)), int(config.num_labels)
    of_each_pixel = head == "semantic segmentation model"

    def make_batch(batch_size: int, *, image_size: int | None = None) -> Batch:
        sides = (height, width) if image_size is None else (image_size, image_size)
        return {
            "pixel_values": torch.randn(batch_size, channels, *sides),
            "labels": torch.randint(labels, (batch_size, *sides) if of_each_pixel else (batch_size,)),
        }

    each = "each " if of_each_pixel else ""
    return make_batch, f"noise of {channels} x {height} x {width} pixels, {each}of {labels} random classes"


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
