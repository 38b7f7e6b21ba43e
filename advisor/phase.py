"""The phases of a training step. Without torch: predictions by phase are read where torch is not loaded."""

from __future__ import annotations

import enum

__all__ = ["Phase"]


class Phase(enum.Enum):
    """What a training step is doing."""

    FORWARD = "forward"
    BACKWARD = "backward"
    OPTIMIZER = "optimizer"
    IDLE = "idle"
