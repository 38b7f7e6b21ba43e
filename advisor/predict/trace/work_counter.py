"""Counts the work of a training step, operator by operator; on fake tensors nothing is computed."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass_type

from advisor.measure.memory.operator_mode import OperatorMode
from advisor.phase import Phase
from advisor.predict.step_work import Work
from advisor.predict.trace.fake_device import device_asked_for
from advisor.predict.trace.operator_work import operator_work

__all__ = ["WorkCounter"]


class WorkCounter(OperatorMode):  # type: ignore[no-untyped-call]
    """A dispatch mode that counts the work of every operator.

    Attributes:
        works: One for every operator that read or wrote something, in order.
        phase: Phase of what is counted; in ``Phase.IDLE`` nothing is.
    """

    def __init__(self) -> None:
        super().__init__()
        self.works: list[Work] = []
        self.phase = Phase.IDLE

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if (device := device_asked_for(func, args)) is not None:
            return device
        if any(is_traceable_wrapper_subclass_type(kind) for kind in types):
            return NotImplemented  # the tensor uses operators of its own on what it wraps: those are counted
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if self.phase is not Phase.IDLE and isinstance(func, torch._ops.OpOverload):
            work = operator_work(func, args, kwargs, result, self.phase)
            if work is not None:
                self.works.append(work)
        return result
