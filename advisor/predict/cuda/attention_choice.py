"""Which kernel PyTorch chooses for scaled dot-product attention on a CUDA device, told without one.

The first kernel that suits, in torch's order of priority, among those that are allowed in this process (see
``torch.nn.attention.sdpa_kernel``). Only dense tensors; the rules are those for NVIDIA GPUs.

Source: ``select_sdp_backend`` and the ``check_`` functions in ``aten/src/ATen/native/transformers/cuda/sdp_utils.cpp``
and ``aten/src/ATen/native/transformers/sdp_utils_cpp.h`` of PyTorch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec
import torch
from torch.nn.attention import SDPBackend

__all__ = ["Attention", "AttentionGpu", "chosen_kernel"]

_flags: Any = torch.backends.cuda  # they hold for a CPU as well
_HALVES = (torch.float16, torch.bfloat16)
_PREFERS_CUDNN = ((9, 0), (10, 0), (10, 3))
_INSTALLED = tuple(int(part) for part in torch.__version__.split(".")[:2])
_NEW_RULES = (2, 14)
"""From this torch on memory-efficient attention lets queries share heads, and cuDNN has other demands."""

_CUDNN_WITH_ODD_LENGTHS = 91500
"""Later versions also take sequences whose length is no multiple of 128: from here on torch prefers cuDNN."""


class Attention(NamedTuple):
    """The arguments of ``torch.nn.functional.scaled_dot_product_attention``, in its order."""

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    attn_mask: torch.Tensor | None = None
    dropout_p: float = 0.0
    is_causal: bool = False
    scale: float | None = None
    enable_gqa: bool = False

    @property
    def inputs(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Query, key and value."""
        return self.query, self.key, self.value

    @property
    def trains(self) -> bool:
        """Whether a backward pass can follow."""
        return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in self.inputs)


class AttentionGpu(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the choice depends on beside the tensors.

    Attributes:
        compute_capability: Of the GPU.
        cudnn_version: As ``torch.backends.cudnn.version()`` gives it there. The default is that of torch 2.13's wheels,
            with which torch prefers cuDNN on Hopper and on Blackwell.
        torch_version: Major and minor version of torch, whose rules these are; by default of the one that is installed.
    """

    compute_capability: tuple[int, int] = (8, 0)
    cudnn_version: int = 92000
    torch_version: tuple[int, ...] = _INSTALLED


def chosen_kernel(attention: Attention, gpu: AttentionGpu) -> SDPBackend:
    """The kernel that computes it.

    Raises:
        RuntimeError: None of those that are allowed suits; with torch's words.
    """
    suits: dict[SDPBackend, Callable[[Attention, AttentionGpu], bool]] = {
        SDPBackend.FLASH_ATTENTION: _flash_suits,
        SDPBackend.EFFICIENT_ATTENTION: _efficient_suits,
        SDPBackend.CUDNN_ATTENTION: _cudnn_suits,
        SDPBackend.MATH: lambda attention, gpu: bool(_flags.math_sdp_enabled()),
    }
    for kernel in _priorities(gpu):
        if kernel in suits and suits[kernel](attention, gpu):
            return kernel
    raise RuntimeError("No available kernel. Aborting execution.")


def _priorities(gpu: AttentionGpu) -> list[SDPBackend]:
    numbers: list[Any] = torch._C._get_sdp_priority_order()
    order = [SDPBackend(number) for number in numbers]
    default = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH, SDPBackend.CUDNN_ATTENTION]
    prefers_cudnn = gpu.compute_capability in _PREFERS_CUDNN and gpu.cudnn_version > _CUDNN_WITH_ODD_LENGTHS
    return [default[3], *default[:3]] if prefers_cudnn and order[:4] == default else order


def _flash_suits(attention: Attention, gpu: AttentionGpu) -> bool:
    query, key, value = attention.inputs
    head_size = query.size(-1)
    return bool(
        _flags.flash_sdp_enabled()
        and _four_dimensions(attention)
        and attention.attn_mask is None
        and head_size == key.size(-1) == value.size(-1)
        and head_size <= 256
        and (8, 0) <= gpu.compute_capability <= (12, 1)
        and not (_short_of_shared_memory(gpu) and attention.trains and _too_wide_to_train(head_size, attention))
        and (not attention.is_causal or query.size(-2) == key.size(-2))
        and _all_of(attention, _HALVES)
        and _batches_and_heads_match(attention, grouped=attention.enable_gqa)
        and _some_length(attention)
        and (_last_dimension_is_dense(attention) or head_size == 1)
    )


def _efficient_suits(attention: Attention, gpu: AttentionGpu) -> bool:
    query, key, value = attention.inputs
    ampere = gpu.compute_capability >= (8, 0)
    alignment = _alignment(query.dtype, gpu)
    return bool(
        _flags.mem_efficient_sdp_enabled()
        and (5, 0) <= gpu.compute_capability <= (12, 1)
        and _four_dimensions(attention)
        and query.size(-1) == key.size(-1)
        and all(size > 0 and size % alignment == 0 for size in (query.size(-1), value.size(-1)))
        and _some_length(attention)
        and _last_dimension_is_dense(attention)
        and _batches_and_heads_match(attention, grouped=attention.enable_gqa and gpu.torch_version >= _NEW_RULES)
        and _all_of(attention, (torch.float16, torch.float32, *((torch.bfloat16,) if ampere else ())))
    )


def _cudnn_suits(attention: Attention, gpu: AttentionGpu) -> bool:
    query, key, value = attention.inputs
    strict = torch.are_deterministic_algorithms_enabled() and not torch.is_deterministic_algorithms_warn_only_enabled()
    dropout = attention.dropout_p > 0
    return bool(
        _flags.cudnn_sdp_enabled()
        and gpu.cudnn_version >= 90000
        and (not dropout or _cudnn_drops(attention.dropout_p, gpu))
        and _four_dimensions(attention)
        and not strict
        and _all_of(attention, _HALVES)
        and _mask_spreads_over(attention)
        and (8, 0) <= gpu.compute_capability <= (12, 1)
        and _some_length(attention)
        and (_last_dimension_is_dense(attention) or query.size(-1) == 1)
        and _batches_and_heads_match(attention, grouped=attention.enable_gqa, values_apart=True)
        and _cudnn_takes_heads(query.size(-1), value.size(-1), attention.trains, gpu)
        and query.size(-1) % 8 == value.size(-1) % 8 == 0
        and key.size(2) > 1
        and not (query.size(2) == 1 and (dropout or not _cudnn_decodes(gpu)))
    )


def _cudnn_drops(probability: float, gpu: AttentionGpu) -> bool:
    if gpu.torch_version >= _NEW_RULES and not (16 * probability).is_integer():
        return False
    return not 91100 < gpu.cudnn_version < 91400


def _cudnn_decodes(gpu: AttentionGpu) -> bool:
    """Whether a single query is computed; some versions fail on Blackwell."""
    affected = gpu.torch_version >= _NEW_RULES and gpu.compute_capability[0] in (10, 11)
    return not affected or not 91900 <= gpu.cudnn_version <= 92500 or gpu.cudnn_version == 92401


def _four_dimensions(attention: Attention) -> bool:
    return all(tensor.dim() == 4 for tensor in attention.inputs)


def _all_of(attention: Attention, allowed: tuple[torch.dtype, ...]) -> bool:
    return attention.query.dtype in allowed and len({tensor.dtype for tensor in attention.inputs}) == 1


def _some_length(attention: Attention) -> bool:
    return attention.query.size(-2) > 0 and attention.key.size(-2) > 0


def _last_dimension_is_dense(attention: Attention) -> bool:
    mask = () if attention.attn_mask is None else (attention.attn_mask,)
    return all(tensor.stride(-1) == 1 for tensor in (*attention.inputs, *mask))


def _batches_and_heads_match(attention: Attention, *, grouped: bool, values_apart: bool = False) -> bool:
    if len({tensor.size(0) for tensor in attention.inputs}) > 1:
        return False
    heads, *shared = (tensor.size(-3) for tensor in attention.inputs)
    if not grouped:
        return set(shared) == {heads}
    return (values_apart or len(set(shared)) == 1) and all(heads % fewer == 0 for fewer in shared)


def _mask_spreads_over(attention: Attention) -> bool:
    mask, query, key = attention.attn_mask, attention.query, attention.key
    if mask is None:
        return True
    wanted = (*query.shape[:-1], key.size(2))
    return (
        not mask.requires_grad
        and mask.dim() in (2, 4)
        and all(size in (1, goal) for size, goal in zip(reversed(mask.shape), reversed(wanted), strict=False))
    )


def _short_of_shared_memory(gpu: AttentionGpu) -> bool:
    return (8, 6) <= gpu.compute_capability <= (8, 9) or (12, 0) <= gpu.compute_capability <= (12, 1)


def _too_wide_to_train(head_size: int, attention: Attention) -> bool:
    return 192 < head_size <= 224 or (head_size > 224 and attention.dropout_p > 0)


def _alignment(dtype: torch.dtype, gpu: AttentionGpu) -> int:
    """Elements of which a head must have a multiple, for the tensor cores to take it."""
    half = dtype in _HALVES
    if gpu.compute_capability >= (8, 0):
        return 8 if half else 4
    return 8 if half and gpu.compute_capability >= (7, 0) else 1


def _cudnn_takes_heads(keys: int, values: int, trains: bool, gpu: AttentionGpu) -> bool:
    widest = max(keys, values)
    if gpu.torch_version >= _NEW_RULES:
        if gpu.compute_capability != (9, 0) and gpu.compute_capability[0] != 10:
            return widest <= 128
        return widest <= (128 if trains else 256) or (keys, values) in ((192, 128), (256, 256))
    if gpu.compute_capability == (9, 0) and gpu.cudnn_version >= 91000:
        return widest <= 256
    if gpu.compute_capability[0] == 10 and gpu.cudnn_version >= 91100 and (keys, values) == (192, 128):
        return True
    return widest <= 128
