"""Gradients of few rows are sampled as the whole would be, without the others."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from advisor.measure.state.first_gradient import every_nth


@pytest.mark.parametrize("stride", [1, 3, 7, 40])
def test_every_nth_of_a_sparse_gradient_is_that_of_the_dense_one(stride: int, monkeypatch: pytest.MonkeyPatch) -> None:
    table = torch.nn.Embedding(11, 5, sparse=True)
    table(torch.tensor([9, 2, 2, 7])).square().sum().backward()
    gradient = table.weight.grad
    assert gradient is not None
    assert gradient.is_sparse
    dense = every_nth(gradient.to_dense(), stride)
    monkeypatch.setattr(torch.Tensor, "to_dense", lambda *_: pytest.fail("a table may take most of the memory"))
    found = every_nth(gradient, stride)
    assert found.dtype == dense.dtype
    assert np.array_equal(found, dense)


def test_of_a_matrix_with_two_sparse_dimensions_too() -> None:
    matrix = torch.tensor([[0.0, 1.0, 0.0, 0.0], [0.0] * 4, [2.0, 0.0, 0.0, 3.0]]).to_sparse()
    assert every_nth(matrix, 2).tolist() == every_nth(matrix.to_dense(), 2).tolist()
