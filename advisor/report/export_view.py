"""What ``momadvise export`` prints about a configuration: what became of each part of the policy, and what changes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from advisor.exports.config_file import Patched, installed_version, version_remark
from advisor.exports.export import Export, Line
from advisor.exports.rules import Status
from advisor.report.wording import batch_words, policy_words
from advisor.text.printable import shown

__all__ = ["export_view"]

_STYLES = {
    Status.EXPORTED: "green",
    Status.APPROXIMATED: "yellow",
    Status.ADAPTER: "yellow",
    Status.REFUSED: "bold red",
}


def export_view(export: Export, patched: Patched | None = None, *, written: bool = True) -> RenderableType:
    """What was exported, for a file of the user's what changes in it, and whether anything was ``written``."""
    target, remark = export.target, version_remark(export.target)
    left = [line for line in export.lines if line.status is not Status.EXPORTED]
    verdict = "All of it is exported."
    if left:
        nothing = "" if written else ", so nothing is written"
        verdict = f"{len(left)} of {len(export.lines)} parts are not exported{nothing}."
    other_version = installed_version(target) not in (None, target.version)
    return Group(
        Text(f"{policy_words(export.policy)}, batch {batch_words(export.policy)}, as {target.title}", style="bold"),
        Text(verdict, style="yellow" if left else "green"),
        Text(f"{remark[0].upper()}{remark[1:]}.", style="yellow" if other_version else "dim"),
        Text(),
        *(part for line in export.lines for part in _line(line)),
        *_changes(patched),
        *_usage(export, patched),
    )


def _line(line: Line) -> Iterator[RenderableType]:
    yield Text.assemble(f"{line.what}: ", (line.status.value, _STYLES[line.status]))
    for key, value in line.keys.items():
        yield _indented(f"{key}: {_value(value)}", "cyan")
    for words in (line.outside, line.text):
        if words:
            yield _indented(words)


def _indented(text: str, style: str = "") -> RenderableType:
    return Padding(Text(text, style=style), (0, 0, 0, 4), expand=False)


def _value(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _changes(patched: Patched | None) -> Iterator[RenderableType]:
    if patched is None:
        return
    yield Text()
    if not patched.changes:
        yield Text(f"{shown(patched.path)} says it already.")
    for number, change in enumerate(patched.changes):
        if number == 0:
            yield Text(f"{shown(patched.path)}:")
        yield _indented(change.words, "yellow" if change.stays else "")
    for wrong, right in patched.misspelled.items():
        yield Text(f"{wrong} is no key that momadvise knows; is {right} meant?", style="yellow")


def _usage(export: Export, patched: Patched | None) -> Iterator[RenderableType]:
    target = export.target
    file = "FILE" if patched is None else str(patched.path)
    yield Text()
    if target.use:
        yield Text(f"Train with: {target.use.format(file=file, gpu_count=export.policy.gpu_count)}", style="dim")
    for note in target.notes:
        yield Text(f"{note[0].upper()}{note[1:]}.", style="dim")
