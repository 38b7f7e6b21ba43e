"""Whether a model that devices divide fits on the fullest of them: known before any of them runs."""

from __future__ import annotations

from collections.abc import Callable

from advisor.hardware.mesh import DATA_ONLY
from advisor.methods.catalogue import get_method
from advisor.policy.policy import Policy
from advisor.search.space.meshes import standing_bytes
from advisor.search.space.space import Combination
from advisor.trial.result import PredictResult
from advisor.workload.facts import Facts

__all__ = ["fullest_bytes", "settled_by_probe"]

_CERTAINLY_FITS = 0.5
"""Up to this share of the limit for a rough estimate of what lives between steps, nobody asks whether a sample fits."""


def fullest_bytes(
    policy: Policy, facts: Facts, limit_bytes: int, traced: Callable[[Policy, int], PredictResult]
) -> int | None:
    """What a policy's micro-batch takes on the fullest device, from a trace of one device for each stage.

    Args:
        policy: The policy.
        facts: What the probe learned.
        limit_bytes: What each device may take.
        traced: ``(policy, rank) -> prediction`` of what that rank takes.

    Returns:
        Bytes; ``None`` where every device has a whole model, where it certainly fits, and where a step cannot be
        traced: profiling runs find out there.
    """
    mesh = policy.axes
    if mesh == DATA_ONLY or standing_bytes(mesh, facts) < _CERTAINLY_FITS * limit_bytes:
        return None
    needs = []
    for rank in mesh.distinct_ranks(policy.gpu_count):
        prediction = traced(policy, rank).prediction
        if prediction is None:
            return None
        needs.append(prediction.peak(policy.micro_batch))
    return max(needs)


def settled_by_probe(combination: Combination, facts: Facts) -> dict[str, str]:
    """What the probe has settled for the methods of a combination: trials need not find it again, and traces could not.

    Args:
        combination: The methods, and the mesh.
        facts: What the probe learned, of the model at the same size.
    """
    known = {
        setting.name: get_method(setting.name).settled_by(setting.parameters, combination.mesh, facts)
        for setting in combination.settings
    }
    return {name: text for name, text in known.items() if text is not None}
