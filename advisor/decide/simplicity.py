"""Which of two candidates is simpler: the rule that settles ties."""

from __future__ import annotations

from advisor.decide.candidate import Candidate

__all__ = ["simplicity"]


def simplicity(candidate: Candidate) -> tuple[int, int, int, int, str]:
    """Sort key: fewer methods, then a better fidelity class, a smaller batch, fewer passes; the label settles it."""
    policy = candidate.policy
    return (
        len(policy.methods),
        candidate.fidelity.rank,
        policy.global_batch,
        policy.accumulation_steps,
        policy.label,
    )
