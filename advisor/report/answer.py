"""The whole answer as the command prints it: tables, the reason, the files, and how to apply it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.panel import Panel
from rich.text import Text

from advisor.decide.candidate import Confirmation, Recommendation
from advisor.decide.frontier import placed
from advisor.decide.preference import beyond_limit
from advisor.goal import Goal, GoalKind
from advisor.hardware.mesh import DATA_ONLY
from advisor.report.cells import plain_table
from advisor.report.frontier_table import FrontierTable
from advisor.report.growth import growth_table
from advisor.report.plot import CostPlot
from advisor.report.sentences import measured_too_little
from advisor.report.table import RankingTable, not_measured_table, refused_settings_table
from advisor.report.wording import batch_words, of_each_share, on_devices, policy_words
from advisor.text.units import (
    format_bytes,
    format_count,
    format_percent,
    format_rate,
    format_spread,
    format_times,
    format_times_spread,
)
from advisor.trial.outcome import Outcome
from advisor.workload.sizes import size_words

__all__ = ["AnswerView", "confirmation_words", "timings_table"]

_TEXT_WIDTH = 100

_NOTHING_RAN = (Outcome.INTERRUPTED, Outcome.SCREENED, Outcome.REFUSED)


@dataclass(frozen=True)
class AnswerView:
    """Everything at the end of a session, most important last, because the end stays on the screen.

    Attributes:
        recommendation: The answer, explained.
        files: Description -> path of each written file.
        apply_lines: Lines of Python that apply the policy.
    """

    recommendation: Recommendation
    goal: Goal
    files: Mapping[str, Path]
    apply_lines: Sequence[str]
    notes: Sequence[str] = ()

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        answer = self.recommendation
        yield Text()
        if answer.refused_settings:
            yield refused_settings_table(answer.refused_settings)
            yield Text()
        if answer.not_measured:
            yield not_measured_table(answer.not_measured)
            yield Text()
        if answer.frontier is None:
            yield RankingTable(answer, self.goal)
        else:
            yield FrontierTable(answer, self.goal)
            yield Text()
            yield CostPlot(answer)
        yield Text()
        if answer.growth is not None:
            yield growth_table(answer, answer.growth)
            yield Text()
        yield Panel(
            self._panel_text(),
            title=Text(_title(answer)),
            title_align="left",
            border_style="green",
            width=min(options.max_width, _TEXT_WIDTH + 4),
        )
        for note in (*self.notes, *answer.winner.notes):
            yield Text.assemble(("note: ", "yellow"), note)
        if self.files:
            yield Text("\nWritten", style="bold")
            width = max(map(len, self.files))
            for what, path in self.files.items():
                yield _uncut((f"    {what:<{width}}  ", "bold cyan"), str(path))
        if self.apply_lines:
            yield Text("\nApply it", style="bold")
            for line in self.apply_lines:
                yield _uncut(f"    {line}")

    def _panel_text(self) -> Text:
        answer = self.recommendation
        text = Text(" ".join(answer.why))
        if answer.confirmation is not None:
            floor = None if answer.growth is None else answer.growth.floor_samples_per_second
            beyond = self._beyond_limit(answer.confirmation)
            text.append("\n\n").append(
                confirmation_words(answer.confirmation, floor=floor, beyond=beyond),
                style="green" if answer.confirmation.as_promised and beyond is None else "yellow",
            )
        return text

    def _beyond_limit(self, confirmation: Confirmation) -> str | None:
        """``cheapest``: how far the confirming run is beyond the user's limit."""
        if confirmation.measurement is None or self.goal.kind is not GoalKind.CHEAPEST:
            return None
        again = msgspec.structs.replace(self.recommendation.winner, measurement=confirmation.measurement)
        return beyond_limit(placed(again, self.goal), self.goal.preference)


def _title(answer: Recommendation) -> str:
    winner, policy = answer.winner, answer.winner.policy
    devices = f" on each of {policy.gpu_count:,} devices" if policy.gpu_count > 1 else ""
    if policy.axes != DATA_ONLY:
        devices = of_each_share(policy) + on_devices(policy)
    training = f"train with {policy_words(policy)}, batch {batch_words(policy)}{devices}"
    if winner.model_size:
        return f"Build {size_words(winner.model_size)} and {training}"
    if measured_too_little(answer):
        return f"{training[0].upper()}{training[1:]}; too little was measured for more"
    if answer.growth is None and answer.frontier is None and winner == answer.baseline:
        return f"Keep what you have: {training}"
    if _lost_its_lead(answer):
        return f"Not faster when run again: {training}"  # First, because a long title is cut at its end.
    return training[0].upper() + training[1:]


def _lost_its_lead(answer: Recommendation) -> bool:
    """Whether the winner was faster than the baseline in its trial, and was not when both were run again."""
    baseline, again = answer.baseline, answer.confirmation
    if baseline is None or again is None or again.measurement is None or again.baseline_samples_per_second is None:
        return False
    led = again.promised_samples_per_second > baseline.samples_per_second
    return led and again.measurement.samples_per_second <= again.baseline_samples_per_second


def _uncut(*parts: str | tuple[str, str]) -> Text:
    """A line that is never wrapped: a path or a statement that is cut cannot be copied."""
    return Text.assemble(*parts, no_wrap=True, overflow="ignore")


def confirmation_words(confirmation: Confirmation, *, floor: float | None = None, beyond: str | None = None) -> str:
    """Whether the emitted wrapper kept the promise, in a few sentences.

    Args:
        confirmation: The fresh run.
        floor: Samples per second to keep, if the goal is a larger model.
        beyond: How far the run is beyond the user's limit, if it is.
    """
    promised = format_rate(confirmation.promised_samples_per_second)
    measurement, kept = confirmation.measurement, confirmation.kept
    if confirmation.outcome in _NOTHING_RAN and confirmation.reason:
        return f"Not confirmed: {confirmation.reason.rstrip('.')}."
    if confirmation.outcome is not Outcome.OK or measurement is None or kept is None:
        detail = f": {confirmation.reason.rstrip('.')}" if confirmation.reason else ""
        return f"Not confirmed: running the wrapper in a fresh process ended as {confirmation.outcome.value}{detail}."
    peak = format_bytes(measurement.memory.peak_bytes)
    if confirmation.speedup is not None and confirmation.promise is not None:
        promise = confirmation.promise
        return (
            f"Confirmed: the wrapper and the baseline took {format_count(promise.rounds, 'turn')} each in fresh "
            f"processes. The promise is {format_times(promise.value)} the baseline, "
            f"{format_times_spread(promise.low, promise.high, promise.value)}, at a peak of {peak}."
        )
    rates = (
        f"the wrapper trains {format_rate(measurement.samples_per_second)} samples/s, {format_percent(kept)} of the "
        f"{promised} promised, at a peak of {peak}"
    )
    text = f"Confirmed in a fresh process: {rates}."
    if not confirmation.as_promised:
        text = (
            f"Not confirmed: in a fresh process {rates}{_due(confirmation)}, and "
            f"{format_spread(confirmation.tolerated)} would be noise. "
            "Measurements on this machine are not reproducible now: check what else runs on it, and run the same "
            "command again."
        )
    if confirmation.other_samples_per_second is not None:
        text += f" It ran twice: the other time {format_rate(confirmation.other_samples_per_second)} samples/s."
    if floor is not None and measurement.samples_per_second < floor:
        text += f" That is below the floor of {format_rate(floor)} samples/s: this size is at its edge, or noise."
    if beyond is not None:
        text += f" That is {beyond}: this policy is at its edge, or noise."
    baseline = confirmation.baseline_samples_per_second
    if baseline is not None:
        text += f" The baseline, measured again right after it: {format_rate(baseline)} samples/s"
        times = f"; that is {measurement.samples_per_second / baseline:.2f} times as many"
        text += f"{times if floor is None else ' at its own size'}."  # throughputs of different models do not compare
    return text


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
    table.add_column("seconds", justify="right", no_wrap=True)
    table.add_column("share", justify="right", no_wrap=True)
    for what, seconds in sorted(timings.items(), key=lambda one: -one[1]):
        table.add_row(what, f"{seconds:.1f}", format_percent(seconds / whole))
    return table
