"""Combine methods: list their settings, check which go together, and apply them in order."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from advisor.errors import MethodRefusedError
from advisor.goal import Fidelity
from advisor.hardware.hardware import Hardware
from advisor.hardware.mesh import DATA_ONLY, Mesh, MeshAxis
from advisor.methods.base import Conflict, Method, Stage, Verdict
from advisor.methods.catalogue import CATALOGUE, get_method
from advisor.methods.libraries import judge_libraries
from advisor.methods.setting import MethodSetting, ParameterValue
from advisor.text.printable import quoted
from advisor.workload.facts import Facts

if TYPE_CHECKING:
    from advisor.training.training import Training

__all__ = [
    "apply_settings",
    "conflict_between",
    "draws_other_masks",
    "fidelity_of",
    "judge",
    "judge_alone",
    "misfit",
    "misplaced",
    "missing_dependency",
    "settings_of",
    "starts_slowly",
    "validate_setting",
    "worst_fidelity",
]


def settings_of(method: Method) -> tuple[MethodSetting, ...]:
    """Every setting of a method: the product of its parameters' choices, in declared order."""
    names = [parameter.name for parameter in method.parameters]
    products = itertools.product(*(parameter.choices for parameter in method.parameters))
    return tuple(
        MethodSetting(name=method.name, parameters=dict(zip(names, values, strict=True))) for values in products
    )


def validate_setting(setting: MethodSetting) -> None:
    """Check a method's name, and that exactly its declared parameters have valid values.

    Raises:
        MethodRefusedError: Something is unknown or missing; the message lists what is valid.
    """
    method = get_method(setting.name)
    declared = {parameter.name: parameter for parameter in method.parameters}
    for name in setting.parameters:
        if name not in declared:
            valid = ", ".join(declared) or "no parameters"
            raise MethodRefusedError(f"{method.name} takes {valid}, but got {quoted(name)}")
    for name, parameter in declared.items():
        choices = ", ".join(repr(choice) for choice in parameter.choices)
        if name not in setting.parameters:
            raise MethodRefusedError(f"{method.name} needs a value for {name}: one of {choices}")
        value = setting.parameters[name]
        # True == 1 in Python, but not to a person who reads a policy.
        if not any(value == choice and type(value) is type(choice) for choice in parameter.choices):
            raise MethodRefusedError(f"{name} of {method.name} must be one of {choices}, but got {quoted(value)}")


def judge(
    settings: Sequence[MethodSetting],
    *,
    facts: Facts | None,
    hardware: Hardware,
    accumulation_steps: int = 1,
    gpu_count: int = 1,
    mesh: Mesh = DATA_ONLY,
) -> Verdict:
    """Judge a combination without running it. Imports no torch.

    Args:
        settings: The methods, each at most once.
        facts: What the probe learned, or ``None``.
        hardware: The device.
        accumulation_steps: Micro-batches per optimizer step.
        gpu_count: Devices that train together.
        mesh: How they divide the model.

    Returns:
        The first refusal, its reason beginning with the method's name; or acceptance with the methods' remarks.

    Raises:
        MethodRefusedError: A setting names an unknown method, parameter or value.
    """
    known: list[str] = []
    for setting in settings:
        validate_setting(setting)
    # First what holds for every setting of a method, so that all get the same reason.
    reason = missing_dependency(settings) or misplaced(settings, gpu_count, mesh)
    if reason:
        return Verdict.no(reason)
    for setting in settings:
        verdict = judge_alone(setting, facts=facts, hardware=hardware, accumulation_steps=accumulation_steps)
        if not verdict.applicable:
            return verdict
        if verdict.reason:
            known.append(verdict.reason)
    reason = misfit(settings, mesh, facts) or conflict_between(settings)
    return Verdict.no(reason) if reason else Verdict.yes("; ".join(known))


def judge_alone(
    setting: MethodSetting, *, facts: Facts | None, hardware: Hardware, accumulation_steps: int = 1
) -> Verdict:
    """Judge one setting by itself, ignoring dependencies on other methods. Imports no torch.

    Args:
        setting: The setting.
        facts: What the probe learned, or ``None``.
        hardware: The device.
        accumulation_steps: Micro-batches per optimizer step.

    Returns:
        The refusal, or acceptance with its remarks; a reason begins with the setting in words.

    Raises:
        MethodRefusedError: The name, a parameter or a value is unknown.
    """
    validate_setting(setting)
    method = get_method(setting.name)
    known: list[str] = []
    for verdict in (judge_libraries(method, facts), method.applicable(setting.parameters, facts, hardware)):
        if not verdict.applicable:
            return Verdict.no(f"{setting.words}: {verdict.reason}")
        if verdict.reason:
            known.append(f"{setting.words}: {verdict.reason}")
    if accumulation_steps > 1 and not method.accumulates:
        return Verdict.no(
            f"{setting.words}: it needs the whole gradient in one backward pass, but the policy accumulates "
            f"{accumulation_steps} micro-batches"
        )
    return Verdict.yes("; ".join(known))


def conflict_between(settings: Sequence[MethodSetting]) -> str | None:
    """Why two of the methods cannot be combined, by what they decide or declare; ``None`` if all can."""
    names = [setting.name for setting in settings]
    assert len(set(names)) == len(names), f"a method is in use twice: {names}"
    for setting, other in itertools.combinations(settings, 2):
        decided = get_method(setting.name).decides
        if decided and decided == get_method(other.name).decides:
            return f"{setting.words} cannot be combined with {other.words}: both decide {decided}; choose one of them"
    for setting, other in itertools.permutations(settings, 2):
        for conflict in get_method(setting.name).conflicts:
            if conflict.other == other.name and _holds(conflict, setting, other):
                return f"{setting.words} cannot be combined with {other.words}: {conflict.reason}"
    return None


def missing_dependency(settings: Sequence[MethodSetting]) -> str | None:
    """Why a method lacks another one that it depends on; ``None`` if nothing is missing."""
    names = {setting.name for setting in settings}
    for setting in settings:
        wanted = get_method(setting.name).builds_on
        if wanted and not names & set(wanted):
            return f"{setting.words}: it works on top of {' or '.join(wanted)}, and none of these is in use"
    return None


def misplaced(settings: Sequence[MethodSetting], gpu_count: int, mesh: Mesh = DATA_ONLY) -> str | None:
    """Why methods do not fit the devices; ``None`` if they do.

    Exactly one method must divide each axis of several devices, and none an axis of one.
    """
    for setting in settings if gpu_count > 1 else ():
        reason = get_method(setting.name).one_device_only
        if reason:
            return f"{setting.words}: it cannot be used on {gpu_count} devices: {reason}"
    # A method without devices of its own tells better what is wrong than an axis that lacks a method.
    for axis in sorted(MeshAxis, key=lambda axis: mesh.degree(axis, gpu_count) > 1):
        own = [setting for setting in settings if get_method(setting.name).axis is axis]
        degree = mesh.degree(axis, gpu_count)
        if degree == 1 and own:
            if gpu_count == 1:
                return f"{own[0].words}: it trains on several devices together, but the policy uses one"
            where = _described(mesh, gpu_count)
            return (
                f"{own[0].words}: it divides the {axis.value} axis, which has one device in {where}; "
                f"leave it out, or give the axis more devices{_how(axis)}"
            )
        if degree > 1 and len(own) != 1:
            valid = ", ".join(method.name for method in CATALOGUE if method.axis is axis)
            got = " and ".join(setting.words for setting in own) or "none"
            where = f"on {gpu_count} devices"
            if mesh != DATA_ONLY:
                where = f"with {degree} devices on the {axis.value} axis"
            if not valid:
                return f"{where} a method must divide it, but there is none: leave that axis out of the mesh"
            return f"{where} exactly one of {valid} must be in use, but got {got}"
    return None


def _how(axis: MeshAxis) -> str:
    return "" if axis is MeshAxis.DATA else f", such as mesh: {{{axis.value}: 2}}"


def misfit(settings: Sequence[MethodSetting], mesh: Mesh, facts: Facts | None = None) -> str | None:
    """Why a method cannot be used on a mesh although each axis has its method; ``None`` if all can."""
    reasons = ((setting, get_method(setting.name).why_not_on(setting.parameters, mesh, facts)) for setting in settings)
    return next((f"{setting.words}: {reason}" for setting, reason in reasons if reason), None)


def _described(mesh: Mesh, gpu_count: int) -> str:
    return f"a mesh of {mesh.label(gpu_count)}" if mesh != DATA_ONLY else f"a policy for {gpu_count} devices"


def worst_fidelity(
    settings: Sequence[MethodSetting],
    *,
    accumulation_steps: int,
    facts: Facts | None,
    gpu_count: int = 1,
    mesh: Mesh = DATA_ONLY,
) -> Fidelity:
    """The worst class among the methods, micro-batching and the sharing of batches between devices.

    The latter two reorder float sums. They change what is learned with BatchNorm, whose statistics are then those of
    one device's micro-batch, and if the probe saw that the loss depends on several samples jointly.
    """
    classes = [fidelity_of(setting) for setting in settings]
    if accumulation_steps > 1 or mesh.degree(MeshAxis.DATA, gpu_count) > 1:
        changes = facts is not None and (facts.has_batchnorm or bool(facts.batch_layout.changes_when_split))
        classes.append(Fidelity.MODEL if changes else Fidelity.ROUNDING)
    return max(classes, key=lambda fidelity: fidelity.rank, default=Fidelity.EXACT)


def fidelity_of(setting: MethodSetting) -> Fidelity:
    """How far training with one setting of a method may differ from plain training."""
    method = get_method(setting.name)
    worse = [parameter.worse.get(setting.parameters[parameter.name]) for parameter in method.parameters]
    return max((method.fidelity, *filter(None, worse)), key=lambda fidelity: fidelity.rank)


def draws_other_masks(settings: Sequence[MethodSetting], facts: Facts) -> bool:
    """Whether dropout draws other masks than in plain training: single losses then differ by chance."""
    return facts.has_dropout and any(get_method(setting.name).other_masks for setting in settings)


def starts_slowly(settings: Sequence[MethodSetting]) -> bool:
    """Whether one of the methods takes long to start at any batch."""
    return any(get_method(setting.name).slow_start for setting in settings)


def apply_settings(training: Training, settings: Sequence[MethodSetting]) -> None:
    """Apply methods to a training in the order of their stages, and complete it with its optimizer.

    The optimizer is built after all methods that change the model, and before the first that changes the optimizer. The
    training is completed even without methods. On an error, process-wide settings are undone.

    Raises:
        MethodRefusedError: A method is unknown, conflicts with another, or finds that it cannot apply.
    """
    for setting in settings:
        validate_setting(setting)
    mesh = training.world.mesh
    reason = (
        conflict_between(settings)
        or missing_dependency(settings)
        or misplaced(settings, training.world.size, mesh)
        or misfit(settings, mesh)
    )
    if reason:
        raise MethodRefusedError(reason)
    ordered = sorted(settings, key=_turn)
    try:
        for setting in ordered:
            method = get_method(setting.name)
            if method.stage > Stage.PARALLELIZE:
                training.place()
            if method.stage >= Stage.OPTIMIZER:
                training.complete()
            method.apply(training, **setting.parameters)
            training.accumulates &= method.accumulates
        training.place()
        training.complete()
    except BaseException:
        training.close()
        raise


def _turn(setting: MethodSetting) -> tuple[int, int, str]:
    """What a method is sorted by: stage, then axis, because layers are divided while all blocks are there."""
    method = get_method(setting.name)
    return method.stage, -1 if method.axis is None else list(MeshAxis).index(method.axis), setting.name


def _holds(conflict: Conflict, own: MethodSetting, other: MethodSetting) -> bool:
    return _matches(conflict.own, own.parameters) and _matches(conflict.where, other.parameters)


def _matches(wanted: Mapping[str, ParameterValue], parameters: Mapping[str, ParameterValue]) -> bool:
    return all(parameters.get(name) == value for name, value in wanted.items())
