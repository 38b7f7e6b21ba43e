"""Cost against latency (``cheapest``) and size against throughput (``bigger``)."""

from __future__ import annotations

from collections.abc import Iterator

from advisor.decide.candidate import FrontierPoint, Growth, Recommendation, SizeOutcome
from advisor.goal import Goal
from advisor.report.page.figure import Figure, Source
from advisor.report.page.pictures import FrontierPart, FrontierPlace, GrowthPart, SizePlace
from advisor.report.page.tried import Tried, figure_of_seconds
from advisor.workload.sizes import size_words

__all__ = ["frontier_part", "growth_part"]


def frontier_part(found: Recommendation, goal: Goal, tried: Tried) -> FrontierPart | None:
    """The frontier and the points that it dominates; ``None`` for other goals."""
    frontier, price = found.frontier, goal.price
    if frontier is None or price is None:
        return None
    places = [_place(one, tried, on_frontier=True) for one in frontier.points]
    places += [_place(one.point, tried, by=one.by, inside_noise=one.inside_noise) for one in frontier.dominated]
    asked = goal.preference
    return FrontierPart(
        places=tuple(places),
        pick=frontier.pick,
        knee=frontier.knee,
        usd_per_hour=price.usd_per_hour,
        price_source=f"{price.source}, {price.date}",
        max_latency_seconds=asked.max_latency_seconds,
        max_cost_usd=asked.max_cost_usd,
        deadline_seconds=asked.deadline_seconds,
        iterations=asked.iterations,
    )


def _place(
    point: FrontierPoint, tried: Tried, *, on_frontier: bool = False, by: int | None = None, inside_noise: bool = False
) -> FrontierPlace:
    candidate = next(one for one in tried.entries.values() if one.policy == point.policy)
    latency = figure_of_seconds(candidate.measured)
    usd_per_second = point.cost_usd / point.latency_seconds
    return FrontierPlace(
        policy=tried.id_of(candidate),
        latency_seconds=latency,
        cost_usd=Figure(
            value=point.cost_usd,
            low=None if latency.low is None else latency.low * usd_per_second,
            high=None if latency.high is None else latency.high * usd_per_second,
            source=Source.MEASURED,
        ),
        energy_usd=point.energy_usd,
        gpu_count=point.policy.gpu_count,
        on_frontier=on_frontier,
        by=by,
        inside_noise=inside_noise,
    )


def growth_part(found: Recommendation) -> GrowthPart | None:
    """The sizes that were tried; ``None`` for other goals."""
    growth = found.growth
    if growth is None:
        return None
    return GrowthPart(
        floor_samples_per_second=growth.floor_samples_per_second,
        places=tuple(_sizes(growth)),
        own_parameter_count=growth.own_parameter_count,
        measure=growth.measure,
        fits_up_to=None if growth.fits_up_to is None else Figure(value=growth.fits_up_to, source=Source.PREDICTED),
    )


def _sizes(growth: Growth) -> Iterator[SizePlace]:
    for row in growth.rows:
        for who, one in (("plain", row.plain), ("winner", row.winner)):
            if one is not None:
                yield _size_place(who, size_words(row.model_size), row.parameter_count, one)


def _size_place(who: str, size: str, parameter_count: int, one: SizeOutcome) -> SizePlace:
    rate, peak = one.samples_per_second, None
    if one.peak_bytes is not None:
        peak = Figure(value=one.peak_bytes, source=Source.MEASURED)
    elif one.predicted_peak_bytes is not None:
        peak = Figure(value=one.predicted_peak_bytes, source=Source.PREDICTED)
    return SizePlace(
        who=who,
        size=size,
        parameter_count=parameter_count,
        outcome=one.outcome.value,
        reason=one.reason,
        samples_per_second=None if rate is None else Figure(value=rate, source=Source.MEASURED),
        samples_per_step=one.samples_per_step,
        peak_bytes=peak,
    )
