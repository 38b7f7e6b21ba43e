"""The cost-latency frontier as a table, and below it the other policies with reasons."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.rule import Rule
from rich.text import Text

from advisor.decide.candidate import Candidate, Recommendation, Role
from advisor.decide.cost import cost_of
from advisor.decide.eligible import is_outpaced, why_not_eligible
from advisor.goal import Goal
from advisor.hardware.mesh import DATA_ONLY
from advisor.report.cells import Folded, Unbroken, aligned, fitting, plain_table, spread_cell, two_lines
from advisor.report.comparison import drift_cell, drift_legend
from advisor.report.points import ITERATIONS, Entry, entries, worse_words
from advisor.report.wording import batch_words, meshed_words, role_words
from advisor.text.units import (
    format_bytes,
    format_count,
    format_duration,
    format_joules,
    format_seconds,
    format_usd,
)

__all__ = ["DOMINATED_ROWS", "FrontierTable"]

DOMINATED_ROWS = 8
"""Dominated points that are shown, besides the baseline and the hand-tuned setting."""

_COLUMNS = {
    "#": 4, "GPUs": 5, "latency": 14, "$/1000": 9, "energy": 9, "batch": 9, "peak": 9, "fidelity": 10, "drift": 8
}  # fmt: skip
"""Widths, 77 in all, and 68 where energy was not measured: at 80 columns that leaves room for a short role."""


_OTHERS = "Not on the frontier"
_BESIDE = 80
"""Columns of a terminal at which reasons have room beside the figures."""


def _methods(candidate: Candidate) -> list[str]:
    *methods, last = meshed_words(candidate.policy)
    return [*methods, last + role_words(candidate)]


class FrontierTable:
    """The points of the frontier, the pick in brackets, then the dominated points and what may not win."""

    def __init__(self, recommendation: Recommendation, goal: Goal) -> None:
        assert recommendation.frontier is not None, "only the goal 'cheapest' has a frontier"
        self._answer = recommendation
        self._frontier = recommendation.frontier
        self._goal = goal
        self._entries = entries(recommendation, dominated=DOMINATED_ROWS)
        energy = any(entry.point.joules is not None for entry in self._entries)
        self._known = {heading: width for heading, width in _COLUMNS.items() if energy or heading != "energy"}
        self._columns: Mapping[str, int] = self._known

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Text("Frontier: nothing measured is both faster and cheaper", style="bold")
        self._columns = fitting(self._known, options.max_width)
        headings = aligned([Text(heading) for heading in self._columns], self._columns)
        headings.stylize("cyan")
        yield headings
        yield Rule(style="")
        for entry in self._entries:
            if entry.dominated is None:
                yield from self._point(entry, options.max_width)
        yield Text()
        barred = [one for one in self._answer.ranking if why_not_eligible(one, self._goal) is not None]
        dominated = [entry for entry in self._entries if entry.dominated is not None]
        if dominated or barred:
            rows = [*self._why_not(dominated, barred[:DOMINATED_ROWS])]
            yield from self._below(rows, options.max_width) if options.max_width < _BESIDE else [self._beside(rows)]
        hidden = len(self._frontier.dominated) - len(dominated) + max(0, len(barred) - DOMINATED_ROWS)
        if hidden:
            yield Text(f"and {hidden} more that are worse or may not win", style="dim")
        yield self._legend()

    def _point(self, entry: Entry, width: int) -> RenderResult:
        picked = entry.number - 1 == self._frontier.pick
        style = "bold green" if picked else ""
        return two_lines(
            aligned([Text(f"[{entry.number}]" if picked else str(entry.number))], self._columns),
            meshed_words(entry.point.policy),
            aligned([Text(), *self._values(entry)], self._columns),
            Text(self._role(entry), style=style or "bold"),
            style=style,
            gap=1,
            width=width,
        )

    def _values(self, entry: Entry) -> list[Text]:
        candidate, point = entry.candidate, entry.point
        cells = {
            "GPUs": Text(str(point.policy.gpu_count)),
            "latency": Text.assemble(format_seconds(point.latency_seconds), spread_cell(candidate)),
            "$/1000": Text(format_usd(entry.usd)),
            "energy": Text("-" if point.joules is None else format_joules(point.joules)),
            "batch": Text(batch_words(point.policy)),
            "peak": Text(format_bytes(candidate.measured.memory.peak_bytes)),
            "fidelity": Text(candidate.fidelity.value),
            "drift": drift_cell(candidate),
        }
        return [cells[heading] for heading in self._columns if heading != "#"]

    def _role(self, entry: Entry) -> str:
        roles = ["picked"] if entry.number - 1 == self._frontier.pick else []
        if entry.number - 1 == self._frontier.knee and len(self._frontier.points) > 1:
            roles.append("knee")
        if entry.candidate.role is not Role.SEARCHED:
            roles.append(entry.candidate.role.value)
        iterations = self._goal.preference.iterations
        if iterations is not None:
            time = format_duration(entry.point.latency_seconds * iterations)
            cost = format_usd(entry.point.cost_usd * iterations)
            roles.append(f"{format_count(iterations, 'iteration')}: {time}, {cost}")
        return ", ".join(roles)

    def _why_not(
        self, dominated: Sequence[Entry], barred: Sequence[Candidate]
    ) -> Iterator[tuple[str, Candidate, Text]]:
        """Number, policy and reason of each that is not on the frontier."""
        for entry in dominated:
            yield str(entry.number), entry.candidate, Text(worse_words(entry, self._answer))
        for candidate in barred:
            yield "-", candidate, Text(f"cannot win: {why_not_eligible(candidate, self._goal)}", style="red")

    def _beside(self, rows: Sequence[tuple[str, Candidate, Text]]) -> RenderableType:
        table = plain_table(_OTHERS, expand=True)
        table.add_column("#", no_wrap=True)
        table.add_column("GPUs", justify="right", no_wrap=True)
        table.add_column("policy", ratio=5)
        for heading in ("batch", "latency", "$/1000"):
            table.add_column(heading, justify="right", no_wrap=True)
        table.add_column("why not", ratio=4)
        for number, candidate, reason in rows:
            cells = self._cells(candidate)
            figures = (cells["batch"], cells["latency"], cells["$/1000"])
            table.add_row(number, cells["GPUs"], Folded(_methods(candidate)), *figures, reason)
        return table

    def _below(self, rows: Sequence[tuple[str, Candidate, Text]], width: int) -> RenderResult:
        """The same where a column of policies would be too narrow for their names: they stand above the figures."""
        columns = {heading: _COLUMNS[heading] for heading in ("#", "GPUs", "latency", "$/1000", "batch")}
        yield Text(_OTHERS, style="bold")
        headings = aligned([*map(Text, columns), Text("why not")], {**columns, "fidelity": len("why not") + 1})
        headings.stylize("cyan")
        yield headings
        yield Rule(style="")
        for number, candidate, reason in rows:
            cells = self._cells(candidate)
            yield from two_lines(
                aligned([Text(number)], columns),
                _methods(candidate),
                aligned([Text(), *(Text(cells[heading]) for heading in columns if heading != "#")], columns),
                reason,
                style="",
                gap=1,
                width=width,
            )

    def _cells(self, candidate: Candidate) -> dict[str, str]:
        cost = cost_of(candidate, self._goal)
        return {
            "GPUs": str(candidate.policy.gpu_count),
            "batch": batch_words(candidate.policy),
            "latency": ("~" if is_outpaced(candidate) else "") + format_seconds(cost.latency_seconds),
            "$/1000": format_usd(cost.cost_usd * ITERATIONS),
        }

    def _legend(self) -> RenderableType:
        price = self._goal.price
        assert price is not None
        energy = "energy: of all devices, per iteration. " if "energy" in self._columns else ""
        columns = (
            "latency: of an iteration (optimizer step). ±: half the 95% interval. $/1000: US dollars for "
            f"{ITERATIONS} iterations. {energy}batch: micro-batch x accumulation steps of each {self._sharer}. drift: "
            f"of the loss, from plain training{drift_legend(self._answer.ranking)}."
        )
        paid = f"price: {format_usd(price.usd_per_hour)} per device-hour, {price.source}, {price.date}{self._shared()}"
        return Group(Text(columns, style="dim"), *(Unbroken(line, style="dim") for line in paid.splitlines()))

    @property
    def _sharer(self) -> str:
        """What has a batch of its own."""
        return "GPU" if all(one.policy.axes == DATA_ONLY for one in self._answer.ranking) else "share of the data"

    def _shared(self) -> str:
        """The meaning of a price for several processes on a CPU."""
        counts = sorted({one.policy.gpu_count for one in self._answer.ranking} - {1})
        if not counts or not self._goal.shares_memory:
            return ""
        return (
            f"\n{' or '.join(map(str, counts))} processes share this one machine: each is counted as a device at its "
            "full price, to show the mechanism"
        )
