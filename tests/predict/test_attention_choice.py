from __future__ import annotations

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from advisor.predict.cuda.attention_choice import Attention, AttentionGpu, chosen_kernel

_FLASH, _EFFICIENT = SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION
_CUDNN, _MATH = SDPBackend.CUDNN_ATTENTION, SDPBackend.MATH

_13, _14 = (2, 13), (2, 14)
_TURING = AttentionGpu(compute_capability=(7, 5))
_AMPERE = AttentionGpu(torch_version=_13)
_AMPERE_14 = AttentionGpu(torch_version=_14)
_ADA = AttentionGpu(compute_capability=(8, 9))
_HOPPER = AttentionGpu(compute_capability=(9, 0), cudnn_version=91002)
_HOPPER_NEW_CUDNN = AttentionGpu(compute_capability=(9, 0), cudnn_version=91501, torch_version=_13)
_HOPPER_14 = AttentionGpu(compute_capability=(9, 0), cudnn_version=92400, torch_version=_14)
_BLACKWELL_14 = AttentionGpu(compute_capability=(10, 0), cudnn_version=92400, torch_version=_14)


def _tensor(
    size: int = 64, dtype: torch.dtype = torch.bfloat16, *, heads: int = 4, length: int = 128, trains: bool = True
) -> torch.Tensor:
    return torch.empty(2, heads, length, size, dtype=dtype, device="meta", requires_grad=trains)


def _alike(size: int = 64, dtype: torch.dtype = torch.bfloat16, **others: object) -> Attention:
    return Attention(*(_tensor(size, dtype) for _ in range(3)), **others)  # type: ignore[arg-type]


def _mask(*shape: int) -> torch.Tensor:
    return torch.empty(*shape, dtype=torch.bool, device="meta")


@pytest.mark.parametrize(
    ("attention", "gpu", "kernel"),
    [
        # Halves without a mask: flash, from Ampere on.
        (_alike(), _AMPERE, _FLASH),
        (_alike(dtype=torch.float16, dropout_p=0.1, is_causal=True), _AMPERE, _FLASH),
        (_alike(dtype=torch.float16), _TURING, _EFFICIENT),
        (_alike(), _TURING, _MATH),
        # Heads: flash takes up to 256 and pads them, the memory-efficient one needs a multiple of 8 halves or 4 floats.
        (_alike(256), _AMPERE, _FLASH),
        (_alike(264), _AMPERE, _EFFICIENT),
        (_alike(20), _AMPERE, _FLASH),
        (_alike(20, attn_mask=_mask(128, 128)), _AMPERE, _MATH),
        (_alike(20, torch.float32), _AMPERE, _EFFICIENT),
        (_alike(21, torch.float32), _AMPERE, _MATH),
        (_alike(21, torch.float32), _TURING, _EFFICIENT),
        # A mask, floats, or a causal rectangle: the memory-efficient one. Doubles: plain operators.
        (_alike(attn_mask=_mask(128, 128)), _AMPERE, _EFFICIENT),
        (_alike(dtype=torch.float32), _AMPERE, _EFFICIENT),
        (_alike(dtype=torch.float64), _AMPERE, _MATH),
        (Attention(_tensor(), _tensor(length=256), _tensor(length=256), is_causal=True), _AMPERE, _EFFICIENT),
        (Attention(_tensor(), _tensor(length=256), _tensor(length=256)), _AMPERE, _FLASH),
        # Heads shared between queries: flash only.
        (Attention(_tensor(), _tensor(heads=2), _tensor(heads=2), enable_gqa=True), _AMPERE, _FLASH),
        (
            Attention(_tensor(), _tensor(heads=2), _tensor(heads=2), _mask(128, 128), enable_gqa=True),
            _AMPERE,
            _MATH,
        ),
        # From torch 2.14 on the memory-efficient one as well, and cuDNN has other demands.
        (
            Attention(_tensor(), _tensor(heads=2), _tensor(heads=2), _mask(128, 128), enable_gqa=True),
            _AMPERE_14,
            _EFFICIENT,
        ),
        (_alike(dropout_p=0.1), _HOPPER_NEW_CUDNN, _CUDNN),
        (_alike(dropout_p=0.1), _HOPPER_14, _FLASH),
        (_alike(dropout_p=0.125), _HOPPER_14, _CUDNN),
        (_alike(200), _HOPPER_NEW_CUDNN, _CUDNN),
        (_alike(200), _HOPPER_14, _FLASH),
        (_alike(256), _HOPPER_14, _CUDNN),
        (Attention(*(_tensor(200, trains=False) for _ in range(3))), _HOPPER_14, _CUDNN),
        (Attention(_tensor(length=1), _tensor(), _tensor()), _HOPPER_14, _CUDNN),
        (Attention(_tensor(length=1), _tensor(), _tensor()), _BLACKWELL_14, _FLASH),
        # Values of another width, and what is not four-dimensional.
        (Attention(_tensor(), _tensor(), _tensor(32)), _AMPERE, _EFFICIENT),
        (Attention(*(_tensor()[0] for _ in range(3))), _AMPERE, _MATH),
        (Attention(*(_tensor().transpose(2, 3) for _ in range(3))), _AMPERE, _MATH),
        (Attention(_tensor(length=0), _tensor(), _tensor()), _AMPERE, _MATH),
        # Wide heads cannot be trained by flash where shared memory is short.
        (_alike(200), _AMPERE, _FLASH),
        (_alike(200), _ADA, _EFFICIENT),
        (Attention(*(_tensor(200, trains=False) for _ in range(3))), _ADA, _FLASH),
        (_alike(256), _ADA, _FLASH),
        (_alike(256, dropout_p=0.1), _ADA, _EFFICIENT),
        # cuDNN comes first on Hopper and Blackwell, if it is new enough; it takes masks.
        (_alike(), _HOPPER, _FLASH),
        (_alike(), _HOPPER_NEW_CUDNN, _CUDNN),
        (_alike(attn_mask=_mask(2, 1, 128, 128)), _HOPPER_NEW_CUDNN, _CUDNN),
        (_alike(attn_mask=_mask(2, 3, 128, 128)), _HOPPER_NEW_CUDNN, _EFFICIENT),
        (_alike(dtype=torch.float32), _HOPPER_NEW_CUDNN, _EFFICIENT),
        (_alike(20), _HOPPER_NEW_CUDNN, _FLASH),
    ],
)
def test_the_first_kernel_that_suits_is_chosen(attention: Attention, gpu: AttentionGpu, kernel: SDPBackend) -> None:
    assert chosen_kernel(attention, gpu) == kernel


def test_only_kernels_that_are_allowed_are_chosen() -> None:
    with sdpa_kernel([_EFFICIENT, _MATH]):
        assert chosen_kernel(_alike(), _AMPERE) == _EFFICIENT
    with sdpa_kernel(_CUDNN):
        assert chosen_kernel(_alike(), _AMPERE) == _CUDNN
    with sdpa_kernel([_MATH, _FLASH], set_priority=True):
        assert chosen_kernel(_alike(), _HOPPER_NEW_CUDNN) == _MATH


def test_an_attention_that_no_allowed_kernel_suits_is_refused_in_torchs_words() -> None:
    with sdpa_kernel(_FLASH), pytest.raises(RuntimeError, match="No available kernel"):
        chosen_kernel(_alike(dtype=torch.float32), _AMPERE)
