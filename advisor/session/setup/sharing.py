"""On how many devices the training may be shared at all, under the fidelity that is allowed."""

from __future__ import annotations

import msgspec

from advisor.errors import OptionError
from advisor.goal import Goal
from advisor.methods.compose import worst_fidelity
from advisor.search.space.space import ResolvedSpace
from advisor.workload.facts import Facts

__all__ = ["Shared", "within_fidelity"]


class Shared(msgspec.Struct, frozen=True, kw_only=True):
    """The numbers of devices that are left.

    Attributes:
        goal: The goal with them.
        space: The space with them.
        note: What was left out and why; empty if nothing was.
    """

    goal: Goal
    space: ResolvedSpace
    note: str = ""


def within_fidelity(goal: Goal, space: ResolvedSpace, facts: Facts) -> Shared:
    """Leave out numbers of devices on which even the plainest training is beyond the fidelity ceiling.

    Known before any trial: with BatchNorm every device takes the statistics of its own share, so that something else is
    learned whatever the methods are.

    Args:
        goal: The goal.
        space: What may be proposed; the plainest combination exists for each number.
        facts: What the probe learned.

    Raises:
        OptionError: No number of devices is left.
    """
    beyond = []
    for count in goal.gpu_counts:
        plainest = space.on_devices((), count)
        assert plainest is not None, "a space without a way to distribute is refused before"
        fidelity = worst_fidelity(plainest.uses, accumulation_steps=1, facts=facts, gpu_count=count)
        if not goal.fidelity.allows(fidelity):
            beyond.append(count)
    if not beyond:
        return Shared(goal=goal, space=space)
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
    return Shared(
        goal=msgspec.structs.replace(goal, gpu_counts=counts),
        space=msgspec.structs.replace(space, gpu_counts=counts),
        note=f"{some} devices were left out: {cause} ({allow} allows it)",
    )
