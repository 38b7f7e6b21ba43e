"""What is tried before anything is proposed: plain training and the recipes, on every number of devices."""

from __future__ import annotations

from advisor.search.factors import Choice
from advisor.search.resolved import Combination, ResolvedSpace

__all__ = ["PLAIN", "names_of", "seeds_of"]

PLAIN = "plain"
"""What plain training is called among the recipes."""


def seeds_of(space: ResolvedSpace) -> list[tuple[str, Combination]]:
    """The seeds with their names, in the order in which they are tried.

    On every number of devices plain training comes first, then the first recipe, and so on: a search that ends early
    has seen each of them.
    """
    named = ((PLAIN, ()), *((recipe.name, recipe.uses) for recipe in space.recipes))
    found = ((name, space.on_devices(uses, gpu_count)) for name, uses in named for gpu_count in space.gpu_counts)
    return [(name, combination) for name, combination in found if combination is not None]


def names_of(space: ResolvedSpace, choice: Choice) -> tuple[str | None, bool]:
    """The name of a point among the seeds, and whether it is the experienced person's setting.

    The name goes with the point, not with the way it was drawn: a continued study may draw it again.
    """
    names: dict[str, bool] = {}
    if choice.fraction == space.batch_fractions[0]:
        combination, count = choice.combination, choice.combination.gpu_count
        if combination == space.on_devices((), count):
            names[PLAIN] = False
        for recipe in space.recipes:
            if combination == space.on_devices(recipe.uses, count):
                # An experienced person uses every device there is.
                names[recipe.name] = recipe.hand_tuned and count == space.gpu_counts[-1]
    return next(iter(names), None), any(names.values())
