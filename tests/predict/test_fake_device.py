"""Fake tensors are where torch says that they are."""

from __future__ import annotations

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode, in_kernel_invocation_manager

from advisor.predict.trace.fake_device import device_asked_for, device_of
from advisor.predict.trace.storage_log import StorageLog
from advisor.predict.trace.work_counter import WorkCounter

asks = torch.ops.prim.device.default


@pytest.mark.parametrize("name", ["cpu", "meta", "cuda:1"])
def test_a_fake_tensor_is_where_it_would_be(name: str) -> None:
    with FakeTensorMode():
        tensor = torch.nn.Parameter(torch.empty(4, device=name))
        with StorageLog(torch.device("cpu")), WorkCounter():
            assert device_of(tensor) == device_asked_for(asks, (tensor,)) == tensor.device == torch.device(name)


def test_within_a_kernel_it_is_what_it_is_made_of() -> None:
    with FakeTensorMode() as mode:
        tensor = torch.empty(4)
        with in_kernel_invocation_manager(mode):
            assert device_of(tensor) == device_asked_for(asks, (tensor,)) == tensor.device == torch.device("meta")
        assert device_of(tensor) == tensor.device == torch.device("cpu")


def test_a_real_tensor_answers_for_itself() -> None:
    assert device_of(torch.empty(4)) == torch.device("cpu")


def test_other_calls_ask_for_no_device() -> None:
    with FakeTensorMode():
        assert device_asked_for(torch.ops.aten.mul.Tensor, (torch.empty(4), 2.0)) is None
