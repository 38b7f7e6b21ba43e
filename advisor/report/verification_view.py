"""What ``momadvise verify`` prints: the verdict, and a line for everything that was looked at."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from advisor.decide.verdict import Kept, Verification
from advisor.measure.step_record import COMPARED_STEPS
from advisor.report.cells import Unbroken
from advisor.report.wording import batch_words, sentence

__all__ = ["verification_view"]

_STYLES = {Kept.YES: "green", Kept.NO: "bold red", Kept.NOT_JUDGED: "dim"}


def verification_view(found: Verification) -> RenderableType:
    """What was found, the verdict first."""
    title = f"{found.workload}: {found.policy.words}, batch {batch_words(found.policy)}, on {found.device}"
    broken = [check.name for check in found.checks if check.kept is Kept.NO]
    verdict = f"It does not keep its promise: {', '.join(broken)}." if broken else "It keeps its promise."
    compared = (
        f"Measured: {COMPARED_STEPS} steps of the wrapper beside {COMPARED_STEPS} of a plain loop, same seeds and "
        f"batches ({found.samples:,} samples each); fidelity {found.fidelity.value}."
    )
    return Group(
        Text(title, style="bold"),
        Text(verdict, style="bold red" if broken else "green"),
        Text(compared, style="dim"),
        Text(),
        _table(found),
        *[Text()] * bool(found.notes),
        *(Unbroken(sentence(note), style="dim") for note in found.notes),
    )


def _table(found: Verification) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), show_edge=False)
    for heading in ("", "promised", "found", ""):
        table.add_column(heading, header_style="dim", overflow="fold")
    for check in found.checks:
        kept = Text(check.kept.value, style=_STYLES[check.kept])
        table.add_row(Text(check.name), Text(check.promised or "-"), Text(check.found), kept)
    return table
