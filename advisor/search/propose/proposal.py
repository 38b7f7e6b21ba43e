"""What a search is told to try next, and what it can hope for still."""

from __future__ import annotations

import enum

import msgspec

from advisor.methods.setting import MethodSetting
from advisor.search.space.space import Combination

__all__ = ["Attribute", "GainLeft", "InTurn", "Proposal", "SamplerName"]

Attribute = str | int | float | bool | None
"""What can be written beside a trial."""

_LITTLE = 0.005
"""An expected improvement below which four trials in a row end a search, however noisy they are.

With half of the noise alone, 99 generated problems (:mod:`benchmarks.search.generated`, seeds 100 to 199) ended after a
median of 13 trials with an answer 3.6 % behind the optimum in the mean; with this limit they end after 18, and 2.9 %
behind. After the time of 40 it is 2.5 %."""


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
        learning: The same of what the measurement of something untried may lead to; zero where nothing is tried for
            that.
        noise: Relative difference between repetitions of the measurements so far.
    """

    expected: float
    noise: float
    measured: int
    learning: float = 0.0

    @property
    def is_negligible(self) -> bool:
        """Whether the improvement is both lost in the noise and small.

        An expectation of half of the noise is a chance of an improvement that shows. Where measurements are noisy, much
        less is worth further trials: the model has all of them.
        """
        return max(self.expected, self.learning) < min(self.noise / 2, _LITTLE)
