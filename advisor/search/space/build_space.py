"""From a search space to the combinations that apply to one workload on one machine."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import msgspec

from advisor.goal import Fidelity
from advisor.hardware.hardware import Hardware
from advisor.hardware.mesh import DATA_ONLY, Mesh
from advisor.methods.base import Method
from advisor.methods.catalogue import CATALOGUE
from advisor.methods.compose import conflict_between, judge_alone, settings_of, worst_fidelity
from advisor.methods.expected_time import expected_time_ratio
from advisor.methods.number_formats import format_of, why_slower
from advisor.methods.setting import MethodSetting, ParameterValue, label_words
from advisor.search.space.cut_recipes import cut_recipes
from advisor.search.space.meshes import Meshes, MeshRules, find_meshes
from advisor.search.space.space import Axis, ResolvedRecipe, ResolvedSpace, pair_of
from advisor.search.space.space_file import Recipe, SearchSpace
from advisor.workload.facts import Facts

__all__ = ["GAINS_BELOW", "build_space"]

GAINS_BELOW = 0.8
"""Time with a setting over that without, in operators alone, above which it is no part of a recipe: a training may gain
all the same, which the search finds out."""


def build_space(
    space: SearchSpace,
    facts: Facts,
    hardware: Hardware,
    fidelity: Fidelity | None = None,
    *,
    gpu_counts: tuple[int, ...] = (1,),
    global_batch: int | None = None,
    machines: int = 1,
    memory_limit_bytes: int | None = None,
    catalogue: Sequence[Method] = CATALOGUE,
) -> ResolvedSpace:
    """Keep what applies here.

    Whether settings exclude each other is asked pair by pair: conflicts are declared between two methods.

    Args:
        space: The space.
        facts: What the probe learned.
        hardware: The device and its host.
        fidelity: The user's ceiling, which replaces the space's own.
        gpu_counts: Numbers of devices that may train together, ascending. Methods for several devices are no part of
            the question when it is one.
        global_batch: Samples per optimizer step over all devices, if they are fixed.
        machines: How many machines have equal shares of the devices.
        memory_limit_bytes: The most memory that each of the most devices may take, if known: it decides which of the
            meshes is tried first.
        catalogue: Every method there is.
    """
    ceiling = space.fidelity if fidelity is None else fidelity
    axes, refused, reasons = _axes(space, facts, hardware, ceiling, gpu_counts, catalogue)
    methods = {method.name: method for method in catalogue}
    rules = MeshRules(
        facts=facts,
        owned=frozenset(axis.divides for axis in axes if axis.divides is not None),
        fidelity=ceiling,
        global_batch=global_batch,
        machines=machines,
    )
    meshes = find_meshes(gpu_counts, rules)
    axes, misfits = _on_meshes(axes, meshes, methods, facts)
    refused |= meshes.refusals
    conflicts = {
        pair_of(first, second): reason
        for one, other in itertools.combinations(axes, 2)
        for first, second in itertools.product(one.settings, other.settings)
        if (reason := conflict_between(_sorted((first, second)))) is not None
    }
    resolved = ResolvedSpace(
        name=space.name,
        fidelity=ceiling,
        axes=tuple(axes),
        batch_fractions=space.batch_fractions,
        recipes=(),
        refused=refused,
        dropped_recipes={},
        conflicts=conflicts,
        gpu_counts=gpu_counts,
        meshes={count: found for count, found in meshes.feasible.items() if found != (DATA_ONLY,)},
        misfits=misfits,
        time_ratios={
            setting.label: expected_time_ratio(methods[axis.method], setting, hardware, facts)
            for axis in axes
            for setting in axis.settings
        },
    )
    slower: dict[str, str] = {}
    for axis in axes:
        slower |= _slower(methods[axis.method], axis.settings, facts)
    resolved = _with_recipes(resolved, space.recipes_on(hardware.kind), space, methods, reasons, slower)
    cuts = cut_recipes(resolved, methods, facts, memory_limit_bytes)
    # Where plain training did not fit, nothing that leaves the model whole is likely to: cuts come first.
    recipes = (*cuts, *resolved.recipes) if facts.first_loss is None else (*resolved.recipes, *cuts)
    return msgspec.structs.replace(resolved, recipes=recipes)


def _axes(
    space: SearchSpace,
    facts: Facts,
    hardware: Hardware,
    ceiling: Fidelity,
    gpu_counts: tuple[int, ...],
    catalogue: Sequence[Method],
) -> tuple[list[Axis], dict[str, str], dict[str, str]]:
    """The methods with the settings that apply; what was refused, as it is shown; and why, setting by setting."""
    axes: list[Axis] = []
    refused: dict[str, str] = {}
    reasons: dict[str, str] = {}
    for method in catalogue:
        if method.name not in space.methods or not _has_a_place(method, gpu_counts):
            continue
        settings = [setting for setting in settings_of(method) if _in_space(setting, method, space)]
        refusals = {setting.label: _refusal(setting, facts, hardware, ceiling) for setting in settings}
        applicable = tuple(setting for setting in settings if refusals[setting.label] is None)
        here = {label: reason for label, reason in refusals.items() if reason is not None}
        reasons.update(here)
        here = _grouped(settings, here)
        if applicable:
            axes.append(
                Axis(
                    method=method.name,
                    settings=applicable,
                    divides=method.axis,
                    builds_on=method.builds_on,
                    one_device_only=bool(method.one_device_only),
                )
            )
            refused.update(here)
        elif here:
            refused[method.name] = _joined(here)
    return axes, refused, reasons


def _on_meshes(
    axes: Sequence[Axis], meshes: Meshes, methods: Mapping[str, Method], facts: Facts
) -> tuple[list[Axis], dict[tuple[str, Mesh], str]]:
    """The methods that some mesh has a place for, and which settings cannot be used on which mesh."""
    known = {mesh for found in meshes.feasible.values() for mesh in found}
    divided = {axis for count, found in meshes.feasible.items() for mesh in found for axis in mesh.divided(count)}
    kept = [axis for axis in axes if axis.divides is None or axis.divides in divided]
    reasons = {
        (setting.label, mesh): methods[axis.method].why_not_on(setting.parameters, mesh, facts)
        for axis in kept
        for setting in axis.settings
        for mesh in known
    }
    return kept, {place: reason for place, reason in reasons.items() if reason}


def _slower(method: Method, settings: Sequence[MethodSetting], facts: Facts) -> dict[str, str]:
    """Settings that nobody chooses for their speed on this device, and why, by the rates of the probe."""
    found = {setting.label: why_slower(format_of(method, setting), facts) for setting in settings}
    ratios = {setting.label: method.measured_time_ratio(setting.parameters, facts) for setting in settings}
    measured = {label: ratio for label, ratio in ratios.items() if ratio is not None}
    fastest = min(measured, key=lambda label: measured[label], default="")
    for label, ratio in measured.items():
        if ratio > GAINS_BELOW:
            found[label] = f"operators of the probe took {ratio:.2f} times as long with it"
        elif label != fastest:
            found[label] = f"operators of the probe were faster with {label_words(fastest)}"
    return {label: reason for label, reason in found.items() if reason}


def _has_a_place(method: Method, gpu_counts: tuple[int, ...]) -> bool:
    """Whether a method can be in use at one of the numbers of devices."""
    for_several = method.distributes or any(other.distributes and other.name in method.builds_on for other in CATALOGUE)
    if for_several:
        return gpu_counts[-1] > 1
    return not method.one_device_only or gpu_counts[0] == 1


def _refusal(setting: MethodSetting, facts: Facts, hardware: Hardware, ceiling: Fidelity) -> str | None:
    verdict = judge_alone(setting, facts=facts, hardware=hardware)
    if not verdict.applicable:
        # The reason stands beside the setting wherever it is shown.
        return verdict.reason.removeprefix(f"{setting.words}: ")
    fidelity = worst_fidelity((setting,), accumulation_steps=1, facts=facts)
    if not ceiling.allows(fidelity):
        return f"its fidelity is {fidelity.value}, and at most {ceiling.value} is allowed"
    return None


def _in_space(setting: MethodSetting, method: Method, space: SearchSpace) -> bool:
    return all(
        setting.parameters[parameter.name] in space.values_of(method, parameter) for parameter in method.parameters
    )


def _grouped(settings: Sequence[MethodSetting], reasons: Mapping[str, str]) -> dict[str, str]:
    """One entry for settings that share a reason and the one value that brings it about.

    Where every setting with ``offload=True`` is refused for one reason, and no other is, that value says it all.
    """
    grouped = dict(reasons)
    for name in dict.fromkeys(name for setting in settings for name in setting.parameters):
        for value in dict.fromkeys(setting.parameters[name] for setting in settings):
            alike = [setting.label for setting in settings if setting.parameters[name] == value]
            shared = {grouped.get(label) for label in alike}
            if len(alike) < 2 or len(alike) == len(settings) or len(shared) != 1 or None in shared:
                continue
            reason = grouped[alike[0]]
            label = MethodSetting(name=settings[0].name, parameters={name: value}).label
            grouped = {label: reason, **{other: why for other, why in grouped.items() if other not in alike}}
    return grouped


def _joined(reasons: Mapping[str, str]) -> str:
    """One reason for a whole method: the common one, or each with its setting."""
    distinct = list(dict.fromkeys(reasons.values()))
    if len(distinct) == 1:
        return distinct[0]
    return "; ".join(f"{label_words(label)}: {reason}" for label, reason in reasons.items())


def _with_recipes(
    resolved: ResolvedSpace,
    recipes: Sequence[Recipe],
    space: SearchSpace,
    methods: Mapping[str, Method],
    reasons: Mapping[str, str],
    slower: Mapping[str, str],
) -> ResolvedSpace:
    """The space with its recipes for the device; nothing in them is slow there, unless the space allows it."""
    kept: list[ResolvedRecipe] = []
    dropped: dict[str, str] = {}
    for recipe in recipes:
        settings: tuple[MethodSetting, ...] = ()
        notes: list[str] = []
        for name in recipe.methods:
            may_be_slow = space.slow_formats and not recipe.hand_tuned and name not in recipe.optional
            too_slow = {} if may_be_slow else slower
            setting, reason = _first_applicable(recipe, methods[name], resolved, space, reasons, too_slow, settings)
            if setting is None and name in recipe.optional:
                continue
            if setting is None:
                notes.append(f"without {name}: {reason}")
            else:
                settings = _sorted((*settings, setting))
        if notes and not recipe.hand_tuned:
            dropped[recipe.name] = "; ".join(note.removeprefix("without ") for note in notes)
        elif not recipe.hand_tuned and (same := next((one.name for one in kept if one.settings == settings), None)):
            dropped[recipe.name] = f"it is the same as {same!r} here"
        else:
            kept.append(
                ResolvedRecipe(
                    name=recipe.name,
                    hand_tuned=recipe.hand_tuned,
                    settings=settings,
                    notes=tuple(notes),
                    optional=tuple(recipe.optional),
                )
            )
    if space.each_alone:
        known = [recipe.settings for recipe in kept]
        for axis in resolved.axes:
            able = (setting for setting in axis.settings if space.slow_formats or setting.label not in slower)
            alone = tuple(able)[:1]
            if alone and axis.divides is None and not axis.builds_on and alone not in known:
                kept.append(ResolvedRecipe(name=f"{axis.method} alone", hand_tuned=False, settings=alone))
    return msgspec.structs.replace(resolved, recipes=tuple(kept), dropped_recipes=dropped)


def _first_applicable(
    recipe: Recipe,
    method: Method,
    resolved: ResolvedSpace,
    space: SearchSpace,
    reasons: Mapping[str, str],
    slower: Mapping[str, str],
    chosen: tuple[MethodSetting, ...],
) -> tuple[MethodSetting | None, str]:
    """The first of the recipe's settings of one method that can be added to those chosen, or why none can."""
    stated = recipe.methods[method.name] or {}
    alternatives: list[list[ParameterValue]] = []
    for parameter in method.parameters:
        value = stated.get(parameter.name, space.values_of(method, parameter)[0])
        alternatives.append(value if isinstance(value, list) else [value])
    applicable = {
        setting.label: setting for axis in resolved.axes if axis.method == method.name for setting in axis.settings
    }
    why: dict[str, str] = {}
    for values in itertools.product(*alternatives):
        names = (parameter.name for parameter in method.parameters)
        setting = MethodSetting(name=method.name, parameters=dict(zip(names, values, strict=True)))
        if setting.label not in applicable:
            why[setting.label] = reasons.get(setting.label) or _not_offered(method, resolved.gpu_counts)
        elif setting.label in slower:
            why[setting.label] = slower[setting.label]
        elif (conflict := resolved.conflict_in((*chosen, setting))) is not None:
            why[setting.label] = conflict
        else:
            return applicable[setting.label], ""
    return None, _joined(why)


def _not_offered(method: Method, gpu_counts: tuple[int, ...]) -> str:
    """Why a setting is no part of the resolved space although nothing refused it."""
    if not _has_a_place(method, gpu_counts):
        return "it is not for one device" if gpu_counts[-1] == 1 else method.one_device_only
    return "the method does not offer this combination of values"


def _sorted(settings: Sequence[MethodSetting]) -> tuple[MethodSetting, ...]:
    return tuple(sorted(settings, key=lambda setting: setting.name))
