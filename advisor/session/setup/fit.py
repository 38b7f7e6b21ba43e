"""Restrict the goal and the search space to what the probed workload allows."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from advisor.goal import Goal
from advisor.hardware.hardware import Hardware
from advisor.search.space.requested_methods import check_requested
from advisor.search.space.space import ResolvedSpace
from advisor.search.space.space_file import SearchSpace
from advisor.session.request import TuneRequest
from advisor.session.setup.device_counts import build_on_devices, with_global_batch, within_fidelity
from advisor.workload.facts import Facts

__all__ = ["fit_to_workload"]


def fit_to_workload(
    request: TuneRequest,
    space: SearchSpace,
    goal: Goal,
    facts: Facts,
    hardware: Hardware,
    say: Callable[[str], None],
) -> tuple[Goal, ResolvedSpace]:
    """Resolve the goal's global batch and device counts, and the combinations to search.

    Args:
        request: The request.
        space: The search space.
        goal: The goal as it was asked for.
        facts: What the probe learned.
        hardware: The device.
        say: Called with notes for the user: what was left out, and why.

    Raises:
        UserError: Nothing is left of what was asked for.
    """
    layout = facts.batch_layout
    uncut = layout.why_uncut
    if layout.changes_when_split and not facts.has_batchnorm:
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
    return split, resolved
