"""A space as Optuna's parameters: one categorical per method, the number of devices, and the share of the batch."""

from __future__ import annotations

from collections.abc import Mapping

from optuna.distributions import CategoricalDistribution

from advisor.search.space.factors import Choice
from advisor.search.space.space import Combination, ResolvedSpace

__all__ = ["Parameters"]

_OFF = "off"
_FRACTION = "batch_fraction"
_DEVICES = "gpu_count"


class Parameters:
    """Translates between points of a space and Optuna's parameters.

    Args:
        space: What may be proposed.

    Attributes:
        distributions: Name -> what Optuna may choose from.
    """

    def __init__(self, space: ResolvedSpace) -> None:
        self._space = space
        self._settings = {setting.label: setting for axis in space.axes for setting in axis.settings}
        self.distributions: dict[str, CategoricalDistribution] = {
            axis.method: CategoricalDistribution((_OFF, *(setting.label for setting in axis.settings)))
            for axis in space.axes
        }
        if len(space.gpu_counts) > 1:
            self.distributions[_DEVICES] = CategoricalDistribution(space.gpu_counts)
        self.distributions[_FRACTION] = CategoricalDistribution(space.batch_fractions)

    @property
    def choices(self) -> dict[str, list[object]]:
        """Name -> its choices: two studies of equal choices are of one space."""
        return {name: list(distribution.choices) for name, distribution in self.distributions.items()}

    def are_complete(self, parameters: Mapping[str, object]) -> bool:
        """Whether a trial has a value for every parameter of this space, and no other."""
        return parameters.keys() == self.distributions.keys()

    def choice_of(self, parameters: Mapping[str, object]) -> Choice:
        """The point that Optuna's parameters mean, valid or not."""
        chosen = [self._settings[value] for value in parameters.values() if isinstance(value, str) and value != _OFF]
        gpu_count = parameters.get(_DEVICES, self._space.gpu_counts[0])
        fraction = parameters[_FRACTION]
        assert isinstance(gpu_count, int)
        assert isinstance(fraction, int | float)
        combination = Combination(tuple(sorted(chosen, key=lambda use: use.name)), gpu_count)
        return Choice(combination, float(fraction))

    def of(self, choice: Choice) -> dict[str, str | int | float]:
        """Optuna's parameters for a point."""
        labels = {use.name: use.label for use in choice.combination.uses}
        parameters: dict[str, str | int | float] = {
            axis.method: labels.get(axis.method, _OFF) for axis in self._space.axes
        }
        if _DEVICES in self.distributions:
            parameters[_DEVICES] = choice.combination.gpu_count
        parameters[_FRACTION] = choice.fraction
        return parameters
