"""One result out of the results of all ranks: what the slowest and the fullest rank say about the whole."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import msgspec

from advisor.measure.measurement import Measurement, SizePoint, Sizing
from advisor.trial.outcome import Outcome
from advisor.trial.spec import TrialResult

__all__ = ["merged"]


def merged(key: str, results: Sequence[TrialResult]) -> TrialResult:
    """The trial's result.

    Args:
        key: The trial's key; that of a rank differs, because its device does.
        results: Of the ranks, in their order, all OK.
    """
    assert results, "at least one rank reports"
    assert all(result.outcome is Outcome.OK for result in results), results
    measurements = [result.measurement for result in results if result.measurement is not None]
    smaller = [result.smaller for result in results if result.smaller is not None]
    sizings = [result.sizing for result in results if result.sizing is not None]
    records = [result.fidelity for result in results if result.fidelity is not None]
    return TrialResult(
        key=key,
        outcome=Outcome.OK,
        sizing=_sizing(sizings) if sizings else None,
        measurement=_measurement(measurements) if measurements else None,
        smaller=_measurement(smaller) if len(smaller) == len(results) else None,
        # The first rank has the whole gradient.
        fidelity=msgspec.structs.replace(records[0], losses=_mean([rank.losses for rank in records]))
        if records
        else None,
        most_samples=min((one.most_samples for one in results if one.most_samples is not None), default=None),
        notes=tuple(dict.fromkeys(note for result in results for note in result.notes)),
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


def _sizing(ranks: list[Sizing]) -> Sizing:
    """The points that all ranks have: one that ran out of memory has fewer than those that waited for it."""
    failed = [rank.out_of_memory_at for rank in ranks if rank.out_of_memory_at is not None]
    return Sizing(
        points=tuple(_point(list(points)) for points in zip(*(rank.points for rank in ranks), strict=False)),
        out_of_memory_at=min(failed, default=None),
        loss_trace=_mean([rank.loss_trace for rank in ranks]),
        settled=ranks[0].settled,
    )


def _point(ranks: list[SizePoint]) -> SizePoint:
    assert len({rank.micro_batch for rank in ranks}) == 1, "ranks agree on every batch"
    return SizePoint(
        micro_batch=ranks[0].micro_batch,
        memory=max((rank.memory for rank in ranks), key=lambda memory: memory.peak_bytes),
        step_seconds=max(rank.step_seconds for rank in ranks),
    )


def _mean(traces: list[tuple[float, ...]]) -> tuple[float, ...]:
    """The loss of the global batch: every rank has an equal share of it."""
    return tuple(statistics.fmean(losses) for losses in zip(*traces, strict=True))
