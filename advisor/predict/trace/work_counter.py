"""Counts the work of a training step, operator by operator; on fake tensors nothing is computed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass_type

from advisor.measure.memory.meter import listening
from advisor.phase import Phase
from advisor.predict.step_work import StepWork, Work, work_through
from advisor.predict.trace.fake_device import device_asked_for
from advisor.predict.trace.operator_work import operator_work

if TYPE_CHECKING:
    from advisor.training.training import Training

__all__ = ["WorkCounter", "count_step", "count_work"]


class WorkCounter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A dispatch mode that counts the work of every operator below it, in the backward pass too.

    Attributes:
        works: One for every operator that read or wrote something, in order.
        phase: What is counted belongs to it; in ``Phase.IDLE`` nothing is counted.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.works: list[Work] = []
        self.phase = Phase.IDLE

    def enter(self, phase: Phase) -> None:
        """Begin a phase."""
        self.phase = phase

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Let ``torch.compile`` compile below this mode, so that counting changes nothing for steps to come."""
        return True

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if (device := device_asked_for(func, args)) is not None:
            return device
        if any(is_traceable_wrapper_subclass_type(kind) for kind in types):
            return NotImplemented  # the tensor does it with operators of its own, on what it wraps: those are counted
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if self.phase is not Phase.IDLE and isinstance(func, torch._ops.OpOverload):
            work = operator_work(func, args, kwargs, result, self.phase)
            if work is not None:
                self.works.append(work)
        return result


def count_step(training: Training, batch: Any) -> list[Work]:
    """Take one step and count its work.

    Args:
        training: The training, of real or of fake tensors, with its optimizer state in place.
        batch: What it takes its step on.
    """
    counter = WorkCounter()
    with counter, listening(training, counter.enter):
        training.step(batch)
    return counter.works


def count_work(training: Training, make_batch: Callable[[int], Any], *, batches: tuple[int, int] = (2, 4)) -> StepWork:
    """The work of a step at any batch, from steps at two.

    If the training splits its batches, gradient accumulation is included, and the work is exact at every multiple of
    its micro-batch if both batches are such multiples.

    Args:
        training: The training. It takes a few steps: have it of fake tensors, so that they cost nothing.
        make_batch: Makes a batch of a number of samples, of tensors like the training's.
        batches: The two, near those that will be trained with: methods may leave tensors below a size alone.

    Raises:
        Exception: What the user's code raises; on fake tensors whatever looks at the value of one.
    """
    for _ in range(1 + training.settling_steps):  # the first also makes the optimizer's state
        training.step(make_batch(batches[0]))
    first, second = (count_step(training, make_batch(batch)) for batch in batches)
    return work_through((batches[0], first), (batches[1], second))
