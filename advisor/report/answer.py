"""The whole answer as the command prints it: tables, the reason, the files, and how to apply it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.constrain import Constrain
from rich.text import Text

from advisor.decide.candidate import Recommendation
from advisor.decide.confirmation import Confirmation
from advisor.goal import Goal
from advisor.report.cells import plain_table
from advisor.report.frontier_table import FrontierTable
from advisor.report.growth import growth_table
from advisor.report.headline import (
    NOT_REPRODUCIBLE,
    NOTHING_RAN,
    gain_is_open,
    headline,
    missed_words,
    what_to_do,
)
from advisor.report.plot import CostPlot
from advisor.report.table import RankingTable, not_measured_part, refused_part
from advisor.report.wording import (
    confirmed_beyond,
    has_clear_turns,
    open_because,
    promised_times,
    rate_beside_floor,
    turns_words,
)
from advisor.text.units import (
    format_bytes,
    format_percent,
    format_rate,
    format_seconds,
    format_spread,
    format_times,
    format_times_spread,
)
from advisor.trial.outcome import Outcome

__all__ = ["AnswerView", "confirmation_words", "timings_table"]

_TEXT_WIDTH = 100
"""Longer lines of a paragraph are hard to read."""

_ROWS, _ROWS_IN_FULL = 5, 10


@dataclass(frozen=True)
class AnswerView:
    """Everything at the end of a session: the answer, the table, the reasons, notes, and last what is not applicable.

    Attributes:
        recommendation: The answer, explained.
        files: Description -> path of each written file.
        apply_lines: Lines of Python that apply the policy.
        verbose: Whether to list each policy that was not measured and each setting that is not applicable; otherwise
            one line for each outcome and each method says how many there are.
    """

    recommendation: Recommendation
    goal: Goal
    files: Mapping[str, Path]
    apply_lines: Sequence[str]
    notes: Sequence[str] = ()
    verbose: bool = False

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        answer = self.recommendation
        beyond = confirmed_beyond(answer, self.goal)
        yield headline(answer, self.goal, files=self.files, apply_lines=self.apply_lines, beyond=beyond)
        yield Text()
        if answer.frontier is None:
            yield RankingTable(answer, self.goal, rows=_ROWS_IN_FULL if self.verbose else _ROWS)
        else:
            yield FrontierTable(answer, self.goal)
            yield CostPlot(answer)
        yield Text()
        if answer.growth is not None:
            yield growth_table(answer, answer.growth, own_settings=bool(self.goal.own_settings))
            yield Text()
        yield Text("Why", style="bold")
        width = min(options.max_width, _TEXT_WIDTH)
        for paragraph in self._paragraphs(beyond):
            yield Constrain(paragraph, width)
        notes = (*self.notes, *answer.winner.notes)
        if notes:
            yield Text()
        for note in notes:
            yield Text.assemble(("note: ", "yellow"), note)
        for part in (not_measured_part, refused_part):
            shown = part(answer, verbose=self.verbose)
            if shown is not None:
                yield Text()
                yield shown

    def _paragraphs(self, beyond: str | None) -> Iterator[Text]:
        answer = self.recommendation
        yield Text(" ".join(answer.why))
        if answer.confirmation is not None:
            floor = None if answer.growth is None else answer.growth.floor_samples_per_second
            open_gain = gain_is_open(answer)
            yield Text(confirmation_words(answer.confirmation, floor=floor, beyond=beyond, open_gain=open_gain))


def confirmation_words(
    confirmation: Confirmation, *, floor: float | None = None, beyond: str | None = None, open_gain: bool = False
) -> str:
    """Whether the emitted wrapper kept the promise, in a few sentences.

    Args:
        confirmation: The fresh run.
        floor: Samples per second to keep, if the goal is a larger model.
        beyond: How far the run is beyond the user's limit, if it is.
        open_gain: Whether a gain was to be confirmed, and the turns with the baseline leave it open.
    """
    promised = format_rate(confirmation.promised_samples_per_second)
    measurement, kept = confirmation.measurement, confirmation.kept
    if confirmation.outcome in NOTHING_RAN and confirmation.reason:
        return f"Not confirmed: {confirmation.reason.rstrip('.')}."
    if confirmation.outcome is not Outcome.OK or measurement is None or kept is None:
        detail = f": {confirmation.reason.rstrip('.')}" if confirmation.reason else ""
        return f"Not confirmed: running the wrapper in a fresh process ended as {confirmation.outcome.value}{detail}."
    peak = format_bytes(measurement.memory.peak_bytes)
    again = f"Measurements are {NOT_REPRODUCIBLE}: {what_to_do(confirmation)}."
    if confirmation.speedup is not None and confirmation.promise is not None:
        promise = confirmation.promise
        spread = format_times_spread(promise.low, promise.high, promise.value)
        baseline_words = "the baseline" if floor is None else "the baseline at its own size"
        interval = f"{promised_times(promise)} {baseline_words}, {spread}"
        turns = f"the wrapper and the {turns_words(confirmation)}"
        if open_gain and confirmation.as_promised:
            text = f"Not confirmed: {turns}, {open_because(confirmation)}. They show {interval}, at a peak of {peak}."
            if not has_clear_turns(confirmation):
                text += f" To know more: {what_to_do(confirmation)}."
        elif confirmation.as_promised or confirmation.expected_speedup is None:
            text = f"Confirmed: {turns}. The promise is {interval}, at a peak of {peak}."
        else:
            before = format_times(confirmation.expected_speedup)
            text = (
                f"Not confirmed: {turns}, which show {interval}, at a peak of {peak}. Before, it was {before}: "
                f"{missed_words(confirmation)}. {again}"
            )
        return text + _at_the_edge(rate_beside_floor(confirmation), floor, beyond)
    rates = (
        f"the wrapper trains {format_rate(measurement.samples_per_second)} samples/s, {format_percent(kept)} of the "
        f"{promised} promised, at a peak of {peak}"
    )
    explained = "" if abs(kept - 1) <= confirmation.tolerated else _due(confirmation)
    text = f"Confirmed in a fresh process: {rates}{explained}."
    if not confirmation.as_promised:
        text = (
            f"Not confirmed: in a fresh process {rates}{_due(confirmation)}, and "
            f"{format_spread(confirmation.tolerated)} would be noise. {again}"
        )
    if confirmation.other_samples_per_second is not None:
        text += f" It ran twice: the other time {format_rate(confirmation.other_samples_per_second)} samples/s."
    text += _at_the_edge(rate_beside_floor(confirmation), floor, beyond)
    baseline = confirmation.baseline_samples_per_second
    if baseline is not None:
        text += f" The baseline, measured again right after it: {format_rate(baseline)} samples/s"
        times = f"; that is {format_times(measurement.samples_per_second / baseline)} as many"
        if confirmation.promise is not None:
            ends = confirmation.promise
            times += f", {format_times_spread(ends.low, ends.high, ends.value)}"
        text += f"{times if floor is None else ' at its own size'}."  # throughputs of different models do not compare
    return text


def _at_the_edge(rate: float, floor: float | None, beyond: str | None) -> str:
    """Which limit of the user's a confirming run did not keep."""
    if floor is not None and rate < floor:
        return f" That is below the floor of {format_rate(floor)} samples/s: this size is at its edge, or noise."
    if beyond is not None:
        return f" That is {beyond}: this policy is at its edge, or noise."
    return ""


def _due(confirmation: Confirmation) -> str:
    """What the promise is at the speed that the machine had for the baseline right after the run."""
    if confirmation.drift is None:
        return ""
    due = format_rate(confirmation.drift * confirmation.promised_samples_per_second)
    return f" ({due} were due, because the baseline ran at {format_percent(confirmation.drift)} of its speed)"


def timings_table(timings: Mapping[str, float]) -> RenderableType:
    """Where the seconds of a run went, the longest first; empty where nothing is known."""
    if not timings:
        return Group()
    whole = sum(timings.values()) or 1.0
    table = plain_table("Where the time went")
    table.add_column("what")
    table.add_column("time", justify="right", no_wrap=True)
    table.add_column("share", justify="right", no_wrap=True)
    for what, seconds in sorted(timings.items(), key=lambda one: -one[1]):
        table.add_row(what, format_seconds(seconds), format_percent(seconds / whole))
    return table
