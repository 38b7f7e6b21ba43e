"""Grouped products of fake tensors in 32 bits are those in 16 bits, but for the type."""

from __future__ import annotations

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from advisor.predict.trace.grouped_products import grouped_products_of_all_types


@pytest.mark.parametrize(
    ("one", "other"), [((64, 16), (4, 16, 24)), ((16, 64), (64, 24)), ((4, 8, 16), (4, 16, 24)), ((4, 8, 16), (16, 64))]
)
def test_shapes_and_strides_are_those_of_16_bits(one: tuple[int, ...], other: tuple[int, ...]) -> None:
    def product(dtype: torch.dtype) -> torch.Tensor:
        inputs = [torch.empty(shape, dtype=dtype, device="cuda") for shape in (one, other)]
        offs = None if len(one) == len(other) == 3 else torch.empty(4, dtype=torch.int32, device="cuda")
        return torch._grouped_mm(*inputs, offs)

    with FakeTensorMode():
        half = product(torch.bfloat16)
        with pytest.raises(RuntimeError, match="got"):
            product(torch.float32)
        with grouped_products_of_all_types():
            full = product(torch.float32)
            assert product(torch.bfloat16).stride() == half.stride()
        assert (full.shape, full.stride(), full.dtype) == (half.shape, half.stride(), torch.float32)
