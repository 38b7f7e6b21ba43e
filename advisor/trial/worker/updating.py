"""Steps that really update the parameters."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from advisor.measure.timing import Agree, alone
from advisor.training.training import Training

__all__ = ["until_updated"]

_MOST_ATTEMPTS = 32

_Answer = TypeVar("_Answer")


def until_updated(training: Training, attempt: Callable[[], _Answer], agree: Agree = alone) -> _Answer:
    """Repeat a step until the optimizer has run in it.

    Under float16 the first steps are skipped while the scale of the loss is found: they create no optimizer state,
    whose memory must be measured, and their losses are a step behind those they are compared with.
    """
    scaler = training.gradient_scaler
    if scaler is None:
        return attempt()
    for _ in range(_MOST_ATTEMPTS):
        scale = scaler.get_scale()
        answer = attempt()
        if agree(scaler.get_scale() >= scale):  # a skipped step lowers it
            break
    return answer
