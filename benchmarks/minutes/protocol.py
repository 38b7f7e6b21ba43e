"""The messages between the command and an arm: lines of JSON over two pipes.

The first line to an arm is its request, each further one a number of steps to make. The first line from it is
:class:`Ready`, each further one :class:`Turned`; or :class:`Lost`, which is always the last.
"""

from __future__ import annotations

import msgspec

from benchmarks.minutes.settings import Setting

__all__ = ["ArmRequest", "Lost", "Ready", "Reply", "Turned"]


class ArmRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What an arm trains.

    Attributes:
        workload: The user's file.
        setting: The hand-written setting; with a wrapper only its name is used.
        batch: Samples per step.
        wrapper: The generated ``wrapper.py`` to train with; ``None`` for a hand-written loop.
        device: torch's name of it.
        memory_bytes: The host memory that the process may use; ``None`` for no limit.
        seed: Seed of weights and batches.
    """

    workload: str
    setting: Setting
    batch: int
    wrapper: str | None = None
    device: str = "cpu"
    memory_bytes: int | None = None
    seed: int = 0


class Ready(msgspec.Struct, frozen=True, kw_only=True, tag="ready"):
    """The arm has warmed up.

    Attributes:
        batch: Samples per step.
        step_seconds: Its fastest step after the first one.
    """

    batch: int
    step_seconds: float


class Turned(msgspec.Struct, frozen=True, kw_only=True, tag="turned"):
    """The arm has made its steps.

    Attributes:
        seconds: What they took.
    """

    seconds: float


class Lost(msgspec.Struct, frozen=True, kw_only=True, tag="lost"):
    """The arm cannot train or stopped training.

    Attributes:
        reason: Why.
    """

    reason: str


Reply = Ready | Turned | Lost
