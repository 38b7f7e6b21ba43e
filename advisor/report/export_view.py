"""What ``momadvise export`` prints about a configuration: what became of each part of the policy, and what changes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from advisor.exports.config_file import Patched, installed_version, version_remark
from advisor.exports.export import Export, Line
from advisor.exports.installed_keys import absent_keys
from advisor.exports.rules import Status, Target
from advisor.exports.yaml_text import line_of
from advisor.report.cells import Unbroken
from advisor.report.wording import batch_words, sentence
from advisor.text.printable import shown

__all__ = ["export_view"]

_STYLES = {
    Status.EXPORTED: "green",
    Status.APPROXIMATED: "yellow",
    Status.ADAPTER: "yellow",
    Status.REFUSED: "bold red",
}

_MOST_NAMES = 8
"""Keys that are named in one line."""


def export_view(export: Export, patched: Patched | None = None, *, written: bool = True) -> RenderableType:
    """What was exported, for a file of the user's what changes in it, and whether anything was ``written``."""
    target, remark = export.target, version_remark(export.target)
    left = [line for line in export.lines if line.status is not Status.EXPORTED]
    verdict = "All of it is exported."
    if not written:
        verdict = f"All of it is exported, but not to the installed {target.library}, so nothing is written."
    if left:
        nothing = "" if written else ", so nothing is written"
        counts = Counter(line.status for line in left)
        others = ", ".join(f"{counts[one]} {_count_words(one, counts[one])}" for one in Status if counts[one])
        verdict = f"{len(export.lines) - len(left)} of {len(export.lines)} parts are exported, {others}{nothing}."
    other_version = installed_version(target) not in (None, target.version)
    return Group(
        Text(f"{export.policy.words}, batch {batch_words(export.policy)}, as {target.title}", style="bold"),
        Text(verdict, style="yellow" if left or not written else "green"),
        Text(sentence(remark), style="yellow" if other_version else "dim"),
        *_absent(export),
        Text(),
        *(part for line in export.lines for part in _line(line)),
        *_changes(patched, target, written=written),
        *_usage(export, patched),
    )


def _absent(export: Export) -> Iterator[RenderableType]:
    """Keys that the version that is installed does not have."""
    target, absent = export.target, absent_keys(export.keys, export.target)
    if not absent:
        return
    names = ", ".join(f"{key} (formerly {old})" if old else key for key, old in absent.items())
    yield Unbroken(
        f"{target.library} {installed_version(target)} has no key {names}, and {target.of_unknown}. Install "
        f"{target.library} {target.version}{', or write the former names' if any(absent.values()) else ''}.",
        style="yellow",
    )


def _count_words(status: Status, count: int) -> str:
    return "need the adapter" if status is Status.ADAPTER and count > 1 else status.value


def _line(line: Line) -> Iterator[RenderableType]:
    yield Text.assemble(f"{line.what}: ", (line.status.value, _STYLES[line.status]))
    for key, value in line.keys.items():
        yield _indented(f"{key}: {_value(value)}", "cyan")
    for words in (line.outside, line.text):
        if words:
            yield _indented(words)


def _indented(text: str, style: str = "") -> RenderableType:
    return Unbroken(text, style=style, head=" " * 4)


def _value(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _changes(patched: Patched | None, target: Target, *, written: bool) -> Iterator[RenderableType]:
    if patched is None:
        return
    yield Text()
    if not patched.changes:
        yield Unbroken(f"{shown(patched.path)} says it already.")
    for number, change in enumerate(patched.changes):
        if number == 0:
            yield Unbroken(f"{shown(patched.path)}:")
        yield _indented(change.words, "yellow" if change.stays else "")
    for wrong, right in patched.misspelled.items():
        yield Text(f"{wrong} is no key that momadvise knows; is {right} meant?", style="yellow")
    yield from _strange(patched, target, written=written)


def _strange(patched: Patched, target: Target, *, written: bool) -> Iterator[RenderableType]:
    """Keys that nobody knows, and those that could not be looked up."""
    for key in patched.unknown:
        line = line_of(patched.text if written else patched.before, key)
        where = f"{shown(patched.path)}, line {line}" if line else shown(patched.path)
        yield Unbroken(
            f"{where}: {shown(key)} stays, but {target.library} {installed_version(target)} has no such key and "
            f"{target.of_unknown}. Correct or remove it.",
            style="yellow",
        )
    if patched.unchecked:
        names = [shown(key) for key in patched.unchecked[:_MOST_NAMES]]
        more = len(patched.unchecked) - len(names)
        rest = f" and {more} more" if more else ""
        version = installed_version(target)
        why = "is not installed here" if version is None else f"{version} has no list of its keys where it had one"
        yield Unbroken(f"Not checked, as {target.library} {why}: {', '.join(names)}{rest}.", style="dim")


def _usage(export: Export, patched: Patched | None) -> Iterator[RenderableType]:
    target = export.target
    file = "FILE" if patched is None else str(patched.path)
    yield Text()
    if target.use:
        yield Unbroken(f"Train with: {target.use.format(file=file, gpu_count=export.policy.gpu_count)}", style="dim")
    if any(line.status is Status.ADAPTER for line in export.lines):
        yield Unbroken(target.adapter_words, style="yellow")
    for note in target.notes:
        yield Unbroken(sentence(note), style="dim")
