"""The ranking of what was measured, and the list of what was not, as rich tables.

Measured figures come from trials, predicted ones from the memory model; they stand in different tables, under
headings that say which they are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich import box
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from advisor.decide.candidate import Candidate, Recommendation, Role
from advisor.decide.eligible import is_outpaced, why_not_eligible
from advisor.decide.score import gain
from advisor.problem.goal import Goal
from advisor.problem.units import format_bytes, format_count, format_spread
from advisor.report.wording import batch_words, drift_words, gain_words, method_words, outcome_style, rate_words

__all__ = ["NotMeasuredTable", "RankingTable", "RefusedSettingsTable"]

_WIDE = 112
"""From this width on every figure has its own column."""

_ROWS = 10
_REASON_ROWS = 12


class RankingTable:
    """Every measured candidate, best first; the winner, the baseline and the hand-tuned setting always among them.

    Args:
        recommendation: The answer.
        goal: The goal.
        rows: Most candidates to show besides those.
    """

    def __init__(self, recommendation: Recommendation, goal: Goal, *, rows: int = _ROWS) -> None:
        self._recommendation = recommendation
        self._goal = goal
        self._rows = rows

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Render for the width at hand."""
        wide = options.max_width >= _WIDE
        table = _table("Measured", options)
        table.add_column("#", justify="right", no_wrap=True)
        table.add_column("policy", ratio=1, min_width=18)
        table.add_column("batch", justify="right", no_wrap=True)
        table.add_column("samples/s", justify="right", no_wrap=True)
        table.add_column("vs base", justify="right", no_wrap=True)
        table.add_column("peak memory" if wide else "peak", justify="right", no_wrap=True)
        table.add_column("fidelity" if wide else "fidelity,\nloss drift", no_wrap=True)
        if wide:
            table.add_column("loss drift", justify="right", no_wrap=True)
            table.add_column("role", max_width=34)
        shown = self._shown()
        for rank, candidate in shown:
            table.add_row(*self._cells(rank, candidate, wide), style=self._style(candidate))
        yield table
        yield from self._footnotes(len(shown))

    def _shown(self) -> list[tuple[int, Candidate]]:
        answer = self._recommendation
        special = (answer.winner, answer.baseline, answer.hand_tuned)
        return [
            (rank, candidate)
            for rank, candidate in enumerate(answer.ranking, 1)
            if rank <= self._rows or any(candidate is one or candidate == one for one in special)
        ]

    def _cells(self, rank: int, candidate: Candidate, wide: bool) -> list[RenderableType]:
        measurement = candidate.measurement
        assert measurement is not None
        rate = Text(rate_words(candidate))
        # The time beside a rate that was ended early is no interval: three steps say nothing about their spread.
        spread = "early" if is_outpaced(candidate) else format_spread(measurement.relative_spread)
        rate.append(f" {spread}" if wide else f"\n{spread}", style="dim")
        fidelity = Text(candidate.fidelity.value)
        drift = Text(drift_words(candidate), style="red" if drift_words(candidate).endswith("!") else "")
        if not wide:
            fidelity.append("\n").append(drift)
        remarks = self._remarks(candidate)
        policy = _policy_text(candidate)
        if not wide and remarks.plain:
            policy.append("\n").append(remarks)
        cells: list[RenderableType] = [
            str(rank),
            policy,
            batch_words(candidate.policy),
            rate,
            self._gain(candidate),
            format_bytes(measurement.memory.peak_bytes),
            fidelity,
        ]
        return [*cells, drift, remarks] if wide else cells

    def _gain(self, candidate: Candidate) -> Text:
        baseline = self._recommendation.baseline
        if baseline is None:
            return Text("-")
        if candidate == baseline:
            return Text("base", style="dim")
        assert candidate.measurement is not None
        assert baseline.measurement is not None
        share = gain(candidate.measurement.samples_per_second, baseline.measurement.samples_per_second, self._goal.kind)
        return Text(gain_words(share), style="green" if share > self._recommendation.noise else "")

    def _remarks(self, candidate: Candidate) -> Text:
        text = Text()
        roles = []
        if candidate == self._recommendation.winner:
            roles.append("winner")
        if candidate.role is not Role.SEARCHED:
            roles.append(candidate.role.value)
        text.append(", ".join(roles), style="bold")
        why_not = why_not_eligible(candidate, self._goal)
        if why_not is not None:
            text.append("; " if roles else "").append(f"cannot win: {why_not}", style="red")
        elif is_outpaced(candidate):
            text.append("; " if roles else "").append("stopped early: slower", style="dim")
        return text

    def _style(self, candidate: Candidate) -> str:
        return "bold green" if candidate == self._recommendation.winner else ""

    def _footnotes(self, shown: int) -> RenderResult:
        answer = self._recommendation
        hidden = len(answer.ranking) - shown
        if hidden:
            yield Text(f"  and {hidden} slower ones", style="dim")


class NotMeasuredTable:
    """Candidates that were refused, screened, or failed; those that ended alike share a row.

    Args:
        candidates: Candidates without a measurement.
        rows: Most rows to show.
    """

    def __init__(self, candidates: Sequence[Candidate], *, rows: int = _REASON_ROWS) -> None:
        self._groups: dict[tuple[str, str, str], list[Candidate]] = {}
        for candidate in candidates:
            key = (candidate.policy.label, candidate.outcome.value, candidate.reason)
            self._groups.setdefault(key, []).append(candidate)
        self._rows = rows

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Render for the width at hand; nothing when every candidate was measured."""
        if not self._groups:
            return
        table = _table("Tried or considered, not measured", options)
        table.add_column("policy", ratio=2, min_width=18)
        table.add_column("batch", justify="right", no_wrap=True)
        table.add_column("outcome", min_width=8, max_width=13)
        predicted = any(one.predicted_peak_bytes is not None for group in self._groups.values() for one in group)
        if predicted:
            table.add_column("predicted\npeak", justify="right", no_wrap=True)
        table.add_column("why", ratio=3)
        for group in list(self._groups.values())[: self._rows]:
            first = group[0]
            batches = list(dict.fromkeys(batch_words(one.policy) for one in group))
            needs = [one.predicted_peak_bytes for one in group if one.predicted_peak_bytes is not None]
            cells: list[RenderableType] = [
                _policy_text(first),
                "\n".join(batches[:3]) + ("\n..." if len(batches) > 3 else ""),
                Text(first.outcome.value, style=outcome_style(first.outcome)),
            ]
            if predicted:
                cells.append(format_bytes(min(needs)) if needs else "-")
            table.add_row(*cells, Text(first.reason or "-"))
        yield table
        hidden = len(self._groups) - self._rows
        if hidden > 0:
            yield Text(f"  and {format_count(hidden, 'more')[:-1] if hidden == 1 else f'{hidden} more'}", style="dim")


class RefusedSettingsTable:
    """Settings that no policy could use here, with reasons; settings with the same reason share a row.

    Args:
        refused: Method or setting -> reason.
        title: Heading of the table.
    """

    def __init__(self, refused: Mapping[str, str], *, title: str = "Not applicable here") -> None:
        self._groups: dict[str, list[str]] = {}
        for label, reason in refused.items():
            self._groups.setdefault(reason, []).append(label)
        self._title = title

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Render for the width at hand; nothing when everything applies."""
        if not self._groups:
            return
        table = _table(self._title, options)
        table.add_column("method", ratio=2, min_width=18)
        table.add_column("why", ratio=4)
        for reason, labels in self._groups.items():
            table.add_row(Text("\n".join(labels)), Text(reason))
        yield table


def _table(title: str, options: ConsoleOptions) -> Table:
    # A rule below the heading is enough; vertical lines would cost a fifth of 80 columns.
    return Table(
        title=title,
        title_justify="left",
        title_style="bold",
        header_style="bold cyan",
        box=box.SIMPLE_HEAD,
        padding=(0, 1),
        pad_edge=False,
        expand=False,
        show_edge=False,
        width=min(options.max_width, 140),
        row_styles=(),
    )


def _policy_text(candidate: Candidate) -> Text:
    """One method per line, so that a combination is read like a list."""
    return Text("\n+ ".join(method_words(use) for use in candidate.policy.methods) or "plain")
