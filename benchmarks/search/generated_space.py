"""The methods of a generated problem: their number, their conflicts, and every combination as a row."""

from __future__ import annotations

import itertools
import math

import numpy as np

from advisor.goal import Fidelity
from advisor.hardware.mesh import MeshAxis
from advisor.methods.setting import MethodSetting
from advisor.search.space.space import Axis, Combination, ResolvedRecipe, ResolvedSpace, pair_of

__all__ = ["GeneratedSpace"]

_FEWEST, _MOST = 300, 100_000
"""Number of combinations of a space, before conflicts exclude any."""

_MOST_SETTINGS = 4
_SEVERAL_DEVICES = 0.3
"""Fraction of the spaces that have several devices."""

_RECIPES = 3
_CONFLICTS = 0.03
"""Fraction of the pairs of settings with a declared conflict."""

Setting = tuple[int, int]
"""Number of a method, and its level from 1 on."""


class GeneratedSpace:
    """A space of random size.

    Args:
        generator: Random number generator.

    Attributes:
        sizes: Number of settings of each method; the last method is distributed if there are several devices.
        settings: Every setting of every method that is not distributed.
        codes: Level of each method in every combination, one row per combination; 0 is off.
        gpu_count: Number of devices of every combination.
        allowed: For each combination, whether it is free of conflicts.
    """

    def __init__(self, generator: np.random.Generator) -> None:
        target = math.exp(generator.uniform(math.log(_FEWEST), math.log(_MOST)))
        self._counts = (1, 2, 4, 8) if generator.random() < _SEVERAL_DEVICES else (1,)
        ways = int(generator.integers(1, 4)) if len(self._counts) > 1 else 0
        self._places = [(1, 0), *itertools.product(self._counts[1:], range(1, ways + 1))]
        sizes: list[int] = []
        while len(self._places) * math.prod(size + 1 for size in sizes) < target:
            size = int(generator.integers(1, _MOST_SETTINGS + 1))
            most = _MOST / (len(self._places) * math.prod(one + 1 for one in sizes))
            sizes.append(max(1, min(size, math.floor(most) - 1)))
        self.settings: list[Setting] = [
            (method, level) for method, size in enumerate(sizes) for level in range(1, size + 1)
        ]
        grid = itertools.product(*(range(size + 1) for size in sizes), range(len(self._places)))
        rows = np.array(list(grid), dtype=np.int16)
        places = np.array(self._places, dtype=np.int16)[rows[:, -1]]
        self.sizes = (*sizes, ways)
        self.codes: np.ndarray = np.column_stack([rows[:, :-1], places[:, 1]])
        self.gpu_count: np.ndarray = places[:, 0]
        self._shape = (*(size + 1 for size in sizes), len(self._places))
        self._conflicts = self._drawn_conflicts(generator)
        self.allowed: np.ndarray = np.ones(len(rows), dtype=bool)
        for pair in self._conflicts:
            self.allowed &= ~self.both(*pair)

    def __len__(self) -> int:
        return len(self.codes)

    def uses(self, setting: Setting) -> np.ndarray:
        """Which combinations use a setting."""
        method, level = setting
        found: np.ndarray = self.codes[:, method] == level
        return found

    def both(self, *settings: Setting) -> np.ndarray:
        """Which combinations use all of some settings."""
        found: np.ndarray = np.logical_and.reduce([self.uses(one) for one in settings])
        return found

    def some(self, generator: np.random.Generator, count: int) -> list[Setting]:
        """Settings of several different methods."""
        methods = generator.choice(len(self.sizes) - 1, count, replace=False)
        return [(int(method), int(generator.integers(1, self.sizes[method] + 1))) for method in methods]

    def row(self, combination: Combination) -> int:
        """The row of a combination."""
        levels = [0] * (len(self.sizes) - 1)
        way = 0
        for setting in combination.settings:
            level = int(str(setting.parameters["level"]))
            if setting.name == "way":
                way = level
            else:
                levels[int(setting.name.removeprefix("method_"))] = level
        return int(np.ravel_multi_index((*levels, self._places.index((combination.gpu_count, way))), self._shape))

    def resolved(self, name: str, recipes: list[list[Setting]]) -> ResolvedSpace:
        """The space in the form that a search sees."""
        axes = [
            Axis(method=_name(method), settings=tuple(_setting((method, level)) for level in range(1, size + 1)))
            for method, size in enumerate(self.sizes[:-1])
        ]
        if self.sizes[-1]:
            ways = tuple(
                MethodSetting(name="way", parameters={"level": level}) for level in range(1, self.sizes[-1] + 1)
            )
            axes.append(Axis(method="way", settings=ways, divides=MeshAxis.DATA))
        return ResolvedSpace(
            name=name,
            fidelity=Fidelity.LOSSY,
            axes=tuple(axes),
            batch_fractions=(1.0, 0.5),
            recipes=tuple(
                ResolvedRecipe(
                    name=f"recipe {number}",
                    hand_tuned=number == 1,
                    settings=tuple(sorted((_setting(one) for one in recipe), key=lambda setting: setting.name)),
                )
                for number, recipe in enumerate(recipes, 1)
            ),
            refused={},
            dropped_recipes={},
            conflicts={pair_of(_setting(one), _setting(other)): "declared" for one, other in self._conflicts},
            gpu_counts=self._counts,
        )

    def recipes(self, generator: np.random.Generator, effects: dict[Setting, float]) -> list[list[Setting]]:
        """Recommended recipes: a few compatible settings each, which help more often than not."""
        found: list[list[Setting]] = []
        while len(found) < _RECIPES:
            recipe = self.some(generator, int(generator.integers(1, min(4, len(self.sizes)))))
            helps = [one for one in recipe if effects[one] < 0 or generator.random() < 0.3]
            pairs = itertools.combinations(sorted(helps), 2)
            if helps and not any(pair in self._conflicts for pair in pairs):
                found.append(helps)
            elif not any(effect < 0 for effect in effects.values()):
                break
        return found

    def _drawn_conflicts(self, generator: np.random.Generator) -> set[tuple[Setting, Setting]]:
        pairs = ((one, other) for one, other in itertools.combinations(self.settings, 2) if one[0] != other[0])
        return {pair for pair in pairs if generator.random() < _CONFLICTS}


def _name(method: int) -> str:
    return f"method_{method:02d}"


def _setting(setting: Setting) -> MethodSetting:
    return MethodSetting(name=_name(setting[0]), parameters={"level": setting[1]})
