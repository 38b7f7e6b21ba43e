"""What a policy file says of a measurement."""

from __future__ import annotations

from advisor.decide.candidate import Candidate
from advisor.goal import Goal
from advisor.policy.evidence import Evidence

__all__ = ["evidence_of"]


def evidence_of(one: Candidate, goal: Goal, *, date: str, trials: int) -> Evidence:
    """What was measured of a candidate by itself, at its size of the model; what it was compared with is not in it.

    Args:
        one: A candidate that was measured.
        goal: What it was measured for.
        date: When, as ISO date.
        trials: How many policies were measured.
    """
    measured = one.measured
    return Evidence(
        goal=goal.kind.value,
        date=date,
        samples_per_second=measured.samples_per_second,
        relative_spread=measured.relative_spread,
        peak_bytes=measured.memory.peak_bytes,
        memory_limit_bytes=goal.limit_on(one.policy.gpu_count),
        fidelity=one.fidelity.value,
        tie=False,
        trials=trials,
        why=[],
        model_size=one.model_size or None,
        parameter_count=one.parameter_count,
    )
