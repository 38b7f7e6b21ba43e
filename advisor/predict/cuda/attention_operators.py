"""Scaled dot-product attention of fake tensors, computed by the operators of CUDA's kernels.

Their meta functions give the results with sizes and strides of their own, and autograd finds their backward passes.
The workspace that a kernel allocates is not seen, such as the float32 accumulator of flash attention's backward
pass (linear in the sequence length).

Source: ``scaled_dot_product_attention`` in ``aten/src/ATen/native/transformers/attention.cpp`` of PyTorch.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.nn.attention import SDPBackend

from advisor.predict.cuda.attention_choice import Attention, AttentionGpu, chosen_kernel

__all__ = ["cuda_attention"]

_FLASH_ALIGNMENT = 8
"""Heads are padded to a multiple of it before flash attention (``pad_last_dim``)."""

_MASK_ALIGNMENT = 8
"""Rows of a mask are padded to a multiple of it before memory-efficient attention (``preprocess_mask``)."""

_aten: Any = torch.ops.aten


def cuda_attention(attention: Attention, gpu: AttentionGpu) -> torch.Tensor:
    """The result, of the kernel that CUDA would choose.

    Raises:
        RuntimeError: None of the kernels that are allowed suits; with torch's words.
    """
    kernel = chosen_kernel(attention, gpu)
    query, key, value, mask, dropout, causal, scale, grouped = attention
    if mask is not None and mask.dtype is torch.bool:
        mask = _additive(mask, query.dtype)
    output: torch.Tensor
    if kernel == SDPBackend.FLASH_ATTENTION:
        scale = query.size(-1) ** -0.5 if scale is None else scale
        padded = (_padded(tensor) for tensor in attention.inputs)
        output = _aten._scaled_dot_product_flash_attention(*padded, dropout, causal, False, scale=scale)[0]
        return output if output.size(-1) == query.size(-1) else output[..., : query.size(-1)]
    if kernel == SDPBackend.EFFICIENT_ATTENTION:
        if mask is not None:
            mask = _aligned(mask).expand(*query.shape[:-1], key.size(2))
        output = _aten._scaled_dot_product_efficient_attention(
            query, key, value, mask, attention.trains, dropout, causal, scale=scale
        )[0]
    elif kernel == SDPBackend.CUDNN_ATTENTION:
        output = _aten._scaled_dot_product_cudnn_attention(
            query, key, value, mask, attention.trains, dropout, causal, False, scale=scale
        )[0]
    else:
        output = _aten._scaled_dot_product_attention_math(
            query, key, value, mask, dropout, causal, None, scale=scale, enable_gqa=grouped
        )[0]
    return output


def _additive(mask: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """A mask of what takes part, as numbers to be added."""
    return torch.where(mask.logical_not(), -math.inf, torch.scalar_tensor(0.0, dtype=dtype, device=mask.device))


def _aligned(mask: torch.Tensor) -> torch.Tensor:
    """The mask with rows that begin at aligned addresses."""
    if mask.stride(-1) == 1 and all(stride % _MASK_ALIGNMENT == 0 for stride in mask.stride()[:-1]):
        return mask
    length = mask.size(-1)
    padded: torch.Tensor = _aten.constant_pad_nd(mask, (0, _MASK_ALIGNMENT - length % _MASK_ALIGNMENT))
    return padded[..., :length]


def _padded(tensor: torch.Tensor) -> torch.Tensor:
    excess = tensor.size(-1) % _FLASH_ALIGNMENT
    return _aten.constant_pad_nd(tensor, (0, _FLASH_ALIGNMENT - excess)) if excess else tensor
