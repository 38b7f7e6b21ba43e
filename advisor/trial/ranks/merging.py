"""One result out of the results of all ranks: what the slowest and the fullest rank say about the whole."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import msgspec

from advisor.measure.fidelity import FidelityRecord
from advisor.measure.measurement import Measurement, SizePoint, Sizing
from advisor.policy.policy import Policy
from advisor.trial.outcome import Outcome
from advisor.trial.result import (
    ConfirmResult,
    FidelityResult,
    PairResult,
    SizeResult,
    SplitResult,
    TimedResult,
    TimeResult,
    TrialResult,
)

__all__ = ["merged"]


def merged(key: str, results: Sequence[TrialResult], policy: Policy) -> TrialResult:
    """The trial's result.

    Args:
        key: The trial's key; that of a rank differs, because its device does.
        results: Of the ranks that reported, in their order, all OK.
        policy: What all of them ran.
    """
    assert results, "at least one rank reports"
    assert all(result.outcome is Outcome.OK for result in results), results
    return msgspec.structs.replace(
        _found(results, policy),
        key=key,
        most_samples=min((one.most_samples for one in results if one.most_samples is not None), default=None),
        notes=tuple(dict.fromkeys(note for result in results for note in result.notes)),
    )


def _found(results: Sequence[TrialResult], policy: Policy) -> TrialResult:
    """The first rank's result with what all of them found."""
    match results[0]:
        case SizeResult() as first:
            sizings = [one.sizing for one in results if isinstance(one, SizeResult) and one.sizing is not None]
            return msgspec.structs.replace(first, sizing=_sizing(sizings, policy), prediction=None)
        case TimeResult() as first:
            smaller = [one.smaller for one in results if isinstance(one, TimeResult) and one.smaller is not None]
            return msgspec.structs.replace(
                first,
                measurement=_measured(results),
                smaller=_measurement(smaller) if len(smaller) == len(results) else None,
                ladder=(),
            )
        case ConfirmResult() as first:
            return msgspec.structs.replace(first, measurement=_measured(results))
        case FidelityResult(fidelity=FidelityRecord() as record) as first:
            records = [one.fidelity for one in results if isinstance(one, FidelityResult) and one.fidelity]
            stages = [records[rank].state for rank in policy.axes.distinct_ranks(len(records))]
            # The first rank has the whole gradient.
            whole = msgspec.structs.replace(record, losses=_mean([one.losses for one in records]), state=_state(stages))
            return msgspec.structs.replace(first, fidelity=whole)
        case PairResult() as first:
            return first  # the ranks took every turn together
        case SplitResult() as first:
            return first  # each waits for the others at other moments: one rank's step is not an average
        case other:
            raise AssertionError(f"several ranks do not run such a trial: {other}")


def _measured(results: Sequence[TrialResult]) -> Measurement:
    return _measurement(
        [one.measurement for one in results if isinstance(one, TimedResult) and one.measurement is not None]
    )


def _measurement(ranks: list[Measurement]) -> Measurement:
    """The slowest rank's times, whose rates are those of the global batch, with the fullest rank's memory."""
    slowest = max(ranks, key=lambda rank: rank.step_seconds)
    joules = [rank.joules_per_step for rank in ranks if rank.joules_per_step is not None]
    return msgspec.structs.replace(
        slowest,
        memory=max((rank.memory for rank in ranks), key=lambda memory: memory.peak_bytes),
        joules_per_step=sum(joules) if len(joules) == len(ranks) else None,
        loss_trace=_mean([rank.loss_trace for rank in ranks]),
    )


def _sizing(ranks: list[Sizing], policy: Policy) -> Sizing:
    """The points that all ranks have: one that ran out of memory has fewer than those that waited for it."""
    failed = [rank.out_of_memory_at for rank in ranks if rank.out_of_memory_at is not None]
    # The loss of some shares of a batch is not that of the batch: nothing compares with it.
    knows_loss = len(ranks) == policy.gpu_count or policy.data_degree == 1
    return Sizing(
        points=tuple(_point(list(points)) for points in zip(*(rank.points for rank in ranks), strict=False)),
        out_of_memory_at=min(failed, default=None),
        loss_trace=_mean([rank.loss_trace for rank in ranks]) if knows_loss else (),
        settled=ranks[0].settled,
    )


def _point(ranks: list[SizePoint]) -> SizePoint:
    assert len({rank.micro_batch for rank in ranks}) == 1, "ranks agree on every batch"
    return SizePoint(
        micro_batch=ranks[0].micro_batch,
        memory=max((rank.memory for rank in ranks), key=lambda memory: memory.peak_bytes),
        step_seconds=max(rank.step_seconds for rank in ranks),
    )


def _state(stages: list[dict[str, float]]) -> dict[str, float]:
    """What the stages change together; of modules that several have, a stage may have those that another calls."""
    names = dict.fromkeys(name for state in stages for name in state)
    return {name: next((state[name] for state in stages if state.get(name)), 0.0) for name in names}


def _mean(traces: list[tuple[float, ...]]) -> tuple[float, ...]:
    """The loss of the global batch: every rank has an equal share of it."""
    return tuple(statistics.fmean(losses) for losses in zip(*traces, strict=True))
