"""Methods that were asked for by name: the space that holds nothing else, and why one of them cannot be used."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import msgspec

from advisor.errors import SearchSpaceError
from advisor.hardware.hardware import Hardware
from advisor.hardware.mesh import MeshAxis
from advisor.methods.base import Method
from advisor.methods.catalogue import CATALOGUE, get_method
from advisor.methods.compose import judge_alone, settings_of
from advisor.methods.setting import ParameterValue
from advisor.search.space.space import ResolvedSpace
from advisor.search.space.space_file import Recipe, SearchSpace

__all__ = ["check_requested", "check_requested_on", "only_methods"]

_RECIPE = "asked for"


def only_methods(space: SearchSpace, names: Sequence[str]) -> SearchSpace:
    """A space of the methods asked for: at the space's own values, or all that they declare where it has none.

    What divides the data among several devices stays as it is unless one of those methods is asked for: on several
    devices there must be one. All of the methods together are the first thing that is tried after plain training, then
    the recipes that need no others, and each alone.

    Args:
        space: The space to take values, batch fractions and recipes from.
        names: Names of methods.

    Raises:
        MethodRefusedError: There is no method of such a name.
    """
    asked = [get_method(name) for name in dict.fromkeys(names)]
    kept = {method.name: space.methods.get(method.name) for method in asked}
    if not any(method.axis is MeshAxis.DATA for method in asked):
        kept |= {method.name: space.methods[method.name] for method in _for_several(CATALOGUE, space)}
    together: dict[str, dict[str, ParameterValue | list[ParameterValue]] | None] = {
        method.name: {parameter.name: list(space.values_of(method, parameter)) for parameter in method.parameters}
        for method in asked
    }
    recipes = [_part_of(recipe, kept) for recipe in space.recipes if recipe.name != _RECIPE]
    return msgspec.structs.replace(
        space,
        name=f"{space.name}, only {', '.join(method.name for method in asked)}",
        methods=kept,
        each_alone=True,
        slow_formats=True,  # Whoever asks for one wants to see what it does.
        recipes=(Recipe(name=_RECIPE, methods=together), *filter(None, recipes)),
    )


def check_requested_on(names: Sequence[str], hardware: Hardware) -> None:
    """Refuse what cannot apply on this machine, whatever the model: before anything is run.

    Raises:
        SearchSpaceError: A method cannot be used here; with its reason.
    """
    for method in map(get_method, names):
        verdicts = [judge_alone(setting, facts=None, hardware=hardware) for setting in settings_of(method)]
        if not any(verdict.applicable for verdict in verdicts):
            reasons = dict.fromkeys(
                verdict.reason.removeprefix(f"{setting.words}: ")
                for setting, verdict in zip(settings_of(method), verdicts, strict=True)
            )
            raise _refused(method.name, "; ".join(reasons))


def check_requested(names: Sequence[str], resolved: ResolvedSpace) -> None:
    """Refuse what cannot apply to this model: before any trial but the probe that learned its facts.

    Raises:
        SearchSpaceError: A method cannot be used here; with its reason.
    """
    axes = {axis.method for axis in resolved.axes}
    for name in names:
        if name not in axes:
            reason = resolved.refused.get(name)
            if reason is None:
                one = resolved.gpu_counts == (1,)
                reason = "it is for several devices" if one else _why_nowhere(get_method(name), resolved)
            raise _refused(name, reason)


def _why_nowhere(method: Method, resolved: ResolvedSpace) -> str:
    """Why a method has no place on any number of devices although nothing refused it alone."""
    if method.one_device_only or method.axis is None:
        return method.one_device_only
    of_axis = f"{method.axis.value} axis"
    reasons = {label: why for label, why in resolved.refused.items() if label.startswith((of_axis, "mesh"))}
    return "; ".join(f"{label}: {why}" for label, why in reasons.items()) or f"no devices divide the {of_axis}"


def _for_several(catalogue: Sequence[Method], space: SearchSpace) -> list[Method]:
    for_several = (method for method in catalogue if method.axis is MeshAxis.DATA or method.builds_on)
    return [method for method in for_several if method.name in space.methods]


def _part_of(recipe: Recipe, names: Collection[str]) -> Recipe | None:
    """What a recipe has of some methods; ``None`` if it is not itself without the others.

    The experienced person's setting still says which of them go well together, but is no longer that setting.
    """
    is_whole = set(recipe.methods) - set(names) <= set(recipe.optional)
    methods = {name: values for name, values in recipe.methods.items() if name in names}
    if (recipe.methods and not methods) or not (is_whole or recipe.hand_tuned):
        return None
    optional = [name for name in recipe.optional if name in names]
    return msgspec.structs.replace(
        recipe, methods=methods, optional=optional, hand_tuned=recipe.hand_tuned and is_whole
    )


def _refused(name: str, reason: str) -> SearchSpaceError:
    return SearchSpaceError(
        f"A method asked for with --methods must apply, but {name} does not: {reason}. Leave it out; "
        f"`momadvise methods {name}` tells when it applies."
    )
