"""What the process of the command and that of an arm tell each other: lines of JSON over two pipes.

The first line to an arm is its request, and each further one a number of steps to make. The first line from it is
:class:`Ready`, and each further one :class:`Turned`; or :class:`Lost`, its last.
"""

from __future__ import annotations

import msgspec

from benchmarks.minutes.settings import Setting

__all__ = ["ArmRequest", "Lost", "Ready", "Reply", "Turned"]


class ArmRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What an arm trains.

    Attributes:
        workload: The user's file.
        setting: What is set by hand; with a wrapper its name alone counts.
        batch: Samples per step.
        wrapper: The emitted ``wrapper.py`` to train with; ``None`` for a loop by hand.
        device: torch's name of it.
        memory_bytes: What the process may take of the host's memory; ``None`` for no limit.
        seed: Of weights and batches.
    """

    workload: str
    setting: Setting
    batch: int
    wrapper: str | None = None
    device: str = "cpu"
    memory_bytes: int | None = None
    seed: int = 0


class Ready(msgspec.Struct, frozen=True, kw_only=True, tag="ready"):
    """It has warmed up.

    Attributes:
        batch: Samples per step.
        step_seconds: Of its fastest step after the first one.
    """

    batch: int
    step_seconds: float


class Turned(msgspec.Struct, frozen=True, kw_only=True, tag="turned"):
    """It has made its steps.

    Attributes:
        seconds: What they took.
    """

    seconds: float


class Lost(msgspec.Struct, frozen=True, kw_only=True, tag="lost"):
    """It cannot train, or not any more.

    Attributes:
        reason: Why.
    """

    reason: str


Reply = Ready | Turned | Lost
