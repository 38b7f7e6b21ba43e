"""The loss of a batch, and what a usable loss is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from advisor.errors import WorkloadError

__all__ = ["check_loss", "default_loss", "is_causal_loss", "require_trainable"]

_LINES_FOR_MAPPING = """\
    def compute_loss(model, batch):
        output = model(**{name: value for name, value in batch.items() if name != "labels"})
        return torch.nn.functional.cross_entropy(output, batch["labels"])"""
_LINES_FOR_SEQUENCE = """\
    def compute_loss(model, batch):
        inputs, targets = batch
        return torch.nn.functional.cross_entropy(model(inputs), targets)"""


def default_loss(model: torch.nn.Module, batch: Any) -> torch.Tensor:
    """The loss when the workload defines none: what the model itself returns for the batch.

    A mapping is passed as keywords, a tuple or list as positional arguments, anything else as the one argument.
    The loss is the output's ``.loss``, its ``["loss"]``, or the output itself if that is a scalar tensor.

    Raises:
        WorkloadError: The output is nothing of the kind.
    """
    if isinstance(batch, Mapping):
        output = model(**batch)
    elif isinstance(batch, tuple | list):
        output = model(*batch)
    else:
        output = model(batch)
    loss = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
    if loss is None and isinstance(output, torch.Tensor) and output.numel() == 1:
        loss = output
    if isinstance(loss, torch.Tensor):
        return loss
    lines = _LINES_FOR_MAPPING if isinstance(batch, Mapping) else _LINES_FOR_SEQUENCE
    raise WorkloadError(
        "without compute_loss, the model must return its loss (a scalar tensor, or an output with .loss or "
        f'["loss"]), but it returned {_describe(output)}; add to the workload, for example:\n\n{lines}\n'
    )


def require_trainable(loss: Any) -> torch.Tensor:
    """The loss as a zero-dimensional tensor, if a backward pass can start from it. Reads no value (no device sync).

    Raises:
        WorkloadError: It is no tensor, not a scalar, not a real float, or has no gradient.
    """
    if not isinstance(loss, torch.Tensor):
        raise WorkloadError(
            f"compute_loss must return a scalar tensor, but it returned {_describe(loss)}; "
            "return the loss itself, before .item()"
        )
    if loss.numel() != 1:
        raise WorkloadError(
            f"the loss must be a scalar, but its shape is {tuple(loss.shape)}; reduce it, e.g. with .mean()"
        )
    if not loss.is_floating_point():
        raise WorkloadError(f"the loss must be a real floating-point tensor, but its type is {loss.dtype}")
    if not loss.requires_grad:
        raise WorkloadError(
            "the loss must depend on parameters that require a gradient, but it has none; remove torch.no_grad(), "
            ".detach() or .item() from the loss, and leave requires_grad=True on what is to be trained"
        )
    return loss if loss.dim() == 0 else loss.reshape(())


def check_loss(loss: Any) -> torch.Tensor:
    """All of :func:`require_trainable`, and the value is finite. For the probe: it reads the value.

    Raises:
        WorkloadError: It is no tensor, not a scalar, has no gradient, or is NaN or infinite.
    """
    scalar = require_trainable(loss)
    if not bool(torch.isfinite(scalar.detach())):
        raise WorkloadError(
            f"the first loss must be finite, but it is {scalar.item()}; look for a division by zero, a logarithm of "
            "zero, or a sample without any target"
        )
    return scalar


def is_causal_loss(model: torch.nn.Module) -> bool:
    """Whether the model's own loss is transformers' next-token loss, which shifts the labels by one.

    Encoder-decoder models carry the same ``loss_function`` but do not shift: their decoder inputs are shifted.
    """
    name = getattr(getattr(model, "loss_function", None), "__name__", "")
    return name == "ForCausalLMLoss" and not getattr(getattr(model, "config", None), "is_encoder_decoder", False)


def _describe(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    if isinstance(value, Mapping):
        return f"a {type(value).__name__} with the keys {sorted(map(str, value))}"
    if isinstance(value, tuple | list):
        return f"a {type(value).__name__} of {len(value)}: {', '.join(_describe(item) for item in value[:4])}"
    return f"a {type(value).__name__}"
