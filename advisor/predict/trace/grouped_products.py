"""Grouped products of matrices, as in mixtures of experts, of fake tensors of every type that CUDA takes.

torch's function for fake tensors refuses 32 bits; its kernel computes them group by group.

Source: ``_grouped_mm_cuda`` in ``aten/src/ATen/native/cuda/GroupedBlas.cpp`` of PyTorch, and
``create_grouped_gemm_output_tensor`` in ``aten/src/ATen/native/GroupedMMUtils.h``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from typing import Any

import torch
from torch._subclasses import fake_impls
from torch._subclasses.fake_tensor import FakeTensorMode

from advisor.predict.whole_numbers import round_up

__all__ = ["grouped_products_of_all_types"]

_ROW_ALIGNMENT_BYTES = 16


@contextlib.contextmanager
def grouped_products_of_all_types() -> Generator[None, None, None]:
    """Let fake tensors be multiplied so, in the whole process."""
    operator = torch.ops.aten._grouped_mm.default
    known: dict[Any, Any] = fake_impls.op_implementations_dict
    if operator in known:
        yield
        return
    known[operator] = _product
    try:
        yield
    finally:
        del known[operator]


def _product(
    mode: FakeTensorMode,
    func: Any,
    one: torch.Tensor,
    other: torch.Tensor,
    offs: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    rows, columns = one.size(-2), other.size(-1)
    if one.dim() == 3 and other.dim() == 3:
        shape = [one.size(0), rows, columns]
    elif one.dim() == other.dim():
        assert offs is not None, "groups along the dimension that is summed over have offsets"
        shape = [offs.size(0), rows, columns]
    else:
        shape = [rows, columns]
    dtype = out_dtype or one.dtype
    row = round_up(columns, _ROW_ALIGNMENT_BYTES // dtype.itemsize)
    strides = [rows * row, row, 1][-len(shape) :]
    with mode:
        return torch.empty_strided(shape, strides, dtype=dtype, device=one.device)
