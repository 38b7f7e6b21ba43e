"""Fit goal and space to what the probe learned of the workload: batches, devices, fidelity."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from advisor.errors import OptionError
from advisor.goal import Fidelity, Goal
from advisor.hardware.hardware import Hardware
from advisor.methods.compose import worst_fidelity
from advisor.search.space.requested_methods import check_requested
from advisor.search.space.space import ResolvedSpace
from advisor.search.space.space_file import SearchSpace
from advisor.session.request import TuneRequest
from advisor.session.setup.device_counts import build_on_devices, with_global_batch
from advisor.workload.facts import Facts

__all__ = ["fit_to_workload", "what_stays_whole", "within_fidelity"]


def fit_to_workload(
    request: TuneRequest,
    space: SearchSpace,
    goal: Goal,
    facts: Facts,
    hardware: Hardware,
    say: Callable[[str], None],
) -> tuple[Goal, ResolvedSpace]:
    """Resolve the goal's global batch and device counts, and the combinations to search.

    Raises:
        UserError: Nothing is left of what was asked for.
    """
    layout = facts.batch_layout
    uncut = layout.why_uncut
    if layout.changes_when_split and not facts.has_batchnorm and not goal.fidelity.allows(Fidelity.MODEL):
        uncut = f"{layout.changes_when_split} (--fidelity model allows more)"
    if layout.sizes is not None:
        say(layout.sizes.words)
    if uncut:
        say(
            f"a batch is trained on in one piece, on one device: {uncut}. Give training.step no more samples than the "
            "policy's micro-batch"
        )
    split = with_global_batch(goal, facts, space)
    if split.gpu_counts != goal.gpu_counts:
        left_out = ", ".join(str(count) for count in goal.gpu_counts if count not in split.gpu_counts)
        say(f"a global batch of {split.global_batch} cannot be split over {left_out} devices: left out")
    resolved, left_out_because = build_on_devices(space, facts, hardware, split, asked=request.asks_for_several)
    if left_out_because is not None:
        say(left_out_because)
        split = msgspec.structs.replace(split, gpu_counts=resolved.gpu_counts)
    check_requested(request.methods, resolved)
    split, resolved, beyond = within_fidelity(split, resolved, facts)
    if beyond:
        say(beyond)
    for note in what_stays_whole(resolved, facts):
        say(note)
    return split, resolved


def what_stays_whole(space: ResolvedSpace, facts: Facts) -> list[str]:
    """What devices that divide each layer cannot divide, for every number of them on some mesh of the space."""
    degrees = sorted({mesh.tensor for _, mesh in space.places})
    return [
        f"where {degree} devices divide each layer, {facts.tensor_whole[degree]}"
        for degree in degrees
        if degree in facts.tensor_whole
    ]


def within_fidelity(goal: Goal, space: ResolvedSpace, facts: Facts) -> tuple[Goal, ResolvedSpace, str]:
    """Leave out numbers of devices on which even the plainest training is beyond the fidelity ceiling.

    Known before any trial: with BatchNorm every device takes the statistics of its own share, so that something else is
    learned whatever the methods are.

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
        fidelity = worst_fidelity(plainest.settings, accumulation_steps=1, facts=facts, gpu_count=count, mesh=mesh)
        if not goal.fidelity.allows(fidelity):
            within[count] = tuple(one for one in within.get(count, (mesh,)) if one != mesh)
            if not within[count]:
                beyond.append(count)
    space = _with_places(msgspec.structs.replace(space, meshes=within))
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
        _with_places(msgspec.structs.replace(space, gpu_counts=counts)),
        f"{some} devices were left out: {cause} ({allow} allows it)",
    )


def _with_places(space: ResolvedSpace) -> ResolvedSpace:
    """The space without the recipes that are for a mesh which it does not have."""
    kept = tuple(one for one in space.recipes if one.place is None or one.place in space.places)
    return msgspec.structs.replace(space, recipes=kept)
