"""What a search is told to try next, and what it can hope for still."""

from __future__ import annotations

import enum

import msgspec

from advisor.methods.setting import MethodSetting
from advisor.search.space.space import Combination

__all__ = ["Attribute", "GainLeft", "InTurn", "Proposal", "SamplerName"]

Attribute = str | int | float | bool | None
"""What can be written beside a trial."""


class SamplerName(enum.Enum):
    """How proposals are chosen."""

    MODEL = "model"
    """The largest expected improvement under a model of all combinations."""
    TPE = "tpe"
    """Optuna's tree-structured Parzen estimator."""
    RANDOM = "random"
    """At random: what the others are measured against."""


class Proposal(msgspec.Struct, frozen=True, kw_only=True):
    """What to try next.

    Attributes:
        combination: The methods and the number of devices.
        batch_fraction: Share of the largest feasible micro-batch.
        recipe_name: Name of the recipe (``"plain"`` for plain training) if the proposal was enqueued, else ``None``.
        hand_tuned: Whether it is the experienced person's setting (which may be plain training).
    """

    number: int
    combination: Combination
    batch_fraction: float
    recipe_name: str | None = None
    hand_tuned: bool = False

    @property
    def settings(self) -> tuple[MethodSetting, ...]:
        """The methods, sorted by name."""
        return self.combination.settings


class InTurn(msgspec.Struct, frozen=True, kw_only=True):
    """What a measurement alternated with.

    Attributes:
        combination: The other combination.
        micro_batch: Its micro-batch.
        ratio: The measured score over the other's.
    """

    combination: Combination
    micro_batch: int
    ratio: float


class GainLeft(msgspec.Struct, frozen=True, kw_only=True):
    """What a search can hope for still.

    Attributes:
        expected: The largest expected improvement of anything untried, as a share of the least cost so far.
        noise: Relative difference between repetitions of the measurements so far.
    """

    expected: float
    noise: float
    measured: int

    @property
    def is_noise(self) -> bool:
        """Whether the improvement is lost in the noise: an expectation of half of it is a chance of one that shows."""
        return self.expected < self.noise / 2
