"""What a trace's optimizer takes is what the real one takes: one operator for all parameters, where torch does that."""

from __future__ import annotations

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from advisor.predict.cuda.optimizers import optimizers_as_on_cuda, optimizers_as_with_values


class Operators(TorchDispatchMode):
    """Names of the operators that ran."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        self.names.add(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


def steps_for_all_at_once(device: str, kind: type[torch.optim.Optimizer] = torch.optim.AdamW) -> bool:
    operators = Operators()
    with FakeTensorMode(), operators:
        parameter = torch.nn.Parameter(torch.empty(3, device=device))
        parameter.grad = torch.ones_like(parameter)
        kind([parameter]).step()  # type: ignore[call-arg]
    return any(name.startswith("_foreach") for name in operators.names)


@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.SGD, torch.optim.RMSprop])
def test_fake_parameters_on_a_gpu_are_updated_as_real_ones_are(kind: type[torch.optim.Optimizer]) -> None:
    assert not steps_for_all_at_once("cuda", kind), "torch does not know the type of fake parameters"
    with optimizers_as_with_values():
        assert steps_for_all_at_once("cuda", kind)
        assert not steps_for_all_at_once("cpu", kind), "nor would real ones be"
    assert not steps_for_all_at_once("cuda", kind)


def test_fake_parameters_of_the_host_may_stand_for_those_of_a_gpu() -> None:
    with optimizers_as_on_cuda():
        assert steps_for_all_at_once("cpu")
    assert not steps_for_all_at_once("cpu")
