"""On how many devices a training may run: what is there, what a global batch and the fidelity allow, and how.

Called by preparation before the workload is known, and by fit when it is.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence

import msgspec

from advisor.errors import OptionError, SearchSpaceError
from advisor.goal import Fidelity, Goal, GoalKind
from advisor.hardware.hardware import DeviceKind, Hardware
from advisor.hardware.mesh import DATA_ONLY, MeshAxis
from advisor.methods.catalogue import CATALOGUE
from advisor.methods.compose import worst_fidelity
from advisor.search.sizing.batching import dividing_gpu_counts
from advisor.search.space.build_space import build_space
from advisor.search.space.meshes import MeshRules, find_meshes
from advisor.search.space.space import ResolvedSpace
from advisor.search.space.space_file import SearchSpace
from advisor.session.request import TuneRequest
from advisor.text.units import format_count
from advisor.workload.facts import Facts

__all__ = [
    "NO_GLOBAL_BATCH",
    "WAYS",
    "Devices",
    "build_on_devices",
    "choose_devices",
    "may_cut",
    "nothing_distributes",
    "with_global_batch",
    "within_fidelity",
]

NO_GLOBAL_BATCH = (
    "--goal cheapest compares policies that train on the same global batch, but none is stated. "
    "Add --global-batch N, or BATCH_SIZE = N to the model file."
)

WAYS = tuple(method.name for method in CATALOGUE if method.distributes)
"""The methods that train on several devices."""

_CUTS = tuple(method.name for method in CATALOGUE if method.axis not in (None, MeshAxis.DATA))
"""Those of them that divide the model."""

_RANKS_PER_CORE = 4
"""To see how it works a few ranks may share a core; hundreds of processes only bring the machine down."""


def may_cut(space: SearchSpace) -> bool:
    """Whether the space has a method that divides the model, so that several devices have one share of a batch."""
    return bool(set(_CUTS) & set(space.methods))


class Devices(msgspec.Struct, frozen=True, kw_only=True):
    """The devices of a search.

    Attributes:
        counts: How many may train together, ascending.
        hardware: The first of them, with the free memory of the fullest.
        notes: What the user should know.
    """

    counts: tuple[int, ...]
    hardware: Hardware
    notes: tuple[str, ...] = ()


def choose_devices(request: TuneRequest, hardware: Hardware, visible: Sequence[Hardware]) -> Devices:
    """Check ``--gpus`` against what is there, or choose the counts.

    On a CPU the ranks are processes that share its cores and memory: any number of them can be tried.

    Args:
        request: What is asked for.
        hardware: The device that was asked for or chosen.
        visible: Every visible device.

    Raises:
        OptionError: More devices than there are, or several with one that is named.
    """
    machines = request.nodes.count
    counts = request.gpu_counts or _default_counts(request.goal, hardware, machines)
    uneven = [count for count in counts if count > 1 and count % machines]
    if uneven or (machines > 1 and counts[-1] == 1):
        assert request.gpu_counts is not None, f"counts that nobody typed must be right, got {counts}"
        raise OptionError(
            f"Every one of {machines} machines runs an equal share of the devices: --gpus must be multiples of "
            f"{machines}, such as {machines} or {2 * machines} (and 1, on the first machine alone), "
            f"but got {', '.join(map(str, counts))}."
        )
    most = max(count // machines for count in counts if count > 1) if counts[-1] > 1 else 1
    if counts[-1] == 1:
        return Devices(counts=counts, hardware=hardware)
    if hardware.kind is DeviceKind.CPU:
        if most <= hardware.host_cores:
            return Devices(counts=counts, hardware=hardware)
        if most > _RANKS_PER_CORE * hardware.host_cores:
            raise OptionError(
                f"--gpus on a CPU must be at most {_RANKS_PER_CORE} ranks for each of its {hardware.host_cores} cores, "
                f"{_RANKS_PER_CORE * hardware.host_cores * machines} in all, but got {counts[-1]}. "
                "Name fewer: more of them only wait for each other."
            )
        note = f"{most} ranks share {hardware.host_cores} CPU cores: expect to see how it works, and no speed-up"
        return Devices(counts=counts, hardware=hardware, notes=(note,))
    if most > hardware.device_count:
        raise OptionError(
            f"--gpus must be at most the number of visible GPUs, {hardware.device_count * machines}, "
            f"but got {counts[-1]}. "
            "Name fewer, or make more visible with CUDA_VISIBLE_DEVICES."
        )
    if hardware.device != "cuda:0":
        raise OptionError(
            f"Several GPUs are taken from cuda:0 on, but --device is {hardware.device}. "
            "Leave --device out, and choose GPUs with CUDA_VISIBLE_DEVICES."
        )
    group = [device for device in visible if device.kind is DeviceKind.CUDA][:most]
    notes = []
    names = sorted({device.name for device in group})
    if len(names) > 1:
        notes.append(f"the GPUs differ ({', '.join(names)}): the slowest sets the pace of all")
    fullest = min(group, key=lambda device: device.free_bytes)
    least = msgspec.structs.replace(hardware, free_bytes=fullest.free_bytes, memory_bytes=fullest.memory_bytes)
    return Devices(counts=counts, hardware=least, notes=tuple(notes))


def _default_counts(goal: GoalKind, hardware: Hardware, machines: int) -> tuple[int, ...]:
    """One device; for ``cheapest``, whose question it is, and for several machines every power of two there is.

    Each of several machines has as many devices as this one. A device that is named is meant alone.
    """
    named = hardware.device not in ("cpu", "cuda:0")
    if machines == 1 and (goal is not GoalKind.CHEAPEST or hardware.kind is DeviceKind.CPU or named):
        return (1,)
    on_each = [1]
    while 2 * on_each[-1] <= hardware.device_count:
        on_each.append(2 * on_each[-1])
    return tuple(sorted({1, *(machines * count for count in on_each)}))


def with_global_batch(goal: Goal, facts: Facts, space: SearchSpace | None = None) -> Goal:
    """The goal with its global batch, and the numbers of devices that it can be split over.

    Devices that hold a model together have one share of it.

    ``cheapest`` compares policies that train alike: on the user's own batch, if no other is stated.

    Raises:
        OptionError: There is none, or it cannot be split over any of the numbers of devices.
    """
    name = "--global-batch"
    if goal.kind is GoalKind.CHEAPEST and goal.global_batch is None:
        if facts.default_batch is None:
            raise OptionError(NO_GLOBAL_BATCH)
        goal = msgspec.structs.replace(goal, global_batch=facts.default_batch)
        name = "BATCH_SIZE (the global batch, as long as --global-batch states no other)"
    if goal.global_batch is None:
        return goal
    most = facts.batch_layout.most_samples
    if most is not None and goal.global_batch > most:
        raise OptionError(
            f"{name} must be a batch that make_batch makes, but it is {goal.global_batch} and make_batch returns no "
            f"more than {format_count(most, 'sample')}. Let make_batch return more, or state at most {most}."
        )
    cuts = [] if space is None else _that_cut(space, facts, goal)
    if cuts:
        kept = [count for count in goal.gpu_counts if goal.global_batch % count == 0 or count in cuts]
        return msgspec.structs.replace(goal, gpu_counts=tuple(kept))
    return msgspec.structs.replace(goal, gpu_counts=dividing_gpu_counts(goal.global_batch, goal.gpu_counts, name=name))


def _that_cut(space: SearchSpace, facts: Facts, goal: Goal) -> list[int]:
    """Numbers of devices that may hold models in several parts, as far as that is known before methods are judged."""
    owned = frozenset(method.axis for method in CATALOGUE if method.axis is not None and method.name in space.methods)
    rules = MeshRules(
        facts=facts, owned=owned, fidelity=goal.fidelity, global_batch=goal.global_batch, machines=goal.machines
    )
    found = find_meshes(goal.gpu_counts, rules).feasible
    return [count for count, meshes in found.items() if any(mesh != DATA_ONLY for mesh in meshes)]


def build_on_devices(
    space: SearchSpace, facts: Facts, hardware: Hardware, goal: Goal, *, asked: bool
) -> tuple[ResolvedSpace, str | None]:
    """What may be tried, on the numbers of devices that the space holds a way to train on.

    Args:
        space: The space.
        facts: What the probe learned.
        hardware: The device and its host.
        goal: The goal with its numbers of devices and its ceiling of fidelity.
        asked: Whether somebody asked for several devices. If nobody did, those without a way are left out.

    Returns:
        The space, and what to say about numbers that were left out.

    Raises:
        SearchSpaceError: There is no way to train on several devices that were asked for.
    """
    build = functools.partial(
        build_space,
        space,
        facts,
        hardware,
        global_batch=goal.global_batch,
        machines=goal.machines,
        memory_limit_bytes=goal.limit_on(goal.gpu_counts[-1]),
    )
    resolved = build(goal.fidelity, gpu_counts=goal.gpu_counts)
    without = [count for count in goal.gpu_counts if resolved.on_devices((), count) is None]
    if not without:
        return resolved, None
    # The least of the ceilings above under which there is a way, if the ceiling is what is in the way.
    allowing = next(
        (
            fidelity
            for fidelity in Fidelity
            if fidelity.rank > goal.fidelity.rank
            and build(fidelity, gpu_counts=goal.gpu_counts).on_devices((), without[0])
        ),
        None,
    )
    reasons = _reasons(resolved.refused)
    if allowing is not None:
        why = f" where the fidelity must be at most {goal.fidelity.value}"
    else:
        why = f" ({reasons})" if reasons else f": {space.name} lists none of them"
    if asked:
        raise SearchSpaceError(nothing_distributes(without[0], why, allowing))
    counts = tuple(count for count in goal.gpu_counts if count not in without)
    assert counts, f"one device is among the numbers that nobody asked for, not {goal.gpu_counts}"
    note = f"{', '.join(map(str, without))} devices were left out: {_rule(why)}"
    if allowing is not None:
        note += f" (--fidelity {allowing.value} allows one)"
    return build(goal.fidelity, gpu_counts=counts), note


def nothing_distributes(count: int, why: str, allowing: Fidelity | None = None) -> str:
    """Say that there is no way to train on several devices, and what helps.

    Args:
        count: Number of devices.
        why: What to say behind "none does".
        allowing: The ceiling of fidelity that would help, if one does.
    """
    fix = f"Allow one with --fidelity {allowing.value}" if allowing is not None else "Add one to the space"
    return f"On {count} devices {_rule(why)}. {fix}, or use --gpus 1."


def _rule(why: str) -> str:
    return f"one of {', '.join(WAYS)} must be in the search space and apply, but none does{why}"


def _reasons(refused: Mapping[str, str]) -> str:
    """Why each way cannot be used, those with the same reason together."""
    names: dict[str, list[str]] = {}
    for way in WAYS:
        if way in refused:
            names.setdefault(refused[way], []).append(way)
    return "; ".join(f"{', '.join(ways)}: {reason}" for reason, ways in names.items())


def within_fidelity(goal: Goal, space: ResolvedSpace, facts: Facts) -> tuple[Goal, ResolvedSpace, str]:
    """Leave out numbers of devices on which even the plainest training is beyond the fidelity ceiling.

    Known before any trial: with BatchNorm every device takes the statistics of its own share, so that something else is
    learned whatever the methods are.

    Args:
        goal: The goal.
        space: What may be proposed; the plainest combination exists for each number.
        facts: What the probe learned.

    Returns:
        The goal and the space with those that are left; and what was left out and why, empty if nothing was.

    Raises:
        OptionError: No number of devices is left.
    """
    beyond = []
    within = dict(space.meshes)
    for count, mesh in space.places:
        plainest = space.on_devices((), count, mesh)
        if plainest is None:
            continue  # the methods that divide its axes do not go together
        fidelity = worst_fidelity(plainest.uses, accumulation_steps=1, facts=facts, gpu_count=count, mesh=mesh)
        if not goal.fidelity.allows(fidelity):
            within[count] = tuple(one for one in within.get(count, (mesh,)) if one != mesh)
            if not within[count]:
                beyond.append(count)
    space = msgspec.structs.replace(space, meshes=within)
    if not beyond:
        return goal, space, ""
    counts = tuple(count for count in goal.gpu_counts if count not in beyond)
    some = " and ".join(str(count) for count in beyond)
    changes = facts.batch_layout.changes_when_split
    if facts.has_batchnorm:
        cause = "BatchNorm takes its statistics over one device's share of the batch, which changes what is learned"
        allow = "--fidelity model"
    elif changes:
        cause = changes
        allow = "--fidelity model"
    else:
        cause = "gradients are summed over devices, which reorders float sums"
        allow = "--fidelity rounding"
    if not counts:
        raise OptionError(
            f"Training on {some} devices must be within the fidelity ceiling {goal.fidelity.value}, but {cause}. "
            f"Allow it with {allow}, or use --gpus 1."
        )
    return (
        msgspec.structs.replace(goal, gpu_counts=counts),
        msgspec.structs.replace(space, gpu_counts=counts),
        f"{some} devices were left out: {cause} ({allow} allows it)",
    )
