from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional

from advisor.predict.cuda import autocast as cuda_autocast
from advisor.predict.cuda.dispatch import as_cuda

_HEADER = Path(torch.__file__).parent / "include" / "ATen" / "autocast_mode.h"

LISTS = [
    ("AT_FORALL_LOWER_PRECISION_FP", cuda_autocast._IN_16_BITS),
    ("AT_FORALL_FP32", cuda_autocast._IN_32_BITS),
    ("AT_FORALL_FP32_SET_OPT_DTYPE", cuda_autocast._WITH_A_32_BIT_RESULT),
    ("AT_FORALL_PROMOTE", cuda_autocast._IN_THE_WIDEST),
]


@pytest.mark.parametrize(("macro", "names"), LISTS, ids=[macro for macro, _ in LISTS])
def test_the_lists_are_torchs(macro: str, names: tuple[str, ...]) -> None:
    found = re.search(rf"#define {macro}\(_\)((?:.*\\\n)*.*\n)", _HEADER.read_text(encoding="utf-8"))
    assert found is not None
    entries = re.findall(r"_\((\w+)(?:, (\w+))?\)", found[1])
    assert set(names) == {".".join(filter(None, entry)) for entry in entries}


SAMPLES, WEIGHT = (4, 8), (8, 8)

OPERATORS: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], torch.dtype]] = {
    "matmul": (lambda x: x @ x.new_empty(WEIGHT), torch.bfloat16),
    "linear": (lambda x: functional.linear(x.float(), x.new_empty(WEIGHT).float()), torch.bfloat16),
    "mv": (lambda x: torch.mv(x.float(), x.float()[0]), torch.bfloat16),
    "gelu": (functional.gelu, torch.bfloat16),
    "mean": (torch.mean, torch.bfloat16),
    "padding": (lambda x: functional.pad(x[None], (1, 1), mode="replicate"), torch.bfloat16),
    "pow": (lambda x: x.pow(2), torch.float32),
    "exp": (torch.exp, torch.float32),
    "rsqrt": (torch.rsqrt, torch.float32),
    "layer_norm": (lambda x: functional.layer_norm(x, (8,)), torch.float32),
    "softmax": (lambda x: x.softmax(-1), torch.float32),
    "log_softmax": (lambda x: functional.log_softmax(x, -1), torch.float32),
    "cross_entropy": (lambda x: functional.cross_entropy(x, x.new_empty(4, dtype=torch.long)), torch.float32),
    "sum": (lambda x: x.sum(0), torch.float32),
    "cumsum": (lambda x: x.cumsum(0), torch.float32),
    "norm": (lambda x: x.norm(dim=1), torch.float32),
    "sum in 16 bits": (lambda x: x.sum(0, dtype=torch.bfloat16), torch.bfloat16),
    "sum of doubles": (lambda x: x.double().sum(), torch.float64),
    "addcmul": (lambda x: torch.addcmul(x, x, x), torch.bfloat16),
    "addcmul of both": (lambda x: torch.addcmul(x, x, x.float()), torch.float32),
}


@pytest.mark.parametrize("name", OPERATORS)
def test_autocast_computes_in_what_it_would_on_cuda(name: str) -> None:
    operator, expected = OPERATORS[name]
    with FakeTensorMode(), as_cuda(), torch.autocast("cpu", torch.bfloat16):
        assert operator(torch.empty(SAMPLES, dtype=torch.bfloat16)).dtype is expected


def test_gradients_have_the_format_of_what_they_are_of() -> None:
    with FakeTensorMode(), as_cuda(), torch.autocast("cpu", torch.bfloat16):
        weight = torch.empty(WEIGHT, requires_grad=True)
        samples = torch.empty(SAMPLES, dtype=torch.bfloat16, requires_grad=True)
        (samples @ weight).pow(2).softmax(-1).sum().backward()
    assert weight.grad is not None
    assert samples.grad is not None
    assert (weight.grad.dtype, samples.grad.dtype) == (torch.float32, torch.bfloat16)


def test_without_autocast_nothing_is_cast() -> None:
    with FakeTensorMode(), as_cuda():
        assert torch.empty(SAMPLES, dtype=torch.bfloat16).exp().dtype is torch.bfloat16


def test_afterwards_a_cpu_is_a_cpu_again() -> None:
    samples = torch.ones(SAMPLES, dtype=torch.bfloat16)
    for context in (as_cuda, FakeTensorMode):
        with context():
            pass
        with torch.autocast("cpu", torch.bfloat16):
            assert samples.exp().dtype is torch.bfloat16
            assert functional.mse_loss(samples, samples).dtype is torch.float32
