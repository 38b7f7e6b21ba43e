"""Which operators need not be followed, as they change nothing but values."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from advisor.predict.trace.in_place import changes_only_values
from advisor.predict.trace.storage_log import StorageLog

aten = torch.ops.aten


def fake() -> torch.Tensor:
    with FakeTensorMode():
        return torch.empty(4, 8)


@pytest.mark.parametrize(
    ("operator", "others"),
    [
        (aten.mul_.Tensor, (2.0,)),
        (aten.addcdiv_.default, (torch.ones(8), torch.ones(8))),
        (aten.zero_.default, ()),
        (aten.copy_.default, (torch.ones(4, 8),)),
    ],
)
def test_in_place_arithmetic_changes_only_values(operator: Any, others: tuple[Any, ...]) -> None:
    assert changes_only_values(operator, (fake(), *others))


def test_so_does_the_in_place_form_over_a_list() -> None:
    assert changes_only_values(aten._foreach_add_.Scalar, ([fake(), fake()], 1.0))
    assert not changes_only_values(aten._foreach_add_.Scalar, ([fake(), torch.ones(2)], 1.0))


@pytest.mark.parametrize(
    ("operator", "others"),
    [
        (aten.mul.Tensor, (2.0,)),
        (aten.resize_.default, ([64],)),
        (aten.transpose_.default, (0, 1)),
        (aten.set_data.default, (torch.ones(2),)),
        (aten._fused_adamw_.default, ()),
    ],
)
def test_what_makes_a_tensor_or_changes_more_than_values_is_followed(operator: Any, others: tuple[Any, ...]) -> None:
    assert not changes_only_values(operator, (fake(), *others))


def test_tensors_with_values_are_written_to() -> None:
    assert not changes_only_values(aten.add_.Tensor, (torch.ones(2), 1))


def test_a_count_of_steps_keeps_its_value_in_a_log() -> None:
    with FakeTensorMode(), StorageLog(torch.device("cpu")) as log:
        steps = torch.tensor(0.0)
        steps += 1
        weights = torch.empty(1024)
        before = len(log.events)
        assert weights.mul_(2) is weights
        torch._foreach_add_([weights], 1.0)
        assert len(log.events) == before
        assert weights.mul(2) is not weights
        assert len(log.events) > before
        assert steps.item() == 1
