"""Two batches traced in one training say what each says that is traced in a training of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from advisor.predict.prediction import Category, MemoryPrediction
from advisor.predict.trace import side_by_side
from advisor.predict.trace.envelope import are_alike, predict_aligned
from advisor.predict.trace.step_trace import faked, trace_steps
from advisor.training.training import Training
from tests.predict.steps import trace_step

CPU = torch.device("cpu")
WIDTH = 64


class HalfUsed(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.used = torch.nn.Linear(WIDTH, WIDTH)
        self.unused = torch.nn.Linear(WIDTH, WIDTH)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.used(inputs).square().mean()


class AfterPassesAlone(torch.optim.AdamW):
    """Takes no step that no backward pass came before."""

    def step(self, closure: Any = None) -> Any:
        if all(parameter.grad is None for parameter in self.param_groups[0]["params"][:2]):
            raise RuntimeError("no gradients")
        if self.param_groups[0]["params"][2].grad is not None:
            raise RuntimeError("nobody uses these parameters")
        return super().step(closure)


def training(build_optimizer: Callable[..., torch.optim.Optimizer]) -> Training:
    return Training(HalfUsed(), device=CPU, build_optimizer=build_optimizer)


def together(build_optimizer: Callable[..., torch.optim.Optimizer]) -> MemoryPrediction:
    mode = FakeTensorMode()
    batches = [(size, faked(torch.randn(size, WIDTH), mode)) for size in (2, 4)]
    first, second = trace_steps(lambda: training(build_optimizer), batches, device=CPU, mode=mode)
    assert are_alike(first, second)
    return predict_aligned(first, second)


def apart(build_optimizer: Callable[..., torch.optim.Optimizer]) -> MemoryPrediction:
    traces = []
    for size in (2, 4):
        mode = FakeTensorMode()
        batch = faked(torch.randn(size, WIDTH), mode)
        traces.append(trace_step(lambda: training(build_optimizer), batch, micro_batch=size, device=CPU, mode=mode))
    return predict_aligned(*traces)


def watched(monkeypatch: pytest.MonkeyPatch, forks: bool) -> list[bytes | None]:
    """Have traces forked or not, whatever threads there are; what forked processes send is in the list."""
    sent: list[bytes | None] = []
    received = side_by_side._Forked.received

    def keep(self: Any, seconds: float) -> bytes | None:
        sent.append(received(self, seconds))
        return sent[-1]

    monkeypatch.setattr(side_by_side, "may_fork", lambda: forks)
    monkeypatch.setattr(side_by_side._Forked, "received", keep)
    return sent


class Keeping(torch.nn.Module):
    """Keeps something of a batch, or from its first on, or works more for its first."""

    def __init__(self, what: str) -> None:
        super().__init__()
        self.used = torch.nn.Linear(WIDTH, WIDTH)
        self.what = what
        self.kept: list[torch.Tensor] = []
        self.known = False

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        hidden = self.used(inputs)
        if self.what == "the last":
            self.kept = [hidden.detach() * 2]
        elif not self.known:
            table = hidden.detach().repeat(1, 8).cos()
            if self.what == "the first":
                self.kept.append(table)
        self.known = True
        return hidden.square().mean()


@pytest.mark.parametrize("forks", [False, True], ids=["one after the other", "side by side"])
@pytest.mark.parametrize("what", ["the last", "the first", "nothing"])
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_model_that_does_not_do_the_same_in_every_step_is_found_out(
    what: str, forks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = watched(monkeypatch, forks)
    mode = FakeTensorMode()
    batches = [(size, faked(torch.randn(size, WIDTH), mode)) for size in (2, 4)]
    first, second = trace_steps(lambda: Training(Keeping(what), device=CPU), batches, device=CPU, mode=mode)
    assert not are_alike(first, second)
    assert len(sent) == forks
    assert all(sent)


@pytest.mark.parametrize("forks", [False, True], ids=["one after the other", "side by side"])
@pytest.mark.parametrize("optimizer", [torch.optim.AdamW, torch.optim.SGD, torch.optim.Adagrad, AfterPassesAlone])
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_they_say_the_same(
    optimizer: Callable[..., torch.optim.Optimizer], forks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = watched(monkeypatch, forks)
    one, other = together(optimizer), apart(optimizer)
    for batch in (1, 3, 1000):
        assert one.peak(batch) == other.peak(batch)
        assert one.breakdown(batch) == other.breakdown(batch)
    assert len(sent) == (forks and optimizer is not AfterPassesAlone)
    assert all(sent)


def test_parameters_that_no_step_uses_have_no_state() -> None:
    used = (WIDTH * WIDTH + WIDTH) * 4
    state = together(torch.optim.AdamW).breakdown(2)[Category.OPTIMIZER_STATE]
    assert 2 * used <= state < 2 * used + 1024, "two moments, and a count of steps for each"
