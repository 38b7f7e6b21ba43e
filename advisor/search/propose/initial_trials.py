"""What is tried before anything is proposed: plain training and the recipes."""

from __future__ import annotations

from advisor.methods.setting import MethodSetting
from advisor.search.space.factors import Choice
from advisor.search.space.space import Combination, ResolvedRecipe, ResolvedSpace

__all__ = ["PLAIN", "names_of", "seeds_of"]

PLAIN = "plain"
"""What plain training is called among the recipes."""


def seeds_of(space: ResolvedSpace, *, compares_devices: bool = False) -> list[tuple[str, Combination]]:
    """The seeds with their names, in the order in which they are tried.

    Plain training on the fewest devices, and each recipe on the most that it works on: what they do on other numbers
    can nearly be told from that, and ten recipes on four numbers would be forty trials.

    Where numbers of devices compete, plain training is tried on each, and before that the experienced person's setting
    on the fewest: there may be time for little more, and fewer devices with the right methods are often cheaper, and
    faster, than more without.

    Args:
        space: The search space.
        compares_devices: Whether numbers of devices compete.
    """
    fewest, *others = space.gpu_counts
    found = [(PLAIN, space.on_devices((), fewest))]
    if compares_devices and others:
        found += [
            (recipe.name, space.on_devices(_settings_on(fewest, recipe, space), fewest))
            for recipe in space.recipes
            if recipe.hand_tuned and recipe.place is None
        ]
        found += [(PLAIN, space.on_devices((), count)) for count in others]
    for recipe in space.recipes:
        places = [(count, None) for count in reversed(space.gpu_counts)] if recipe.place is None else [recipe.place]
        on_each = (space.on_devices(_settings_on(count, recipe, space), count, mesh) for count, mesh in places)
        found.append((recipe.name, next((one for one in on_each if one is not None), None)))
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
            place = recipe.place or (count, None)
            if place[0] == count and combination == space.on_devices(_settings_on(count, recipe, space), *place):
                # An experienced person uses every device there is.
                names[recipe.name] = recipe.hand_tuned and count == space.gpu_counts[-1]
    return next(iter(names), None), any(names.values())


def _settings_on(gpu_count: int, recipe: ResolvedRecipe, space: ResolvedSpace) -> tuple[MethodSetting, ...]:
    """A recipe's methods on a number of devices: on several, without the optional ones that are for a single device."""
    if gpu_count == 1:
        return recipe.settings
    left_out = {axis.method for axis in space.axes if axis.one_device_only} & set(recipe.optional)
    return tuple(one for one in recipe.settings if one.name not in left_out)
