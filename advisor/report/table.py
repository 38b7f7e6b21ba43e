"""The ranking of measured candidates, and the lists of the others, as rich renderables.

Measured values come from trials, predicted ones from the memory model; they appear in different tables, under headings
that say which they are.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.rule import Rule
from rich.text import Text

from advisor.decide.candidate import Candidate, Recommendation, Role
from advisor.decide.eligible import is_outpaced, why_not_eligible
from advisor.decide.floor import keeps
from advisor.decide.score import gain_over
from advisor.goal import Goal, GoalKind
from advisor.methods.setting import label_words
from advisor.report.cells import Folded, aligned, fitting, plain_table, spread_cell, two_lines
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
from advisor.text.units import format_bytes, format_rate
from advisor.trial.outcome import Outcome

__all__ = ["RankingTable", "not_measured_part", "not_measured_table", "refused_part", "refused_settings_table"]

_WIDE = 136
"""From this width on a policy and its measurements share a line."""

_COLUMNS = {"#": 3, "samples/s": 13, "vs base": 8, "batch": 11, "peak": 9, "fidelity": 10, "loss drift": 11}
"""Widths in the narrow form, 64 in all."""


@dataclass(frozen=True)
class RankingTable:
    """The best measured candidates, always including the winner, the baseline and the hand-tuned setting.

    Attributes:
        rows: How many of the best to show; others only if they are one of those three.
    """

    recommendation: Recommendation
    goal: Goal
    rows: int = 10

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """A table, or two lines for each candidate where that is too wide."""
        shown = self._shown()
        if options.max_width >= _WIDE:
            yield self._table(shown)
        else:
            yield Text("Measured", style="bold")
            columns = fitting(_COLUMNS, options.max_width)
            headings = aligned([Text(heading) for heading in columns], columns)
            if len(headings) + len("  role") <= options.max_width:
                headings.append("  role")
            headings.stylize("cyan")
            yield headings
            yield Rule(style="")
            for rank, candidate in shown:
                yield from self._two_lines(rank, candidate, options.max_width)
        hidden = len(self.recommendation.ranking) - len(shown)
        if hidden:
            lesser = "slower" if self.recommendation.growth is None else "smaller or slower"
            ranks = {rank for rank, _ in shown}
            first_hidden = next(rank for rank in itertools.count(1) if rank not in ranks)
            are = f" that {'was' if hidden == 1 else 'were'} {lesser}"
            won_a_tie = self.recommendation.ranking.index(self.recommendation.winner) + 1 > first_hidden
            yield Text(f"and {hidden:,} more{'' if won_a_tie else are}", style="dim")
        yield self._legend(shown)

    def _legend(self, shown: Sequence[tuple[int, Candidate]]) -> Text:
        shares = {of_each_share(one.policy) for _, one in shown} - {""}
        each = shares.pop() if len(shares) == 1 else " of each share of the data" if shares else ""
        size = "vs base: size of the model. " if self.goal.kind is GoalKind.BIGGER else ""
        return Text(
            f"{size}batch: micro-batch x accumulation steps{each}. ±: half the 95% interval. "
            f"Loss drift: from plain training, same seed and batches{drift_legend(one for _, one in shown)}.",
            style="dim",
        )

    def _shown(self) -> list[tuple[int, Candidate]]:
        answer = self.recommendation
        special = (answer.winner, answer.baseline, answer.hand_tuned)
        ranked = enumerate(answer.ranking, 1)
        return [(rank, candidate) for rank, candidate in ranked if rank <= self.rows or candidate in special]

    def _table(self, shown: Sequence[tuple[int, Candidate]]) -> RenderableType:
        table = plain_table("Measured")
        number, *headings = _COLUMNS
        table.add_column(number, justify="right", no_wrap=True)
        table.add_column("policy")
        for heading in headings:
            table.add_column(heading, justify="left" if heading == "fidelity" else "right", no_wrap=True)
        table.add_column("role", max_width=22)
        for rank, candidate in shown:
            place, *values = self._values(rank, candidate)
            policy = Folded(candidate_words(candidate))
            table.add_row(place, policy, *values, self._role(candidate), style=self._style(candidate))
        return table

    def _two_lines(self, rank: int, candidate: Candidate, width: int) -> RenderResult:
        columns = fitting(_COLUMNS, width)
        cells = dict(zip(_COLUMNS, self._values(rank, candidate), strict=True))
        number = cells["#"]
        cells["#"] = Text()
        return two_lines(
            aligned([number], columns),
            candidate_words(candidate),
            aligned([cells[heading] for heading in columns], columns),
            self._role(candidate),
            style=self._style(candidate),
            gap=2,
            width=width,
        )

    def _values(self, rank: int, candidate: Candidate) -> list[Text]:
        return [
            Text(str(rank)),
            Text.assemble(rate_words(candidate), spread_cell(candidate)),
            self._gain(candidate),
            Text(batch_words(candidate.policy)),
            Text(format_bytes(candidate.measured.memory.peak_bytes)),
            Text(candidate.fidelity.value),
            drift_cell(candidate),
        ]

    def _gain(self, candidate: Candidate) -> Text:
        baseline = self.recommendation.baseline
        if candidate == baseline:
            return Text("base", style="dim")
        share = None if baseline is None else gain_over(candidate, baseline, self.goal)
        if share is None:
            return Text("-")
        return Text(gain_words(share), style="green" if share > 0 and self._counts(candidate, share) else "")

    def _counts(self, candidate: Candidate, share: float) -> bool:
        """Whether a gain is one: beyond the noise, or for a size, which has none, at or above the floor."""
        growth = self.recommendation.growth
        if growth is not None:
            return keeps(candidate, self.goal, growth.floor_samples_per_second)
        return share > self.recommendation.noise

    def _role(self, candidate: Candidate) -> Text:
        text = Text()
        roles = ["winner"] if candidate == self.recommendation.winner else []
        if candidate.role is not Role.SEARCHED:
            roles.append(candidate.role.value)
        text.append(", ".join(roles), style=self._style(candidate) or "bold")
        why_not = why_not_eligible(candidate, self.goal)
        if why_not is not None:
            text.append("; " if roles else "").append(f"cannot win: {why_not}", style="red")
        elif is_outpaced(candidate):
            text.append("; " if roles else "").append("stopped early", style="dim")
        return text

    def _style(self, candidate: Candidate) -> str:
        return "bold green" if candidate == self.recommendation.winner else ""


def not_measured_part(answer: Recommendation, *, verbose: bool) -> RenderableType | None:
    """What has no measurement: all of it, or one line for each outcome with the count; ``None`` if there is none."""
    if not answer.not_measured:
        return None
    if verbose:
        return not_measured_table(answer.not_measured, rows=len(answer.not_measured))
    reasons: dict[str, list[str]] = {}
    for one in sorted(answer.not_measured, key=_best_expected_first):
        reasons.setdefault(one.outcome.value, []).append(_expected_words(one) or one.reason)
    return _in_short("Not measured at length", reasons)


def _expected_words(candidate: Candidate) -> str:
    """What one that was compared is expected to reach, and which it is; its reason says that of no name."""
    if candidate.comparison is None:
        return ""
    rate = format_rate(candidate.comparison.expected_samples_per_second)
    return f"{rate} samples/s expected at most, of {' + '.join(candidate_words(candidate))}"


def refused_part(answer: Recommendation, *, verbose: bool) -> RenderableType | None:
    """Settings that no policy could use here: all of them, or one line for each method with the count; or ``None``."""
    if not answer.refused_settings:
        return None
    if verbose:
        return refused_settings_table(answer.refused_settings)
    reasons: dict[str, list[str]] = {}
    for label, reason in answer.refused_settings.items():
        reasons.setdefault(label.partition("(")[0], []).append(reason)
    return _in_short("Not applicable here", reasons)


def _in_short(title: str, reasons: Mapping[str, Sequence[str]]) -> RenderableType:
    """One line for each group, cut at the edge: how many there are, and the first reason."""
    lines = [Text.assemble((title, "bold"), (" (-v lists all, with their reasons)", "dim"))]
    for name, some in reasons.items():
        count = f" ({len(some)})" if len(some) > 1 else ""
        first = next((one for one in some if one), "")
        lines.append(Text(f"  {name}{count}{f': {first}' if first else ''}", no_wrap=True, overflow="ellipsis"))
    return Group(*lines)


def not_measured_table(candidates: Sequence[Candidate], *, rows: int = 12) -> RenderableType:
    """Candidates that were refused, screened, or failed; those with the same end share a row.

    Args:
        candidates: Candidates without a measurement.
        rows: Most rows to show.
    """
    by_end: dict[tuple[str, Outcome, str], list[Candidate]] = {}
    for candidate in sorted(candidates, key=_best_expected_first):
        key = (" + ".join(candidate_words(candidate)), candidate.outcome, candidate.reason)
        by_end.setdefault(key, []).append(candidate)
    groups = list(by_end.values())[:rows]
    predicted = any(one.predicted_peak_bytes is not None for group in groups for one in group)
    compared = any(one.comparison is not None for one in candidates)
    table = plain_table(
        "Compared by short steps, or not measured" if compared else "Tried or considered, not measured", expand=True
    )
    table.add_column("policy", ratio=5)
    table.add_column("batch", justify="right", no_wrap=True)
    if predicted:
        table.add_column("predicted\npeak", justify="right", no_wrap=True)
    table.add_column("outcome and reason", ratio=6)
    for group in groups:
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
    hidden = len(by_end) - len(groups)
    return Group(table, Text(f"and {hidden} more", style="dim")) if hidden else table


def refused_settings_table(refused: Mapping[str, str]) -> RenderableType:
    """Settings that no policy could use here, with reasons; settings with the same reason share a row."""
    by_reason: dict[str, list[str]] = {}
    for label, reason in refused.items():
        by_reason.setdefault(reason, []).append(label_words(label))
    table = plain_table("Not applicable here")
    table.add_column("method")
    table.add_column("why")
    for reason, labels in by_reason.items():
        table.add_row(Folded(labels, separator=", "), Text(reason))
    return table


def _best_expected_first(candidate: Candidate) -> float:
    """Those that were compared come first."""
    comparison = candidate.comparison
    return 0.0 if comparison is None else -comparison.expected_samples_per_second
