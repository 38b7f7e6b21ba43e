"""Throughput and memory against the batch, for each combination of a study."""

from __future__ import annotations

from collections.abc import Iterator

from advisor.decide.candidate import Candidate
from advisor.measure.measurement import Measurement
from advisor.report.page.figure import Figure, Source
from advisor.report.page.pictures import Curve, CurvePoint
from advisor.report.page.tried import Tried, figure_of_rate
from advisor.search.sizing.memory_model import MemoryModel
from advisor.search.space.space import Combination
from advisor.trial.result import TimeResult
from advisor.workload.sizes import size_words

__all__ = ["curves"]

_REACH = 4
"""A predicted line goes at most up to this many times the largest batch that ran: further it would be a guess."""

_PREDICTED = 5
"""Spans of a predicted line, in equal ratios: it is smooth."""


def curves(tried: Tried) -> Iterator[Curve]:
    """One for each combination that ran at some batch."""
    ladders = _ladders(tried)
    for name, candidates in tried.combinations.items():
        first = candidates[0]
        points = _profiled(tried, name, first.policy.data_degree)
        points |= ladders.get(name, {})
        for one in candidates:
            if one.measurement is not None:
                points[_place(one.measurement)] = _point(one.measurement, one.policy.data_degree, tried.id_of(one))
        if not points:
            continue
        sizing = tried.sizings.get(name)
        yield Curve(
            combination=name,
            name=_words(first),
            points=tuple(sorted(points.values(), key=lambda one: (one.batch, one.micro_batch))),
            predicted=_line(tried, name, first, max(micro_batch for micro_batch, _ in points)),
            out_of_memory_at=None if sizing is None else sizing[0].out_of_memory_at,
        )


def _words(one: Candidate) -> str:
    words = Combination.of(one.policy).words
    return f"{words} at {size_words(one.model_size)}" if one.model_size else words


_Points = dict[tuple[int, int], CurvePoint]
"""Micro-batch and passes -> the point."""


def _place(measured: Measurement) -> tuple[int, int]:
    return measured.micro_batch, measured.accumulation_steps


def _point(measured: Measurement, data_degree: int, policy: str = "") -> CurvePoint:
    return CurvePoint(
        batch=measured.micro_batch * measured.accumulation_steps * data_degree,
        micro_batch=measured.micro_batch,
        samples_per_second=figure_of_rate(measured),
        peak_bytes=Figure(value=measured.memory.peak_bytes, source=Source.MEASURED),
        policy=policy,
    )


def _profiled(tried: Tried, name: str, data_degree: int) -> _Points:
    sizing = tried.sizings.get(name)
    if sizing is None:
        return {}
    runs, _, passes = sizing
    return {
        (one.micro_batch, passes): CurvePoint(
            batch=(batch := one.micro_batch * passes * data_degree),
            micro_batch=one.micro_batch,
            samples_per_second=Figure(value=batch / one.step_seconds, source=Source.PROFILED),
            peak_bytes=Figure(value=one.memory.peak_bytes, source=Source.MEASURED),
        )
        for one in runs.points
    }


def _ladders(tried: Tried) -> dict[str, _Points]:
    """Batches that were timed in the process of another one, and are no candidates of their own."""
    found: dict[str, _Points] = {}
    for trial in tried.study.trials:
        result = trial.result
        if not isinstance(result, TimeResult):
            continue
        others = [rung.measurement for rung in result.ladder] + ([result.smaller] if result.smaller else [])
        if others and (name := tried.combination_named(trial.spec)):
            points = found.setdefault(name, {})
            points |= {_place(one): _point(one, trial.spec.policy.data_degree) for one in others}
    return found


def _line(tried: Tried, name: str, first: Candidate, largest: int) -> tuple[CurvePoint, ...]:
    """What the profiling runs predict for one pass of growing batches, up to the limit."""
    model = tried.models.get(name)
    if model is None or model.time.intercept <= 0:
        return ()  # A line through the origin, from one point, knows no batch from another.
    policy = first.policy
    limit = tried.study.answer.goal.limit_on(policy.gpu_count)
    end = max(largest, min(model.largest_batch(limit), _REACH * largest))
    batches = sorted({round(end ** (place / _PREDICTED)) for place in range(_PREDICTED + 1)})
    found = (_predicted(model, batch, policy.data_degree) for batch in batches)
    return tuple(one for one in found if one is not None)


def _predicted(model: MemoryModel, micro_batch: int, data_degree: int) -> CurvePoint | None:
    seconds, batch = model.seconds(micro_batch), micro_batch * data_degree
    if seconds <= 0:
        return None
    return CurvePoint(
        batch=batch,
        micro_batch=micro_batch,
        samples_per_second=Figure(value=batch / seconds, source=Source.PREDICTED),
        peak_bytes=Figure(value=model.predict(micro_batch), source=Source.PREDICTED),
    )
