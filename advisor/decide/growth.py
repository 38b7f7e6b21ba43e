"""Throughput and memory against the size: the baseline, the winner, and the size that memory alone allows."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from advisor.decide.candidate import Candidate, Growth, Role, SizeOutcome, SizeRow
from advisor.decide.eligible import is_measured, why_not_eligible
from advisor.decide.floor import keeps
from advisor.goal import Goal
from advisor.search.sizing.line import Line
from advisor.search.space.space import Combination
from advisor.trial.outcome import Outcome

__all__ = ["growth_of", "plain_among"]

_Order = tuple[int, tuple[int | float, ...]]


def plain_among(candidates: Iterable[Candidate]) -> Combination:
    """The baseline's combination: the user's own settings, or plain training with a method that distributes it."""
    own = next((candidate for candidate in candidates if candidate.role is Role.BASELINE), None)
    return Combination() if own is None else Combination.of(own.policy)


def growth_of(candidates: Sequence[Candidate], winner: Candidate, goal: Goal, floor: float) -> Growth:
    """Gather results of plain training and of the winner's methods by size, on the winner's number of devices."""
    plainly, best = plain_among(candidates), Combination.of(winner.policy)
    plain = _by_size(candidates, plainly)
    chosen = {} if best == plainly else _by_size(candidates, best)
    rows = [
        SizeRow(
            model_size=(plain.get(order) or chosen[order])[0].model_size,
            parameter_count=order[0],
            plain=_size_outcome(plain.get(order), goal),
            winner=_size_outcome(chosen.get(order), goal),
        )
        for order in sorted({*plain, *chosen})
    ]
    keeping = [one for group in plain.values() for one in group if keeps(one, goal, floor)]
    changes = len({order[0] for order in (*plain, *chosen)}) > 1
    per_unit, reach = _memory(chosen or plain, goal.limit_on(best.gpu_count), by_parameters=changes)
    return Growth(
        floor_samples_per_second=floor,
        rows=tuple(rows),
        plain=max(keeping, key=lambda one: one.size_order, default=None),
        own_parameter_count=next((one.parameter_count for one in candidates if one.role is Role.BASELINE), None),
        measure="parameter" if changes else " x ".join(winner.model_size) or "size",
        memory_per_unit=per_unit,
        fits_up_to=reach,
    )


def _by_size(candidates: Sequence[Candidate], combination: Combination) -> dict[_Order, list[Candidate]]:
    found: dict[_Order, list[Candidate]] = {}
    for candidate in candidates:
        if Combination.of(candidate.policy) == combination:
            found.setdefault(candidate.size_order, []).append(candidate)
    return found


def _size_outcome(group: Sequence[Candidate] | None, goal: Goal) -> SizeOutcome | None:
    """The best result at one size: the fastest measurement, else how the last one ended."""
    if not group:
        return None
    measured = [one for one in group if is_measured(one)]
    if not measured:
        last = group[-1]
        return SizeOutcome(outcome=last.outcome, reason=last.reason, predicted_peak_bytes=last.predicted_peak_bytes)
    best = max(measured, key=lambda one: one.samples_per_second)
    return SizeOutcome(
        outcome=Outcome.OK,
        reason=why_not_eligible(best, goal) or "",
        samples_per_second=best.samples_per_second,
        samples_per_step=best.policy.global_batch,
        peak_bytes=best.measured.memory.peak_bytes,
    )


def _memory(
    groups: dict[_Order, list[Candidate]], limit_bytes: int, *, by_parameters: bool
) -> tuple[float | None, float | None]:
    """Bytes per unit of size and the most units that fit, from the two largest sizes with profiling runs."""
    points = {
        float(parameters if by_parameters else math.prod(values)): float(one.one_sample_bytes)
        for (parameters, values), group in groups.items()
        for one in group
        if one.one_sample_bytes is not None
    }
    if len(points) < 2:
        return None, None
    first, second = sorted(points.items())[-2:]
    line = Line.through(first, second)
    reach = line.reaches(float(limit_bytes))
    return line.slope, reach if math.isfinite(reach) and reach > 0 else None
