"""A space as Optuna's parameters: one categorical per method, the devices, and the share of the batch.

Where devices may form several meshes, one categorical has every pair of a number and a mesh. With a categorical of
meshes for each number, a trial would also have values for the numbers that it does not use, and one point would be
written in many ways. Where only the data is divided, the categorical is that of numbers, so that older studies go on.
"""

from __future__ import annotations

from collections.abc import Mapping

from optuna.distributions import CategoricalDistribution

from advisor.search.space.factors import Choice
from advisor.search.space.space import Combination, ResolvedSpace

__all__ = ["Parameters"]

_OFF = "off"
_FRACTION = "batch_fraction"
_DEVICES = "gpu_count"
_MESH = "devices"


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
        self._places = {f"{count} {mesh.label(count)}".rstrip(): (count, mesh) for count, mesh in space.places}
        self._labels = {place: label for label, place in self._places.items()}
        self.distributions: dict[str, CategoricalDistribution] = {
            axis.method: CategoricalDistribution((_OFF, *(setting.label for setting in axis.settings)))
            for axis in space.axes
        }
        if space.has_meshes:
            self.distributions[_MESH] = CategoricalDistribution(tuple(self._places))
        elif len(space.gpu_counts) > 1:
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
        values = [parameters[axis.method] for axis in self._space.axes]
        chosen = [self._settings[value] for value in values if isinstance(value, str) and value != _OFF]
        place = parameters.get(_MESH, str(parameters.get(_DEVICES, self._space.gpu_counts[0])))
        fraction = parameters[_FRACTION]
        assert isinstance(place, str)
        assert isinstance(fraction, int | float)
        combination = Combination(tuple(sorted(chosen, key=lambda setting: setting.name)), *self._places[place])
        return Choice(combination, float(fraction))

    def of(self, choice: Choice) -> dict[str, str | int | float]:
        """Optuna's parameters for a point."""
        labels = {setting.name: setting.label for setting in choice.combination.settings}
        parameters: dict[str, str | int | float] = {
            axis.method: labels.get(axis.method, _OFF) for axis in self._space.axes
        }
        if _MESH in self.distributions:
            parameters[_MESH] = self._labels[choice.combination.gpu_count, choice.combination.mesh]
        if _DEVICES in self.distributions:
            parameters[_DEVICES] = choice.combination.gpu_count
        parameters[_FRACTION] = choice.fraction
        return parameters
