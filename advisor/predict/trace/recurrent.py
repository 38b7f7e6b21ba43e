"""What a recurrent layer keeps for its backward pass, which torch's functions for tensors without values leave out."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

__all__ = ["is_recurrent", "with_workspace"]

_LAYER = torch.ops.aten.mkldnn_rnn_layer.default
_BATCH_SIZES = 8
"""Position of the lengths of packed sequences, which oneDNN does not take."""


def is_recurrent(operator: str) -> bool:
    """Whether an operator is a layer of oneDNN's or cuDNN's."""
    return operator.startswith(("mkldnn_rnn_layer", "_cudnn_rnn"))


def with_workspace(func: Any, args: Sequence[Any], result: Any) -> Any:
    """The result with a workspace of its real size: gates and cells of every time step, several times the output.

    oneDNN alone knows it, so the layer is run once: traces are of a few samples.

    Source: ``mkldnn_rnn_layer`` in ``aten/src/ATen/native/mkldnn/RNN.cpp`` of PyTorch.
    """
    if func is not _LAYER or result[3].numel() or args[_BATCH_SIZES]:
        return result
    tensors = tuple((tuple(tensor.shape), tensor.dtype) for tensor in args[:7])
    others = tuple(tuple(one) if isinstance(one, (list, tuple)) else one for one in args[7:])
    return (*result[:3], result[3].new_empty(_workspace_elements(tensors, others)))


@functools.lru_cache(maxsize=256)
def _workspace_elements(tensors: tuple[tuple[tuple[int, ...], torch.dtype], ...], others: tuple[Any, ...]) -> int:
    with _disable_current_modes(), torch.enable_grad():  # or there is none
        made = [torch.zeros(shape, dtype=kind) for shape, kind in tensors]
        return int(_LAYER(*made, *(list(one) if isinstance(one, tuple) else one for one in others))[3].numel())
