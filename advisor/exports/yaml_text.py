"""Change a YAML text of the user's in place: everything else stays as it is, to the last space.

Entries are found by PyYAML's marks and changed as text. A library that loads and writes the whole file, such as
ruamel.yaml, keeps comments too, but not indentation, alignment and comments around what is removed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any

import yaml

from advisor.exports.flow_text import with_flow_entry, without_flow_entry
from advisor.exports.patching import Change
from advisor.exports.reading import MISSING

__all__ = ["changed_json", "changed_yaml", "has_shared_values", "line_of"]

_WIDE = 2**16
"""No line is broken."""


def changed_yaml(text: str, changes: Iterable[Change]) -> str:
    """The text of a mapping with its changes made.

    Args:
        text: YAML whose top is a mapping; lines end in a line feed.
        changes: What is set and removed.
    """
    if not text.endswith("\n"):
        text += "\n"
    return _changed(text, changes, _written)


def changed_json(text: str, changes: Iterable[Change]) -> str:
    """The text of an object with its changes made; JSON unless its last entry was removed, whose comma stays.

    Raises:
        yaml.YAMLError: The text is indented by tabs, or is not YAML for another reason.
    """
    return _changed(text, changes, json.dumps)


def _changed(text: str, changes: Iterable[Change], write: Callable[[Any], str]) -> str:
    for change in changes:
        if not change.stays:
            names = change.key.split(".")
            text = _without(text, names) if change.after is MISSING else _with(text, names, change.after, write)
    return text


def has_shared_values(text: str) -> bool:
    """Whether a value is named with ``&``, and so can stand in several places."""
    return any(isinstance(token, yaml.AnchorToken) for token in yaml.scan(text, yaml.SafeLoader))


def line_of(text: str, key: str) -> int:
    """The line of a dotted key, from 1; 0 if that is not known. JSON is read too, where it is indented by spaces."""
    try:
        node: Any = yaml.compose(text, yaml.SafeLoader)
    except yaml.YAMLError:
        return 0
    line = 0
    for name in key.split("."):
        entry = _entry(node, name)
        if entry is None:
            return 0
        line, node = entry[0].start_mark.line + 1, entry[1]
    return line


def _with(text: str, names: list[str], value: Any, write: Callable[[Any], str]) -> str:
    """The text with a value set."""
    node: Any = yaml.compose(text, yaml.SafeLoader)
    for depth, name in enumerate(names):
        entry = _entry(node, name)
        rest = names[depth:]
        if entry is None:
            return _with_entry(text, node, rest, value, write)
        above, (key, node) = node, entry
        if not isinstance(node, yaml.MappingNode) and len(rest) > 1:  # nothing yet, where a mapping belongs
            if above.flow_style:
                return _replaced(text, node, write(_inside(rest[1:], value)))
            lines = text.splitlines(keepends=True)
            place = key.end_mark.line + 1
            lines.insert(place, _block(rest[1:], value, key.start_mark.column + 2))
            return "".join(lines)
    if isinstance(node, yaml.CollectionNode) and not node.flow_style:
        lines = text.splitlines(keepends=True)
        first = key.start_mark.line
        whole = f"{lines[first][: key.end_mark.column]}: {_written(value)}\n"
        return "".join([*lines[:first], whole, *lines[_last_line(node) + 1 :]])
    return _replaced(text, node, write(value))


def _with_entry(text: str, node: Any, names: list[str], value: Any, write: Callable[[Any], str]) -> str:
    """The text with a new entry at the end of a mapping."""
    if node is None:  # everything else was removed
        return f"{text}{_block(names, value, 0)}"
    if node.flow_style:
        return with_flow_entry(text, node, write(_inside(names, value)).removeprefix("{").removesuffix("}"))
    lines = text.splitlines(keepends=True)
    lines.insert(_last_line(node) + 1, _block(names, value, node.start_mark.column))
    return "".join(lines)


def _without(text: str, names: list[str]) -> str:
    """The text without the lines of one entry."""
    node: Any = yaml.compose(text, yaml.SafeLoader)
    for name in names[:-1]:
        entry = _entry(node, name)
        if entry is None:
            return text
        node = entry[1]
    entry = _entry(node, names[-1])
    if entry is None:
        return text
    if node.flow_style:
        return without_flow_entry(text, node, entry)
    lines = text.splitlines(keepends=True)
    return "".join([*lines[: entry[0].start_mark.line], *lines[_last_line(entry[1]) + 1 :]])


def _entry(node: Any, name: str) -> tuple[Any, Any] | None:
    if not isinstance(node, yaml.MappingNode):
        return None
    return next((pair for pair in node.value if pair[0].value == name), None)


def _inside(names: list[str], value: Any) -> Any:
    """A value under its keys."""
    for name in reversed(names):
        value = {name: value}
    return value


def _block(names: list[str], value: Any, column: int) -> str:
    """New lines for an entry, and the mappings that it is in."""
    lines = [f"{' ' * (column + 2 * depth)}{name}:" for depth, name in enumerate(names)]
    return "\n".join(lines) + f" {_written(value)}\n"


def _written(value: Any) -> str:
    """A value on one line, in quotes where YAML 1.1, which trainers read, would take it for something else."""
    line: str = yaml.safe_dump(value, default_flow_style=True, sort_keys=False, width=_WIDE)
    return line.removesuffix("...\n").strip()


def _replaced(text: str, node: yaml.Node, by: str) -> str:
    start, end = node.start_mark.index, node.end_mark.index
    if start == end:  # an empty value, right after its colon
        by = f" {by}"
    elif text[start:end].endswith("\n"):
        by = f"{by}\n"
    return f"{text[:start]}{by}{text[end:]}"


def _last_line(node: yaml.Node) -> int:
    """The line on which a value ends; a block's own mark is beyond the comments that follow it."""
    if isinstance(node, yaml.CollectionNode) and not node.flow_style and node.value:
        last = node.value[-1]
        return _last_line(last[1] if isinstance(last, tuple) else last)
    mark = node.end_mark
    return int(mark.line - 1 if mark.column == 0 and mark.line > node.start_mark.line else mark.line)
