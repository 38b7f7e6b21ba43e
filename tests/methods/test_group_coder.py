"""Whether the kernels work is tried on real memory, whatever the training around it is made of."""

from __future__ import annotations

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from advisor.methods.activations import _group_code as group_code
from advisor.methods.activations import _group_coder as group_coder

pytest.importorskip("triton")

CPU = torch.device("cpu")


class Watched(TorchDispatchMode):
    """Counts operators, as the log of a trace does."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        self.count += 1
        return func(*args, **(kwargs or {}))


def test_in_a_trace_no_kernel_is_given_a_fake_tensor(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trap: the address of a fake tensor is 0, and a kernel that writes there breaks the device for good."""
    from advisor.methods.activations import _group_kernel as group_kernel

    seen: list[torch.Tensor] = []

    def encode_groups(flat: torch.Tensor, *, bits: int, seed: int) -> torch.Tensor:
        seen.append(flat)
        return group_code.encode_groups(flat, bits=bits, seed=seed)

    monkeypatch.setattr(group_kernel, "encode_groups", encode_groups)
    monkeypatch.setattr(group_kernel, "decode_groups", group_code.decode_groups)
    watched = Watched()
    with FakeTensorMode(), watched:
        found = group_coder._working_kernel(4, CPU)
        assert isinstance(torch.empty(1), FakeTensor), "and the trace goes on"
    assert found == (group_kernel, "")
    assert [type(tensor) for tensor in seen] == [torch.Tensor]
    assert watched.count == 1, "the trial belongs to nobody's step"


def test_why_the_kernels_do_not_work_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    from advisor.methods.activations import _group_kernel as group_kernel

    def encode_groups(*_: object, **__: object) -> torch.Tensor:
        raise RuntimeError("no compiler\nand much more")

    monkeypatch.setattr(group_kernel, "encode_groups", encode_groups)
    assert group_coder._working_kernel(4, CPU) == (None, "RuntimeError: no compiler")
