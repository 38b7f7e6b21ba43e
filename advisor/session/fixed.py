"""What a goal keeps fixed, once the workload is known."""

from __future__ import annotations

import msgspec

from advisor.errors import OptionError, SearchSpaceError
from advisor.methods.catalogue import CATALOGUE
from advisor.problem.facts import Facts
from advisor.problem.goal import Goal, GoalKind
from advisor.search.batching import dividing_gpu_counts
from advisor.search.resolved import ResolvedSpace

__all__ = ["check_devices", "with_global_batch"]


def with_global_batch(goal: Goal, facts: Facts) -> Goal:
    """The goal with its global batch, and the numbers of devices that it can be split over.

    ``cheapest`` compares policies that train alike: on the user's own batch, if no other is stated.

    Raises:
        OptionError: There is none, or it cannot be split over any of the numbers of devices.
    """
    if goal.kind is GoalKind.CHEAPEST and goal.global_batch is None:
        if facts.default_batch is None:
            raise OptionError(
                "--goal cheapest compares policies that train on the same global batch, but none is stated. "
                "Add --global-batch N, or BATCH_SIZE = N to the model file."
            )
        goal = msgspec.structs.replace(goal, global_batch=facts.default_batch)
    if goal.global_batch is None:
        return goal
    return msgspec.structs.replace(goal, gpu_counts=dividing_gpu_counts(goal.global_batch, goal.gpu_counts))


def check_devices(space: ResolvedSpace) -> None:
    """Check that the space holds a way to train on every number of devices that was asked for.

    Raises:
        SearchSpaceError: It does not.
    """
    for count in space.gpu_counts:
        if space.on_devices((), count) is None:
            ways = [method.name for method in CATALOGUE if method.distributes]
            reasons = "; ".join(f"{name}: {space.refused[name]}" for name in ways if name in space.refused)
            raise SearchSpaceError(
                f"On {count} devices one of {', '.join(ways)} must be in the search space and apply, but none does"
                + (f" ({reasons})" if reasons else f": {space.name} lists none of them")
                + ". Add one to the space, or use --gpus 1."
            )
