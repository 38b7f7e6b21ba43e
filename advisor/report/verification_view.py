"""What ``momadvise verify`` prints: the verdict, and a line for everything that was looked at."""

from __future__ import annotations

from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from advisor.decide.verdict import Kept
from advisor.decide.verification import Verification
from advisor.measure.step_record import COMPARED_STEPS
from advisor.report.wording import batch_words, policy_words

__all__ = ["VerificationView"]

_STYLES = {Kept.YES: "green", Kept.NO: "bold red", Kept.NOT_JUDGED: "dim"}


class VerificationView:
    """A verification for a terminal of any width.

    Args:
        verification: What was found.
    """

    def __init__(self, verification: Verification) -> None:
        self._found = verification

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """The verdict first."""
        found = self._found
        batch = batch_words(found.policy)
        title = f"{found.workload}: {policy_words(found.policy)}, batch {batch}, on {found.device}"
        yield Text(title, style="bold")
        broken = [check.name for check in found.checks if check.kept is Kept.NO]
        if broken:
            yield Text(f"It does not keep its promise: {', '.join(broken)}.", style="bold red")
        else:
            yield Text("It keeps its promise.", style="green")
        yield Text(
            f"Measured: {COMPARED_STEPS} steps of the wrapper beside {COMPARED_STEPS} of a plain loop, same seeds and "
            f"batches ({found.samples:,} samples each); fidelity {found.fidelity.value}.",
            style="dim",
        )
        yield Text()
        yield self._table()
        if found.notes:
            yield Text()
        for note in found.notes:
            yield Text(f"{note[0].upper()}{note[1:].rstrip('.')}.", style="dim")

    def _table(self) -> Table:
        table = Table(box=None, padding=(0, 2, 0, 0), show_edge=False)
        for heading in ("", "promised", "found", ""):
            table.add_column(heading, header_style="dim", overflow="fold")
        for check in self._found.checks:
            kept = Text(check.kept.value, style=_STYLES[check.kept])
            table.add_row(Text(check.name), Text(check.promised or "-"), Text(check.found), kept)
        return table
