"""Gradients of layer normalization as its kernels lay them out.

torch's function for tensors without values gives the input's gradient the layout of the gradient that it comes from;
the kernels make it contiguous, and what comes after them then needs no copy.

Source: ``layer_norm_backward_cuda`` in ``aten/src/ATen/native/cuda/layer_norm_kernel.cu`` of PyTorch, and
``layer_norm_backward_cpu`` in ``aten/src/ATen/native/layer_norm.cpp``.
"""

from __future__ import annotations

from typing import Any

import torch

__all__ = ["as_kernels_lay_it_out"]

_BACKWARD = torch.ops.aten.native_layer_norm_backward.default


def as_kernels_lay_it_out(func: Any, result: Any) -> Any:
    """The result of a call of any operator; of this one with another tensor for the input's gradient."""
    if func is not _BACKWARD or result[0] is None or result[0].is_contiguous():
        return result
    return (torch.empty_like(result[0], memory_format=torch.contiguous_format), *result[1:])
