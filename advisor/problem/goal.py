"""What the user wants, and what must stay fixed while we look for it."""

from __future__ import annotations

import enum

import msgspec

__all__ = ["Fidelity", "Goal", "GoalKind"]


class GoalKind(enum.Enum):
    """The goals of the evaluation paper (Liu 2023, section 3)."""

    FASTER = "faster"
    BIGGER = "bigger"
    CHEAPEST = "cheapest"


class Fidelity(enum.Enum):
    """How far a method's training may differ from plain training, from least to most.

    ``EXACT``: bit-equal gradients. ``ROUNDING``: float sums in another order. ``PRECISION``: a lower float
    format. ``LOSSY``: information is thrown away. ``MODEL``: what is learned changes.
    """

    EXACT = "exact"
    ROUNDING = "rounding"
    PRECISION = "precision"
    LOSSY = "lossy"
    MODEL = "model"

    @property
    def rank(self) -> int:
        """Position from 0 (exact) to 4 (model)."""
        return list(Fidelity).index(self)

    def allows(self, other: Fidelity) -> bool:
        """Whether a ceiling of this class admits ``other``."""
        return other.rank <= self.rank


class Goal(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A goal and its fixed quantities.

    Attributes:
        kind: Which metric is optimized.
        global_batch: Samples per optimizer step, when that must not change; ``None`` lets the batch vary.
        fidelity: The worst class of method that may win.
        memory_limit_bytes: The most device memory that training may take (already less what this process holds).
    """

    kind: GoalKind
    global_batch: int | None
    fidelity: Fidelity
    memory_limit_bytes: int
