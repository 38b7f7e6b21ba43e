"""Batches of noise for speech models, in the form that the config takes: waveforms, or frames of a spectrogram."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from advisor.errors import WorkloadError

__all__ = ["sound_batches"]

_SAMPLING_RATE = 16_000
"""Values a second that speech models are trained on."""
_SECONDS = 2
_FRAMES = 100
"""Of 20 ms each: as long."""
_LABELS = 16
"""Tokens that are said in that time, at most."""


def sound_batches(name: str, config: Any, location: str, tokens: int | None) -> tuple[Callable[..., Any], str]:
    """Noise, with random tokens to recognize or a random class.

    Args:
        name: The head.
        config: Its config.
        location: What the user named, for an error.
        tokens: Tokens to recognize; ``None`` for 16.

    Returns:
        The function that makes batches, and what a sample is.

    Raises:
        WorkloadError: Nobody knows what this model takes.
    """
    field, shape, words = _inputs(config, location)
    classes = name == "audio classifier"
    kinds = int(config.num_labels) if classes else _vocabulary(config)
    most = getattr(config, "max_target_positions", None) or 10**6
    length = min(tokens or _LABELS, most)

    def make_batch(batch_size: int) -> dict[str, torch.Tensor]:
        said = (batch_size,) if classes else (batch_size, length)
        # 0 is the blank of CTC, which is never said.
        return {field: torch.randn(batch_size, *shape), "labels": torch.randint(0 if classes else 1, kinds, said)}

    target = f"of {kinds} random classes" if classes else f"{length} random tokens"
    return make_batch, f"noise of {words}, {target}"


def _inputs(config: Any, location: str) -> tuple[str, tuple[int, ...], str]:
    """Name and shape of a sample, and the words for it."""
    bins, source = getattr(config, "num_mel_bins", None), getattr(config, "max_source_positions", None)
    if getattr(config, "conv_stride", None) is not None:
        values = _SECONDS * _SAMPLING_RATE
        return "input_values", (values,), f"{_SECONDS} s ({values} values)"
    if bins and source:
        frames = 2 * source  # halved by a convolution; Whisper takes no other length
        return "input_features", (bins, frames), f"{frames} frames of {bins} mel bins"
    if bins and getattr(config, "max_length", None):
        return "input_values", (config.max_length, bins), f"{config.max_length} frames of {bins} mel bins"
    width = getattr(config, "feature_projection_input_dim", None) or getattr(config, "input_feat_per_channel", None)
    if width:
        return "input_features", (_FRAMES, width), f"{_FRAMES} frames of {width} features"
    raise WorkloadError(
        f"{location} must take a waveform or a spectrogram in a form that is known, but {type(config).__name__} says "
        "neither. Write a Python file with build_model and make_batch for it."
    )


def _vocabulary(config: Any) -> int:
    return int(getattr(config, "vocab_size", None) or config.get_text_config().vocab_size)
