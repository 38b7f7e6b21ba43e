"""The first lines of an answer: what to train with, what it brings, how sure that is, and how to apply it."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from advisor.decide.candidate import Candidate, Growth, Recommendation
from advisor.decide.confirmation import Confirmation
from advisor.decide.cost import cost_of
from advisor.decide.eligible import why_not_eligible
from advisor.goal import Goal
from advisor.hardware.mesh import DATA_ONLY
from advisor.report.points import ITERATIONS
from advisor.report.sentences import measured_too_little
from advisor.report.why import baseline_itself
from advisor.report.wording import (
    batch_words,
    early_words,
    gain_words,
    has_clear_turns,
    of_each_share,
    on_devices,
    open_because,
    parameters_words,
    promise_words,
    promised_times,
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
    format_usd,
)
from advisor.trial.outcome import Outcome
from advisor.workload.sizes import size_words

__all__ = [
    "NOTHING_RAN",
    "NOT_REPRODUCIBLE",
    "Line",
    "gain_is_open",
    "headline",
    "headline_lines",
    "missed_words",
    "title_words",
    "what_to_do",
]

NOT_REPRODUCIBLE = "not reproducible on this machine now"
"""What is said of a confirmation that is further from its promise than noise explains."""

NOTHING_RAN = (Outcome.INTERRUPTED, Outcome.SCREENED, Outcome.REFUSED)
"""Ends of a confirmation that ran nothing."""

_CONTINUE = "run the same command again: it continues, and confirms"

_LABELS = 11


class Line(NamedTuple):
    """One line, which may be wrapped.

    Attributes:
        label: What it is about.
        words: What is known about it.
        style: Its colour.
    """

    label: str
    words: str
    style: str = ""


def headline(
    answer: Recommendation,
    goal: Goal,
    *,
    files: Mapping[str, Path],
    apply_lines: Sequence[str],
    beyond: str | None = None,
) -> RenderableType:
    """The answer in about ten lines.

    Args:
        answer: The answer, explained.
        goal: What was asked for.
        files: Description -> path of each written file.
        apply_lines: Lines of Python that apply the policy.
        beyond: How far the confirming run is beyond the user's limit, if it is.
    """
    lines, again = headline_lines(answer, goal, beyond=beyond), answer.confirmation
    doubtful = again is not None and (not again.as_promised or beyond is not None or gain_is_open(answer))
    return Group(
        Text(title_words(answer), style="bold yellow" if doubtful else "bold green"),
        *map(_wrapped, lines),
        _Whole("apply", apply_lines),
        _Whole("files", _files(files)),
    )


def headline_lines(answer: Recommendation, goal: Goal, *, beyond: str | None = None) -> list[Line]:
    """What the winner brings, whether that was confirmed, what it needs, and what it changes."""
    winner, memory = answer.winner, answer.winner.measured.memory
    limit = goal.limit_on(winner.policy.gpu_count)
    peak = max(memory.peak_bytes, _confirmed_peak(answer))
    return [
        *_gains(answer, goal),
        *_confirmed(answer, beyond),
        Line("peak", f"{format_bytes(peak)}, {format_percent(peak / limit)} of the {format_bytes(limit)} limit"),
        *_larger_batch(answer),
    ]


class _Whole:
    """Lines that stay whole, as one that is cut cannot be copied; a comment that does not fit stands above its line."""

    def __init__(self, label: str, lines: Sequence[str]) -> None:
        self._label, self._lines = label, lines

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width = options.max_width - _LABELS
        lines = [part for line in self._lines for part in _with_comment(line, width)]
        for number, line in enumerate(lines):
            first = f"{self._label if number == 0 else '':<{_LABELS}}"
            yield Text.assemble((first, "bold cyan"), line, no_wrap=True, overflow="ignore")


def _with_comment(line: str, width: int) -> list[str]:
    code, mark, comment = line.rpartition("  # ")
    if len(line) <= width or not mark:
        return [line]
    folded = textwrap.wrap(comment, max(width - 2, _LABELS), break_long_words=False, break_on_hyphens=False)
    return [*(f"# {part}" for part in folded), code]


def title_words(answer: Recommendation) -> str:
    """What to do, in one line."""
    winner, policy = answer.winner, answer.winner.policy
    devices = f" on each of {policy.gpu_count:,} devices" if policy.gpu_count > 1 else ""
    if policy.axes != DATA_ONLY:
        devices = of_each_share(policy) + on_devices(policy)
    training = f"train with {policy.words}, batch {batch_words(policy)}{devices}"
    if winner.model_size:
        training = f"build {size_words(winner.model_size)} and {training}"
    elif measured_too_little(answer):
        training += "; too little was measured for more"
    elif answer.growth is None and answer.frontier is None and winner == answer.baseline:
        training = f"keep what you have: {training}"
    again = answer.confirmation
    if _lost_its_lead(answer):
        training = f"not faster when run again: {training}"
    elif again is not None and again.kept is not None and not again.as_promised:
        training = f"{NOT_REPRODUCIBLE}: {training}"
    elif gain_is_open(answer):
        training = f"not certain to be faster: {training}"
    return training[0].upper() + training[1:]


def gain_is_open(answer: Recommendation) -> bool:
    """Whether the turns with the baseline, of the goal ``faster``, leave open which of the two is faster."""
    again = answer.confirmation
    promise = None if again is None or answer.growth is not None or answer.frontier is not None else again.promise
    return promise is not None and promise.low <= 1 and answer.winner != answer.baseline


def _lost_its_lead(answer: Recommendation) -> bool:
    """Whether the winner was faster than the baseline in its trial, and was not when both were run again."""
    baseline, again = answer.baseline, answer.confirmation
    if baseline is None or again is None or again.measurement is None or again.baseline_samples_per_second is None:
        return False
    if answer.growth is not None or answer.winner.policy.gpu_count < baseline.policy.gpu_count:
        return False  # it is larger, or takes fewer devices: nobody said that it is faster
    led = again.promised_samples_per_second > baseline.samples_per_second
    return led and again.measurement.samples_per_second <= again.baseline_samples_per_second


def _gains(answer: Recommendation, goal: Goal) -> Iterator[Line]:
    """What the winner brings in the metric of the goal, beside the baseline."""
    winner, baseline = answer.winner, answer.baseline
    if answer.growth is not None:
        yield from _size(winner, answer.growth, answer.confirmation)
    elif answer.frontier is not None:
        yield from _cost(winner, baseline, goal, answer.confirmation)
    elif winner.measured.making_seconds > winner.measured.step_seconds and answer.why:
        yield Line("speed", answer.why[0])  # It trains as fast as its data come.
    else:
        yield Line("speed", _speed(answer, goal))


def _speed(answer: Recommendation, goal: Goal) -> str:
    winner, baseline = answer.winner, answer.baseline
    own = format_rate(winner.samples_per_second)
    alone = f"{own} samples/s ({format_spread(winner.measured.relative_spread)}){early_words(winner)}"
    if baseline is None:
        return f"{alone}; the baseline was not measured"
    if winner == baseline:
        return f"{alone}. {baseline_itself(answer, goal)}"
    rate = baseline.samples_per_second
    promise = None if answer.confirmation is None else answer.confirmation.promise
    if promise is not None:
        return promise_words(promise, rate)
    times = winner.samples_per_second / rate
    rates = f"{own} instead of {format_rate(rate)} samples/s"
    if answer.tie:
        return f"a tie with the baseline ({gain_words(times - 1)}, noise {format_percent(answer.noise)}): {rates}"
    if times < 1:
        return f"{rates}; the baseline cannot win: {why_not_eligible(baseline, goal) or 'it was stopped early'}"
    return f"{format_times(times)} the baseline, {format_spread(answer.noise)}: {rates}"


def _size(winner: Candidate, growth: Growth, confirmation: Confirmation | None) -> Iterator[Line]:
    own, count = growth.own_parameter_count, winner.parameter_count or 0
    times = "" if not own or count == own else f", {format_times(count / own)} the model's own {parameters_words(own)}"
    yield Line("size", f"{parameters_words(count)} parameters{times}")
    floor = format_rate(growth.floor_samples_per_second)
    spread = format_spread(winner.measured.relative_spread)
    rate = f"{format_rate(winner.samples_per_second)} samples/s ({spread}), at least {floor} were asked for"
    beside = _promised(confirmation)
    yield Line("speed", f"{rate}; {beside} the baseline at its own size" if beside else rate)


def _promised(confirmation: Confirmation | None) -> str:
    """``"in turn 1.66 times (±4.0%)"``: what was promised of a training beside the baseline; empty if nothing was."""
    if confirmation is None or confirmation.promise is None:
        return ""
    promise = confirmation.promise
    how = "one after the other" if confirmation.speedup is None else "in turn"
    return f"{how} {promised_times(promise)} ({format_times_spread(promise.low, promise.high, promise.value)})"


def _cost(
    winner: Candidate, baseline: Candidate | None, goal: Goal, confirmation: Confirmation | None
) -> Iterator[Line]:
    cost = cost_of(winner, goal)
    dollars, latency = f"{format_usd(cost.cost_usd * ITERATIONS)} for {ITERATIONS} iterations", cost.latency_seconds
    times = f"{format_seconds(latency)} an iteration ({format_spread(winner.measured.relative_spread)})"
    if baseline is not None and baseline != winner:
        plainly = cost_of(baseline, goal)
        dollars += f"; the baseline's cost {format_usd(plainly.cost_usd * ITERATIONS)}"
        times += f"; the baseline's takes {format_seconds(plainly.latency_seconds)}"
    if beside := _promised(confirmation):
        times += f"; {beside} the baseline's speed"
    yield Line("cost", dollars)
    yield Line("time", times)


def _confirmed(answer: Recommendation, beyond: str | None) -> Iterator[Line]:
    """Whether the emitted wrapper did what it should, and otherwise what to do."""
    confirmation = answer.confirmation
    if confirmation is None:
        return
    kept = confirmation.kept
    if confirmation.outcome in NOTHING_RAN and confirmation.reason:
        yield Line("confirmed", f"no: {confirmation.reason.rstrip('.')}", "yellow")
        if confirmation.outcome is Outcome.INTERRUPTED:
            yield Line("next", _CONTINUE)
    elif confirmation.outcome is not Outcome.OK or kept is None:
        detail = f": {confirmation.reason.rstrip('.')}" if confirmation.reason else ""
        yield Line("confirmed", f"no: run again, it ended as {confirmation.outcome.value}{detail}", "yellow")
        if confirmation.outcome.is_by_chance:
            yield Line("next", _CONTINUE)
    elif not confirmation.as_promised:
        yield Line("confirmed", f"no, {NOT_REPRODUCIBLE}: {missed_words(confirmation)}", "yellow")
        yield Line("next", what_to_do(confirmation), "yellow")
    elif beyond is not None:
        yield Line("confirmed", f"it runs, but it is {beyond}", "yellow")
    elif gain_is_open(answer):
        yield Line("confirmed", f"not yet: {_open_words(confirmation)}", "yellow")
        if not has_clear_turns(confirmation):
            yield Line("next", what_to_do(confirmation), "yellow")
    elif confirmation.speedup is not None and confirmation.promise is not None:
        yield Line("confirmed", f"yes: wrapper and {turns_words(confirmation)}", "green")
        if confirmation.is_unsteady:
            yield Line("next", what_to_do(confirmation), "yellow")
    else:
        # Beside a promise, the speed above is the confirmation's own.
        due = "this speed" if confirmation.promise is None else "what the search measured"
        due += "" if confirmation.drift is None else ", at the pace the machine had then"
        again = f"yes: in a fresh process it ran at {format_percent(confirmation.found_share or kept)} of {due}"
        yield Line("confirmed", f"{again} ({format_spread(confirmation.tolerated)} is noise)", "green")


def _open_words(confirmation: Confirmation) -> str:
    """What turns with the baseline came to that leave open which of the two is faster."""
    return f"wrapper and {turns_words(confirmation)}, {open_because(confirmation)}"


def missed_words(confirmation: Confirmation) -> str:
    """How far the run was from what was due, and what noise would explain."""
    due = format_percent(confirmation.found_share or 0.0)
    return f"it ran at {due} of its promise, and {format_spread(confirmation.tolerated)} would be noise"


def what_to_do(confirmation: Confirmation) -> str:
    """What to do about a machine whose measurements cannot be reproduced."""
    seen = f"{confirmation.other_load}; " if confirmation.other_load else ""
    return f"{seen}run the same command again with --wait-idle: it keeps what was measured and confirms once more"


def _larger_batch(answer: Recommendation) -> Iterator[Line]:
    """What a batch above the user's own asks for."""
    samples, baseline = answer.winner.policy.global_batch, answer.baseline
    if baseline is None or answer.growth is not None or samples <= (own := baseline.policy.global_batch):
        return
    yield Line("batch", f"{samples:,} samples a step, not {own:,}: new learning rate, or --global-batch {own}")


def _confirmed_peak(answer: Recommendation) -> int:
    again = None if answer.confirmation is None else answer.confirmation.measurement
    return 0 if again is None else again.memory.peak_bytes


def _files(files: Mapping[str, Path]) -> list[str]:
    """One line for each folder: ``"policy.yaml, wrapper.py in runs/gpt2"``, with the folder last to be copied."""
    by_folder: dict[Path, list[str]] = {}
    for path in files.values():
        by_folder.setdefault(path.parent, []).append(path.name)
    return [f"{', '.join(names)} in {folder}" for folder, names in by_folder.items()]


def _wrapped(line: Line) -> RenderableType:
    grid = Table.grid()
    grid.add_column(width=_LABELS, style="bold cyan", no_wrap=True)
    grid.add_column(ratio=1)
    grid.add_row(Text(line.label), Text(line.words, style=line.style))
    return grid
