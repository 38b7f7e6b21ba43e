"""Small trainings whose work is worked out by hand, and their steps on fake tensors."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from advisor.measure.memory.meter import listening
from advisor.methods.setting import MethodSetting
from advisor.phase import Phase
from advisor.policy.apply import apply_policy
from advisor.policy.policy import Policy
from advisor.predict.step_work import Kind, StepWork, Work, work_through
from advisor.predict.trace.step_trace import StepTrace, trace_steps
from advisor.predict.trace.work_counter import WorkCounter
from advisor.training.training import Training


def squares(model: torch.nn.Module, batch: torch.Tensor) -> torch.Tensor:
    return model(batch).square().mean()


def sgd(parameters: Iterable[torch.nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1, foreach=False)


def training_of(model: torch.nn.Module, *methods: MethodSetting, **options: Any) -> Training:
    options = {"compute_loss": squares, "build_optimizer": sgd, **options}
    return apply_policy(Policy(methods=methods, micro_batch=2**20), model, device="cpu", **options)


def count_step(training: Training, batch: Any) -> list[Work]:
    """Take one step and count its work.

    Args:
        training: Of real or of fake tensors, with its optimizer state in place.
        batch: What it takes its step on.
    """
    counter = WorkCounter()
    with counter, listening(training, functools.partial(setattr, counter, "phase")):
        training.step(batch)
    return counter.works


def fake_work(
    build: Callable[[], torch.nn.Module],
    make_batch: Callable[[int], Any],
    *methods: MethodSetting,
    batches: tuple[int, int] = (2, 4),
    **options: Any,
) -> StepWork:
    """The work of a step of a model that never exists."""
    with FakeTensorMode():
        training = training_of(build(), *methods, **options)
        try:
            for _ in range(1 + training.settling_steps):  # the first also makes the optimizer's state
                training.step(make_batch(batches[0]))
            first, second = ((batch, count_step(training, make_batch(batch))) for batch in batches)
            return work_through(first, second)
        finally:
            training.close()


def fake_step(
    build: Callable[[], torch.nn.Module], batch: Callable[[], Any], *methods: MethodSetting, **options: Any
) -> list[Work]:
    """The calls of one step, its optimizer state in place."""
    with FakeTensorMode():
        training = training_of(build(), *methods, **options)
        try:
            training.step(batch())
            return count_step(training, batch())
        finally:
            training.close()


def counted(function: Callable[[], Any]) -> list[Work]:
    """The calls of a function, as if they were the forward pass of a step."""
    with WorkCounter() as counter:
        counter.phase = Phase.FORWARD
        function()
    return counter.works


def flops(works: Iterable[Work], phase: Phase | None = None, kind: Kind | None = None) -> float:
    return sum(one.flops for one in works if phase in (None, one.phase) and kind in (None, one.kind))


def named(works: Iterable[Work], operator: str, phase: Phase | None = None) -> list[Work]:
    return [one for one in works if one.operator == operator and phase in (None, one.phase)]


def trace_step(
    build: Callable[[], Training],
    batch: Any,
    *,
    micro_batch: int,
    device: torch.device,
    mode: FakeTensorMode,
    stands_for_another: bool = False,
) -> StepTrace:
    """Trace the second step of a training; see :func:`trace_steps`."""
    batches = [(micro_batch, batch)]
    return trace_steps(build, batches, device=device, mode=mode, stands_for_another=stands_for_another)[0]
