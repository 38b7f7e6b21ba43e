"""The stage of the saved-tensor pipeline that stores activations in fewer bits, and its choice of which."""

from __future__ import annotations

import functools
from typing import Any, Protocol

import torch

from advisor.training.saved.tensor_pipeline import Encoded, Place, SavedTensorStage

__all__ = ["Code", "CodeActivations"]

_LEAST_ELEMENTS = 1024
"""Smaller tensors are not worth the kernels, and are what must be exact most often."""

_CASTS_AND_VIEWS = frozenset(
    f"{name}Backward0"
    for name in ("ToCopy", "T", "Transpose", "Permute", "View", "UnsafeView", "ReshapeAlias", "Expand", "AsStrided")
)


class Code(Protocol):
    """A format of fewer bits."""

    def encode(self, flat: torch.Tensor) -> torch.Tensor:
        """A flat tensor as a flat uint8 tensor."""

    def decode(self, buffer: torch.Tensor, *, count: int, dtype: torch.dtype) -> torch.Tensor:
        """The ``count`` values of a flat tensor of format ``dtype``, about as they were."""


class CodeActivations(SavedTensorStage):
    """Stores the activations that gradients flow through in a code, and leaves everything else exact.

    What needs no gradient is no activation of the model: means and deviations of normalizations, sums of
    exponentials, dropout and attention masks, inputs. Copies of weights that autocast made are weights.
    """

    place = Place.FORMAT
    exact = False

    def __init__(self, code: Code) -> None:
        self._code = code

    def accepts(self, tensor: torch.Tensor) -> bool:
        """Activations of a size and a format that is worth it."""
        return (
            tensor.requires_grad
            and tensor.numel() >= _LEAST_ELEMENTS
            and tensor.element_size() > 1
            and not _is_weight_copy(tensor)
        )

    def encode(self, flat: torch.Tensor) -> Encoded:
        """Code it now; it is decoded when the backward pass needs it."""
        restore = functools.partial(self._code.decode, count=flat.numel(), dtype=flat.dtype)
        return Encoded(self._code.encode(flat), restore)


def _is_weight_copy(tensor: torch.Tensor) -> bool:
    """Whether it is a leaf in another format or shape: autocast's copy of a weight, which shares no storage with it."""
    node: Any = tensor.grad_fn
    while node is not None and node.name() in _CASTS_AND_VIEWS:
        node = node.next_functions[0][0]
    return node is not None and node.name() == "torch::autograd::AccumulateGrad"
