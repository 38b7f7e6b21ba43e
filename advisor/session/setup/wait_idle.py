"""Wait until other processes leave the device alone."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable

from advisor.goal import Goal
from advisor.hardware.contention import Load, other_load
from advisor.hardware.hardware import Hardware
from advisor.report.progress import Progress
from advisor.session.budget import TimeBudget
from advisor.text.units import format_duration
from advisor.trial.process.interruption import look_for_interruption

__all__ = ["wait_as_asked", "wait_until_idle"]

_LOOKS = 2
"""An idle machine is seen so many times in a row: builds and data loaders pause."""

_TELL_SECONDS = 30.0
_LOOK_SECONDS = 1.0


def wait_as_asked(
    limit_seconds: float | None, hardware: Hardware, goal: Goal, budget: TimeBudget, progress: Progress
) -> list[str]:
    """Wait if that was asked for, while the clock of the time limit stands still.

    Args:
        limit_seconds: How long to wait at most; ``None`` not to wait at all.
        hardware: The device.
        goal: The goal, which says how many devices may train.
        budget: The clock.
        progress: Told what is waited for.

    Returns:
        A note if the machine was still busy then.
    """
    if limit_seconds is None:
        return []
    look = functools.partial(other_load, hardware, devices=max(goal.gpu_counts), seconds=_LOOK_SECONDS)
    began = time.monotonic()
    with budget.stopped():
        note = wait_until_idle(limit_seconds, look, progress)
    progress.waited(time.monotonic() - began)
    return [] if note is None else [note]


def wait_until_idle(
    limit_seconds: float, look: Callable[[], Load], progress: Progress, *, clock: Callable[[], float] = time.monotonic
) -> str | None:
    """Look again and again until the machine is idle, and say what is waited for.

    Args:
        limit_seconds: How long to wait at most.
        look: Watches for a moment what others do.
        progress: Told what is waited for.
        clock: In seconds.

    Returns:
        ``None`` once it is idle; after the limit a note on what was busy, and measuring goes on.

    Raises:
        KeyboardInterrupt: The user interrupted.
    """
    begin, told, idle = clock(), -_TELL_SECONDS, 0
    while True:
        load = look()
        look_for_interruption()
        idle = idle + 1 if load.is_idle else 0
        waited = clock() - begin
        if idle >= _LOOKS:
            return None
        if waited >= limit_seconds:
            return (
                f"the machine was not idle after {format_duration(waited)}, and was measured all the same: {load.words}"
            )
        if not load.is_idle and waited - told >= _TELL_SECONDS:
            told = waited
            left = format_duration(limit_seconds - waited)
            progress.stage(f"waiting until the machine is idle, for {left} at most: {load.words}")
