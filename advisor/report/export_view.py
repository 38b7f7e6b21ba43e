"""What ``momadvise export`` prints about a configuration: what became of each part of the policy, and what changes."""

from __future__ import annotations

from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from advisor.exports.config_file import Patched, version_remark
from advisor.exports.export import Export, Line
from advisor.exports.rules import Status
from advisor.report.wording import batch_words, policy_words

__all__ = ["export_view"]

_STYLES = {
    Status.EXPORTED: "green",
    Status.APPROXIMATED: "yellow",
    Status.ADAPTER: "yellow",
    Status.REFUSED: "bold red",
}


def export_view(export: Export, patched: Patched | None = None, *, written: bool = True) -> RenderableType:
    """What was exported, for a file of the user's what changes in it, and whether anything was ``written``."""
    target = export.target
    left = [line for line in export.lines if line.status is not Status.EXPORTED]
    verdict = "All of it is exported."
    if left:
        verdict = (
            f"{len(left)} of {len(export.lines)} parts are not exported{'' if written else ', so nothing is written'}."
        )
    return Group(
        Text(f"{policy_words(export.policy)}, batch {batch_words(export.policy)}, as {target.title}", style="bold"),
        Text(verdict, style="green" if export.complete else "yellow"),
        Text(f"{version_remark(target)[0].upper()}{version_remark(target)[1:]}.", style="dim"),
        Text(),
        _table(export),
        *_changes(patched),
        *(Text(f"{note[0].upper()}{note[1:]}.", style="dim") for note in target.notes),
    )


def _table(export: Export) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), show_edge=False, show_header=False)
    for _ in range(3):
        table.add_column(overflow="fold")
    for line in export.lines:
        table.add_row(Text(line.what), Text(line.status.value, style=_STYLES[line.status]), Text(_words(line)))
    return table


def _words(line: Line) -> str:
    keys = ", ".join(f"{key}: {_value(value)}" for key, value in line.keys.items())
    return "; ".join(part for part in (keys, line.outside, line.text) if part)


def _value(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _changes(patched: Patched | None) -> list[Text]:
    if patched is None:
        return []
    changes = [Text(f"  {change.words}") for change in patched.changes]
    title = "Changes:" if any(not change.stays for change in patched.changes) else "Nothing changes."
    odd = [
        Text(f"{wrong} is no key that momadvise knows; is {right} meant?", style="yellow")
        for wrong, right in patched.misspelled.items()
    ]
    return [Text(), Text(title), *changes, *odd]
