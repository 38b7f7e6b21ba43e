"""Size against throughput and memory: the baseline beside the winner's methods."""

from __future__ import annotations

import math

from rich.console import Group, RenderableType
from rich.text import Text

from advisor.decide.candidate import Growth, Recommendation, SizeOutcome, SizeRow
from advisor.decide.growth import plain_among
from advisor.report.cells import Folded, plain_table
from advisor.report.wording import parameters_words
from advisor.search.space.space import Combination
from advisor.text.units import format_bytes, format_rate
from advisor.trial.outcome import Outcome
from advisor.workload.sizes import size_parts

__all__ = ["growth_table"]

_SHORT = {Outcome.OUT_OF_MEMORY: "OOM", Outcome.HOST_OUT_OF_MEMORY: "host OOM", Outcome.SCREENED: "not run"}

_LEGEND = {
    Outcome.OUT_OF_MEMORY: "OOM: out of memory.",
    Outcome.HOST_OUT_OF_MEMORY: "host OOM: out of the host's memory.",
    Outcome.SCREENED: "not run: predicted to fail.",
}


def growth_table(recommendation: Recommendation, growth: Growth, *, own_settings: bool = False) -> RenderableType:
    """One row for every size that was tried, with separate columns for measured and predicted values.

    Args:
        recommendation: The answer.
        growth: Its sizes.
        own_settings: Whether the baseline is the user's own settings.
    """
    winner = recommendation.winner
    plain = plain_among((*recommendation.ranking, *recommendation.not_measured))
    best = Combination.of(winner.policy)
    beside = plain != best
    predicted = any(_predicted(row) != "-" for row in growth.rows)
    table = plain_table("Size against throughput", expand=True)
    table.add_column("size", ratio=1)
    table.add_column("para-\nmeters", justify="right", no_wrap=True)
    own = "yours" if own_settings else "plain"
    for name in (own, "winner") if beside else (own,):
        table.add_column(f"{name},\nsamples/s", justify="right", no_wrap=True)
        table.add_column(f"{name},\npeak", justify="right", no_wrap=True)
    if predicted:
        table.add_column("predicted\npeak", justify="right", no_wrap=True)
    for row in growth.rows:
        cells: list[RenderableType] = [
            Folded(_size_parts(row, recommendation), separator=", "),
            parameters_words(row.parameter_count),
        ]
        for one in (row.plain, row.winner) if beside else (row.plain,):
            cells += [_rate(one, growth.floor_samples_per_second), _peak(one)]
        if predicted:
            cells.append(_predicted(row))
        style = "bold green" if row.model_size == winner.model_size else ""
        table.add_row(*cells, style=style)
    shown = [one for row in growth.rows for one in ((row.plain, row.winner) if beside else (row.plain,)) if one]
    legend = []
    if any((one.samples_per_second or math.inf) < growth.floor_samples_per_second for one in shown):
        legend.append(f"*: below the floor of {format_rate(growth.floor_samples_per_second)} samples/s.")
    if plain != Combination() or own_settings:
        legend.append(f"{own}: {plain.words}.")
    if beside:
        legend.append(f"winner: {best.words}.")
    ends = {one.outcome for one in shown if one.samples_per_second is None}
    legend += [words for outcome, words in _LEGEND.items() if outcome in ends]
    return Group(table, *[Text(" ".join(legend), style="dim")] * bool(legend))


def _size_parts(row: SizeRow, recommendation: Recommendation) -> list[str]:
    words, baseline = size_parts(row.model_size), recommendation.baseline
    is_own = not words or (baseline is not None and baseline.model_size == row.model_size)
    return [*words, "own size"] if is_own else words


def _rate(one: SizeOutcome | None, floor: float) -> Text:
    if one is None:
        return Text("-", style="dim")
    if one.samples_per_second is None:
        name = _SHORT.get(one.outcome, one.outcome.value)
        return Text(name, style="dim" if one.outcome is Outcome.SCREENED else "yellow")
    below = one.samples_per_second < floor
    return Text(format_rate(one.samples_per_second) + ("*" if below else ""), style="yellow" if below else "")


def _peak(one: SizeOutcome | None) -> str:
    return "-" if one is None or one.peak_bytes is None else format_bytes(one.peak_bytes)


def _predicted(row: SizeRow) -> str:
    """The predicted need of a policy that was not run at this size; the smaller of two, because that decides."""
    needs = [
        one.predicted_peak_bytes
        for one in (row.plain, row.winner)
        if one is not None and one.predicted_peak_bytes is not None
    ]
    return format_bytes(min(needs)) if needs else "-"
