"""The live display on standard error, or plain lines if that is not a terminal."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

import msgspec
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from advisor.decide.candidate import Candidate
from advisor.goal import GoalKind
from advisor.policy.policy import Policy
from advisor.report.console import speaks_unicode
from advisor.report.progress import Progress
from advisor.report.wording import (
    batch_words,
    gain_words,
    on_devices,
    outcome_style,
    parameters_words,
    rate_words,
    result_words,
    trial_words,
)
from advisor.text.units import format_count, format_duration, format_rate

__all__ = ["LiveProgress", "PlainProgress", "open_progress"]

_RECENT = 5


def open_progress(console: Console) -> Progress:
    """The display that suits a console: live in a terminal, lines elsewhere."""
    return LiveProgress(console) if console.is_terminal and not console.is_dumb_terminal else PlainProgress(console)


class PlainProgress(Progress):
    """One line per event, for pipes and log files; ``clock`` counts seconds."""

    def __init__(self, console: Console, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._console = console
        self._clock = clock
        self._started = clock()
        self._goal = ""

    def begin(self, *, workload: str, device: str, goal: str, time_limit_seconds: float, trials: int) -> None:
        """One line that says what is asked."""
        self._started = self._clock()
        self._goal = goal
        self._line(
            f"{workload} on {device}, goal {goal}: at most {format_count(trials, 'trial')} in "
            f"{format_duration(time_limit_seconds)}"
        )

    def stage(self, text: str) -> None:
        """One line."""
        self._line(text)

    def trial_ended(
        self, number: int, candidate: Candidate, *, best: Candidate | None, baseline: Candidate | None
    ) -> None:
        """One line with the outcome."""
        mark = _best_mark(candidate, best, baseline, self._goal)
        self._line(f"trial {number}: {trial_words(candidate)}: {result_words(candidate)}{mark}")

    def note(self, text: str) -> None:
        """One line."""
        self._line(f"note: {text}")

    def _line(self, text: str) -> None:
        clock = f"[{format_duration(self._clock() - self._started):>6}] "
        # One event, one line, however long: logs are searched by line.
        self._console.print(Text(clock + text), soft_wrap=True)


class _State(msgspec.Struct, frozen=True):
    """What the display shows."""

    title: str = ""
    goal: str = ""
    doing: str = "starting"
    policy: str = ""
    time_limit_seconds: float = 0.0
    trials: int = 0
    finished: int = 0
    best: Candidate | None = None
    baseline: Candidate | None = None


class LiveProgress(Progress):
    """A few lines that are redrawn: the current trial, the best so far, the time left, recent outcomes."""

    def __init__(self, console: Console, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._console = console
        self._clock = clock
        self._started = clock()
        self._doing_since = self._started
        self._state = _State()
        self._recent: deque[tuple[int, Candidate]] = deque(maxlen=_RECENT)
        self._spinner = Spinner("dots" if speaks_unicode(console) else "line", style="cyan")
        self._live = Live(
            console=console,
            get_renderable=self._render,
            refresh_per_second=4,
            transient=True,
            # The user's model prints into the worker's log; our own prints must not be swallowed here.
            redirect_stdout=False,
            redirect_stderr=False,
        )

    def __enter__(self) -> LiveProgress:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def begin(self, *, workload: str, device: str, goal: str, time_limit_seconds: float, trials: int) -> None:
        """Set the heading and start the clock."""
        self._started = self._doing_since = self._clock()
        title = f"{workload} on {device}, goal {goal}"
        self._change(title=title, goal=goal, time_limit_seconds=time_limit_seconds, trials=trials)

    def stage(self, text: str) -> None:
        """Show what is under way."""
        self._doing_since = self._clock()
        self._change(doing=text, policy="")

    def waited(self, seconds: float) -> None:
        """Show as much time left as before."""
        self._started += seconds

    def trial_started(self, number: int, policy: Policy, doing: str) -> None:
        """Show the trial under way."""
        self._doing_since = self._clock()
        # The policy comes last because the terminal's edge may cut it off.
        methods = policy.words + on_devices(policy)
        self._change(doing=f"trial {number}, {doing}", policy=f": {methods}, batch {batch_words(policy)}")

    def trial_ended(
        self, number: int, candidate: Candidate, *, best: Candidate | None, baseline: Candidate | None
    ) -> None:
        """Add the outcome to the recent ones."""
        self._recent.append((number, candidate))
        self._change(finished=number, best=best, baseline=baseline)
        self.stage("choosing the next trial")

    def note(self, text: str) -> None:
        """Print above the display, where it stays."""
        self._console.print(Text.assemble(("note: ", "yellow"), text))

    def _change(self, **changes: str | int | float | Candidate | None) -> None:
        self._state = msgspec.structs.replace(self._state, **changes)

    def _render(self) -> RenderableType:
        now, state = self._clock(), self._state
        spent = now - self._started
        left = format_duration(max(0.0, state.time_limit_seconds - spent))
        clock = _cut(f"{left} left, ", (f"{state.finished} of at most {format_count(state.trials, 'trial')}", "dim"))
        doing = _cut(state.doing, (f" ({format_duration(now - self._doing_since)})", "dim"), state.policy)
        parts: list[RenderableType] = [
            _cut((state.title, "bold")),
            _beside(ProgressBar(total=max(state.time_limit_seconds, 1e-9), completed=spent, width=24), clock),
            _beside(self._spinner, doing),
            self._best_line(),
        ]
        if self._recent:
            parts.append(self._recent_table())
        return Group(*parts)

    def _best_line(self) -> Text:
        best, text = self._state.best, _cut()
        if best is None:
            return text.append("no measurement yet", style="dim")
        text.append("best ").append(f"{rate_words(best)} samples/s", style="bold green")
        gained = _gain_over(best, self._state.baseline, self._state.goal)
        if gained:
            text.append(f" ({gained})")
        return text.append(f"  {trial_words(best)}")

    def _recent_table(self) -> Table:
        table = Table.grid(padding=(0, 2), expand=True)
        table.add_column(justify="right", no_wrap=True, style="dim")
        table.add_column(ratio=3, no_wrap=True, overflow="ellipsis")
        table.add_column(ratio=2, no_wrap=True, overflow="ellipsis")
        for number, candidate in reversed(self._recent):
            result = Text(result_words(candidate), style=outcome_style(candidate.outcome))
            table.add_row(str(number), Text(trial_words(candidate)), result)
        return table


def _cut(*parts: str | tuple[str, str]) -> Text:
    """One line, cut at the terminal's edge."""
    return Text.assemble(*parts, no_wrap=True, overflow="ellipsis")


def _beside(left: RenderableType, right: RenderableType) -> Table:
    line = Table.grid(padding=(0, 1))
    line.add_row(left, right)
    return line


def _gain_over(candidate: Candidate, baseline: Candidate | None, goal: str) -> str:
    if baseline is None or baseline == candidate or baseline.measurement is None or candidate.measurement is None:
        return ""
    if goal == GoalKind.BIGGER.value:
        return ""  # throughputs of different models do not compare
    rate, reference = candidate.samples_per_second, baseline.samples_per_second
    if goal == GoalKind.CHEAPEST.value:
        # At one price and one global batch, device-seconds per sample are the cost.
        change = candidate.policy.gpu_count / rate / (baseline.policy.gpu_count / reference) - 1
        return f"cost {gain_words(change)} vs baseline"
    return f"{gain_words(rate / reference - 1)} vs baseline at {format_rate(reference)}"


def _best_mark(candidate: Candidate, best: Candidate | None, baseline: Candidate | None, goal: str) -> str:
    if best is None or candidate != best:
        return ""
    if candidate.parameter_count is not None:
        return f", largest so far ({parameters_words(candidate.parameter_count)} parameters)"
    gained = _gain_over(candidate, baseline, goal)
    return f", best so far{f' ({gained})' if gained else ''}"
