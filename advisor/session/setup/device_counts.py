"""On how many devices a training may run: what is there, and what workload, global batch and fidelity allow."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from advisor.errors import OptionError, SearchSpaceError
from advisor.goal import Fidelity, Goal, GoalKind
from advisor.hardware.hardware import DeviceKind, Hardware
from advisor.hardware.mesh import DATA_ONLY, MeshAxis
from advisor.methods.catalogue import CATALOGUE
from advisor.search.sizing.batching import dividing_gpu_counts
from advisor.search.space.build_space import build_space
from advisor.search.space.meshes import MeshRules, find_meshes
from advisor.search.space.space import ResolvedSpace
from advisor.search.space.space_file import SearchSpace
from advisor.session.request import TuneRequest
from advisor.text.units import format_count
from advisor.workload.facts import Facts
from advisor.workload.outline import read_outline
from advisor.workload.workload import WorkloadKind

__all__ = [
    "Devices",
    "build_on_devices",
    "check_preflight",
    "choose_devices",
    "with_global_batch",
]

_NO_GLOBAL_BATCH = (
    "--goal cheapest compares policies that train on the same global batch, but none is stated. "
    "Add --global-batch N or --batch N, or BATCH_SIZE = N to the model file."
)

_WAYS = tuple(method.name for method in CATALOGUE if method.distributes)
"""The methods that train on several devices."""

_CUTS = tuple(method.name for method in CATALOGUE if method.axis not in (None, MeshAxis.DATA))
"""Those of them that divide the model."""

_RANKS_PER_CORE = 4
"""To see how it works a few ranks may share a core; hundreds of processes only bring the machine down."""


def _may_cut(space: SearchSpace) -> bool:
    """Whether the space has a method that divides the model, so that several devices have one share of a batch."""
    return bool(set(_CUTS) & set(space.methods))


class Devices(msgspec.Struct, frozen=True, kw_only=True):
    """The devices of a search.

    Attributes:
        counts: How many may train together, ascending.
        hardware: The first of them, with the free memory of the fullest.
    """

    counts: tuple[int, ...]
    hardware: Hardware
    notes: tuple[str, ...] = ()


def choose_devices(request: TuneRequest, hardware: Hardware, visible: Sequence[Hardware]) -> Devices:
    """Check ``--gpus`` against what is there, or choose the counts.

    On a CPU the ranks are processes that share its cores and memory: any number of them can be tried.

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
            raise OptionError(_NO_GLOBAL_BATCH)
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
    layout = facts.batch_layout
    if layout.fitted(goal.global_batch) != goal.global_batch:
        raise OptionError(
            f"{name} must be a batch that can be trained on, but it is {goal.global_batch}, and only "
            f"{layout.allowed} can. State one of these."
        )
    cuts = [] if space is None else _that_cut(space, facts, goal)
    if cuts:
        kept = [count for count in goal.gpu_counts if goal.global_batch % count == 0 or count in cuts]
        return msgspec.structs.replace(goal, gpu_counts=tuple(kept))
    counts = dividing_gpu_counts(goal.global_batch, goal.gpu_counts, name=name)
    fitting = tuple(
        count for count in counts if layout.fitted(goal.global_batch // count) == goal.global_batch // count
    )
    if not fitting:
        raise OptionError(
            f"Each device's share of {name} must be a batch that can be trained on, but {goal.global_batch} samples "
            f"over {' or '.join(map(str, counts))} are none: only {layout.allowed} can. State a larger global batch."
        )
    return msgspec.structs.replace(goal, gpu_counts=fitting)


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

    If nobody ``asked`` for several devices, numbers without a way are left out.

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
        raise SearchSpaceError(_nothing_distributes(without[0], why, allowing))
    counts = tuple(count for count in goal.gpu_counts if count not in without)
    assert counts, f"one device is among the numbers that nobody asked for, not {goal.gpu_counts}"
    note = f"{', '.join(map(str, without))} devices were left out: {_rule(why)}"
    if allowing is not None:
        note += f" (--fidelity {allowing.value} allows one)"
    return build(goal.fidelity, gpu_counts=counts), note


def check_preflight(request: TuneRequest, space: SearchSpace, gpu_counts: Sequence[int]) -> None:
    """Check what batch and devices need of the file and of the space, as far as reading tells.

    These come before a folder is made and before anything of the user's runs; the rest is checked with the workload.

    Raises:
        OptionError: ``cheapest`` without a global batch, or one that cannot be split over any number of devices.
        SearchSpaceError: Several devices were asked for, and the space has no method for them.
    """
    if request.global_batch is not None and not _may_cut(space):
        gpu_counts = dividing_gpu_counts(request.global_batch, gpu_counts)
    if request.global_batch is None and request.goal is GoalKind.CHEAPEST and _states_no_batch(request):
        raise OptionError(_NO_GLOBAL_BATCH)
    several = [count for count in gpu_counts if count > 1]
    if several and request.asks_for_several and not set(_WAYS) & set(space.methods):
        raise SearchSpaceError(_nothing_distributes(several[0], f": {space.name} lists none of them"))


def _states_no_batch(request: TuneRequest) -> bool:
    """Whether there surely is no batch: a star import may bind ``BATCH_SIZE``, functions may come from anywhere."""
    source = request.source
    if source.stated.batch_size is not None or (request.baseline is not None and request.baseline.states_batch):
        return False
    if source.kind is not WorkloadKind.FILE:
        return source.kind is WorkloadKind.HUGGING_FACE
    outline = read_outline(Path(source.location))
    return "BATCH_SIZE" not in outline.names and not outline.star_import


def _nothing_distributes(count: int, why: str, allowing: Fidelity | None = None) -> str:
    """Say that there is no way to train on several devices, and what helps."""
    fix = f"Allow one with --fidelity {allowing.value}" if allowing is not None else "Add one to the space"
    return f"On {count} devices {_rule(why)}. {fix}, or use --gpus 1."


def _rule(why: str) -> str:
    return f"one of {', '.join(_WAYS)} must be in the search space and apply, but none does{why}"


def _reasons(refused: Mapping[str, str]) -> str:
    """Why each way cannot be used, those with the same reason together."""
    names: dict[str, list[str]] = {}
    for way in _WAYS:
        if way in refused:
            names.setdefault(refused[way], []).append(way)
    return "; ".join(f"{', '.join(ways)}: {reason}" for reason, ways in names.items())
