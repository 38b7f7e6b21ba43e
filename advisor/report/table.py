"""The ranking of measured candidates, and the lists of the others, as rich renderables.

Measured values come from trials, predicted ones from the memory model; they appear in different tables, under headings
that say which they are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.rule import Rule
from rich.text import Text

from advisor.decide.candidate import Candidate, Recommendation, Role
from advisor.decide.eligible import is_outpaced, why_not_eligible
from advisor.decide.floor import keeps
from advisor.decide.score import gain_over
from advisor.goal import Goal, GoalKind
from advisor.report.cells import Folded, aligned, plain_table, two_lines
from advisor.report.comparison import drift_cell, drift_legend
from advisor.report.wording import (
    batch_words,
    candidate_words,
    gain_words,
    of_each_share,
    outcome_style,
    rate_words,
    role_words,
)
from advisor.text.units import format_bytes, format_spread

__all__ = ["NotMeasuredTable", "RankingTable", "RefusedSettingsTable"]

_WIDE = 136
"""From this width on a policy and its measurements share a line."""

_NOT_MEASURED = "Tried or considered, not measured"

_ROWS = 10
_REASON_ROWS = 12

_COLUMNS = {"#": 3, "samples/s": 13, "vs base": 8, "batch": 10, "peak": 9, "fidelity": 10, "loss drift": 11}
"""Widths in the narrow form, 64 in all."""


class RankingTable:
    """The best measured candidates, always including the winner, the baseline and the hand-tuned setting.

    Args:
        recommendation: The answer.
        goal: The goal.
        rows: How many of the best to show; others only if they are one of those three.
    """

    def __init__(self, recommendation: Recommendation, goal: Goal, *, rows: int = _ROWS) -> None:
        self._recommendation = recommendation
        self._goal = goal
        self._rows = rows

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Render for the width at hand: a table, or two lines for each candidate where that is too wide."""
        shown = self._shown()
        if options.max_width >= _WIDE:
            yield self._table(shown)
        else:
            yield Text("Measured", style="bold")
            headings = aligned([Text(heading) for heading in _COLUMNS], _COLUMNS).append("  role")
            headings.stylize("cyan")
            yield headings
            yield Rule(style="")
            for rank, candidate in shown:
                yield from self._two_lines(rank, candidate, options.max_width)
        hidden = len(self._recommendation.ranking) - len(shown)
        if hidden:
            lesser = "slower" if self._recommendation.growth is None else "smaller or slower"
            yield Text(f"and {hidden} more that were {lesser}", style="dim")
        yield self._legend(shown)

    def _legend(self, shown: Sequence[tuple[int, Candidate]]) -> Text:
        shares = {of_each_share(one.policy) for _, one in shown} - {""}
        each = shares.pop() if len(shares) == 1 else " of each share of the data" if shares else ""
        size = "vs base: size of the model. " if self._goal.kind is GoalKind.BIGGER else ""
        return Text(
            f"{size}batch: micro-batch x accumulation steps{each}. ±: half the 95% interval. "
            f"Loss drift: from plain training, same seed and batches{drift_legend(one for _, one in shown)}.",
            style="dim",
        )

    def _shown(self) -> list[tuple[int, Candidate]]:
        answer = self._recommendation
        special = (answer.winner, answer.baseline, answer.hand_tuned)
        ranked = enumerate(answer.ranking, 1)
        return [(rank, candidate) for rank, candidate in ranked if rank <= self._rows or candidate in special]

    def _table(self, shown: Sequence[tuple[int, Candidate]]) -> RenderableType:
        table = plain_table("Measured")
        number, *headings = _COLUMNS
        table.add_column(number, justify="right", no_wrap=True)
        table.add_column("policy", ratio=1)
        for heading in headings:
            table.add_column(heading, justify="left" if heading == "fidelity" else "right", no_wrap=True)
        table.add_column("role", max_width=22)
        for rank, candidate in shown:
            place, *values = self._values(rank, candidate)
            policy = Folded(candidate_words(candidate))
            table.add_row(place, policy, *values, self._role(candidate), style=self._style(candidate))
        table.expand = True
        return table

    def _two_lines(self, rank: int, candidate: Candidate, width: int) -> RenderResult:
        number, *values = self._values(rank, candidate)
        return two_lines(
            aligned([number], _COLUMNS),
            candidate_words(candidate),
            aligned([Text(), *values], _COLUMNS),
            self._role(candidate),
            style=self._style(candidate),
            gap=2,
            width=width,
        )

    def _values(self, rank: int, candidate: Candidate) -> list[Text]:
        measurement = candidate.measurement
        assert measurement is not None
        # If timing was ended early, its few steps say nothing about their spread.
        spread = "early" if is_outpaced(candidate) else format_spread(measurement.relative_spread)
        return [
            Text(str(rank)),
            Text.assemble(rate_words(candidate), (f" {spread:>5}", "dim")),
            self._gain(candidate),
            Text(batch_words(candidate.policy)),
            Text(format_bytes(measurement.memory.peak_bytes)),
            Text(candidate.fidelity.value),
            drift_cell(candidate),
        ]

    def _gain(self, candidate: Candidate) -> Text:
        baseline = self._recommendation.baseline
        if baseline is None:
            return Text("-")
        if candidate == baseline:
            return Text("base", style="dim")
        share = gain_over(candidate, baseline, self._goal)
        if share is None:
            return Text("-")
        return Text(gain_words(share), style="green" if share > 0 and self._counts(candidate, share) else "")

    def _counts(self, candidate: Candidate, share: float) -> bool:
        """Whether a gain is one: beyond the noise, or for a size, which has none, at or above the floor."""
        growth = self._recommendation.growth
        if growth is not None:
            return keeps(candidate, self._goal, growth.floor_samples_per_second)
        return share > self._recommendation.noise

    def _role(self, candidate: Candidate) -> Text:
        text = Text()
        roles = ["winner"] if candidate == self._recommendation.winner else []
        if candidate.role is not Role.SEARCHED:
            roles.append(candidate.role.value)
        text.append(", ".join(roles), style=self._style(candidate) or "bold")
        why_not = why_not_eligible(candidate, self._goal)
        if why_not is not None:
            text.append("; " if roles else "").append(f"cannot win: {why_not}", style="red")
        elif is_outpaced(candidate):
            text.append("; " if roles else "").append("stopped early", style="dim")
        return text

    def _style(self, candidate: Candidate) -> str:
        return "bold green" if candidate == self._recommendation.winner else ""


class NotMeasuredTable:
    """Candidates that were refused, screened, or failed; those with the same end share a row.

    Args:
        candidates: Candidates without a measurement.
        rows: Most rows to show.
    """

    def __init__(self, candidates: Sequence[Candidate], *, rows: int = _REASON_ROWS) -> None:
        self._groups: dict[tuple[str, str, str], list[Candidate]] = {}
        for candidate in sorted(candidates, key=_best_expected_first):
            key = (" + ".join(candidate_words(candidate)), candidate.outcome.value, candidate.reason)
            self._groups.setdefault(key, []).append(candidate)
        self._rows = rows

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Render for the width at hand; nothing when every candidate was measured."""
        if not self._groups:
            return
        groups = list(self._groups.values())
        predicted = any(one.predicted_peak_bytes is not None for group in groups[: self._rows] for one in group)
        compared = any(one.comparison is not None for group in groups for one in group)
        table = plain_table("Compared by short steps, or not measured" if compared else _NOT_MEASURED)
        table.add_column("policy", ratio=5)
        table.add_column("batch", justify="right", no_wrap=True)
        if predicted:
            table.add_column("predicted\npeak", justify="right", no_wrap=True)
        table.add_column("outcome and reason", ratio=6)
        for group in groups[: self._rows]:
            first = group[0]
            batches = list(dict.fromkeys(batch_words(one.policy) for one in group))
            needs = [one.predicted_peak_bytes for one in group if one.predicted_peak_bytes is not None]
            outcome = Text(first.outcome.value, style=outcome_style(first.outcome))
            *words, last = candidate_words(first)
            cells: list[RenderableType] = [
                Folded([*words, last + role_words(first)]),
                Text("\n".join([*batches[:3], *(["..."] if len(batches) > 3 else [])])),
            ]
            if predicted:
                cells.append(format_bytes(min(needs)) if needs else "-")
            table.add_row(*cells, outcome.append(f": {first.reason}", style="default") if first.reason else outcome)
        table.expand = True
        yield table
        hidden = len(groups) - self._rows
        if hidden > 0:
            yield Text(f"and {hidden} more", style="dim")


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
        table = plain_table(self._title)
        table.add_column("method", max_width=options.max_width // 2)
        table.add_column("why", ratio=1)
        for reason, labels in self._groups.items():
            table.add_row(Folded(labels, separator=", "), Text(reason))
        yield table


def _best_expected_first(candidate: Candidate) -> float:
    """Those that were compared come first."""
    comparison = candidate.comparison
    return 0.0 if comparison is None else -comparison.expected_samples_per_second
