"""What a goal keeps fixed, once the workload is known."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from advisor.errors import OptionError, SearchSpaceError
from advisor.goal import Fidelity, Goal, GoalKind
from advisor.hardware.hardware import Hardware
from advisor.methods.catalogue import CATALOGUE
from advisor.search.sizing.batching import dividing_gpu_counts
from advisor.search.space.build_space import build_space
from advisor.search.space.space import ResolvedSpace
from advisor.search.space.space_file import SearchSpace
from advisor.text.units import format_count
from advisor.workload.facts import Facts

__all__ = ["NO_GLOBAL_BATCH", "WAYS", "build_on_devices", "nothing_distributes", "with_global_batch"]

NO_GLOBAL_BATCH = (
    "--goal cheapest compares policies that train on the same global batch, but none is stated. "
    "Add --global-batch N, or BATCH_SIZE = N to the model file."
)

WAYS = tuple(method.name for method in CATALOGUE if method.distributes)
"""The methods that train on several devices."""


def with_global_batch(goal: Goal, facts: Facts) -> Goal:
    """The goal with its global batch, and the numbers of devices that it can be split over.

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
    return msgspec.structs.replace(goal, gpu_counts=dividing_gpu_counts(goal.global_batch, goal.gpu_counts, name=name))


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
    resolved = build_space(space, facts, hardware, goal.fidelity, gpu_counts=goal.gpu_counts)
    without = [count for count in goal.gpu_counts if resolved.on_devices((), count) is None]
    if not without:
        return resolved, None
    # The least of the ceilings above under which there is a way, if the ceiling is what is in the way.
    allowing = next(
        (
            fidelity
            for fidelity in Fidelity
            if fidelity.rank > goal.fidelity.rank
            and build_space(space, facts, hardware, fidelity, gpu_counts=goal.gpu_counts).on_devices((), without[0])
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
    return build_space(space, facts, hardware, goal.fidelity, gpu_counts=counts), note


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
