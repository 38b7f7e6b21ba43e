"""What convolutions allocate as workspace on CUDA: copies of what is not laid out as the kernel takes it.

What cuDNN's own algorithms take for their work is known to cuDNN alone, and not here.

Source: ``_convolution``, ``convolution_backward`` and ``use_cudnn_depthwise`` in
``aten/src/ATen/native/Convolution.cpp`` of PyTorch, ``cudnn_conv_suggest_memory_format`` in ``ConvUtils.h`` and
``cudnn_convolution_backward`` in ``cudnn/ConvShared.cpp`` beside it, and ``is_channels_last_strides_2d`` in
``c10/core/MemoryFormat.h``.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from advisor.predict.prediction import CudaDevice
from advisor.predict.workspace.call import Like, Result, Step, WorkspaceCall, holding
from advisor.predict.workspace.reduction_buffers import Accumulation, partial_results

__all__ = ["convolution", "convolution_backward"]


def convolution(call: WorkspaceCall, device: CudaDevice) -> Iterator[Step]:
    """Input and weight, in the layout that either has."""
    given, weight = call.given("input"), call.given("weight")
    last = _channels_last(given, weight)
    inside: list[Step] = [Result(0)]
    if not _is_torchs_own(call, given, weight, last=last):
        inside += holding(_copies(last=last, weight=weight))
    yield from holding(_copies(last=last, input=given), inside)


def convolution_backward(call: WorkspaceCall, device: CudaDevice) -> Iterator[Step]:
    """Input, weight and gradient; that of the bias is a sum. Torch's own kernels make the weight's gradient first."""
    gradient, given, weight = (call.given(name) for name in ("grad_output", "input", "weight"))
    wanted = call.given("output_mask")
    last = _channels_last(given, weight)
    own = _is_torchs_own(call, given, weight, last=last)
    products: list[Step] = []
    for kind in (1, 0) if own else (0, 1):
        if wanted[kind]:
            products.append(Result(sum(wanted[:kind])))
            if kind == 0 and not own:
                products += holding(_copies(last=last, weight=weight))
    inside = [*holding(_copies(last=last, gradient=gradient), products)]
    if wanted[2]:
        summed = Accumulation.of_sum(gradient.dtype.itemsize)
        reduced = (0, *range(2, len(gradient.shape)))
        inside += [Result(sum(wanted[:2])), *partial_results(gradient, reduced, summed, device)]
    yield from holding(_copies(last=last, input=given) if wanted[1] else {}, inside)


def _copies(*, last: bool, **tensors: Like) -> dict[str, int]:
    """Buffers for copies of what is not laid out as it is computed."""
    return {name: tensor.nbytes for name, tensor in tensors.items() if not _laid_out(tensor, last=last)}


def _is_torchs_own(call: WorkspaceCall, given: Like, weight: Like, *, last: bool) -> bool:
    """Whether torch's own depthwise kernel computes it: cuDNN does where channels come last."""
    groups = call.given("groups")
    is_depthwise = groups > 1 and given.shape[1] == groups and weight.shape[0] % groups == 0
    return is_depthwise and not call.given("transposed") and not last


def _channels_last(given: Like, weight: Like) -> bool:
    """Whether it is computed so; along one dimension it never is, nor in 64 bits."""
    if len(given.shape) != 4 or torch.float64 in (given.dtype, weight.dtype):
        return False
    return _is_channels_last(given) or _is_channels_last(weight)


def _is_channels_last(like: Like) -> bool:
    if like.strides[1] == 0:
        return False
    least = 0
    for dim in (1, 3, 2, 0):
        size, stride = like.shape[dim], like.strides[dim]
        if size == 0 or stride < least or (dim == 0 and least == like.strides[1]):
            return False
        least = stride * max(size, 1)
    return True


def _laid_out(like: Like, *, last: bool) -> bool:
    if not last:
        return like.contiguous
    expected = 1
    for dim in (1, 3, 2, 0):
        if like.shape[dim] != 1 and like.strides[dim] != expected:
            return False
        expected *= like.shape[dim]
    return like.count == expected
