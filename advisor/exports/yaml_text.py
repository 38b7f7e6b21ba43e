"""Change a YAML text of the user's in place: its comments, order, quotes and blank lines stay."""

from __future__ import annotations

import io
from collections.abc import Iterable
from typing import Any

import yaml

from advisor.exports.patching import Change
from advisor.exports.reading import MISSING

__all__ = ["changed_yaml"]

_WIDE = 2**16
"""No line is broken."""


def changed_yaml(text: str, changes: Iterable[Change]) -> str:
    """The text with its changes made.

    What is removed is cut out by lines: ruamel.yaml would take comments along that stand below it. Entries of
    mappings in braces are left to it.

    Args:
        text: YAML whose top is a mapping.
        changes: What is set and removed.
    """
    changes = [change for change in changes if not change.stays]
    for change in changes:
        if change.after is MISSING or isinstance(change.before, dict | list):
            text = _without(text, change.key.split("."))
    return _with(text, [change for change in changes if change.after is not MISSING])


def _with(text: str, changes: list[Change]) -> str:
    from ruamel.yaml import YAML
    from ruamel.yaml.util import load_yaml_guess_indent

    _, mapping, sequence = load_yaml_guess_indent(text)
    loader = YAML()
    loader.preserve_quotes = True
    loader.width = _WIDE
    loader.explicit_start = text.lstrip().startswith("---")
    loader.indent(mapping=mapping or 2, sequence=sequence or 2, offset=max((sequence or 2) - 2, 0))
    document = loader.load(text)
    if document is None:
        document = loader.map()
    for change in changes:
        *above, last = change.key.split(".")
        place = document
        for name in above:
            if place.get(name) is None:
                place[name] = loader.map()
            place = place[name]
        place[last] = _quoted_where_needed(change.after)
    written = io.StringIO()
    loader.dump(document, written)
    return written.getvalue()


def _quoted_where_needed(value: Any) -> Any:
    """A text in quotes if the trainer, which reads YAML 1.1, would take it for something else, as it does with NO."""
    from ruamel.yaml.scalarstring import SingleQuotedScalarString

    if isinstance(value, str) and yaml.safe_load(value) != value:
        return SingleQuotedScalarString(value)
    return value


def _without(text: str, names: list[str]) -> str:
    """The text without the lines of one entry."""
    node = yaml.compose(text, yaml.SafeLoader)
    for depth, name in enumerate(names):
        if not isinstance(node, yaml.MappingNode):
            return text
        entry = next((pair for pair in node.value if pair[0].value == name), None)
        if entry is None:
            return text
        if depth < len(names) - 1:
            node = entry[1]
            continue
        if node.flow_style:
            return _without_in_braces(text, node, names)
        lines = text.splitlines(keepends=True)
        return "".join([*lines[: entry[0].start_mark.line], *lines[_last_line(entry[1]) + 1 :]])
    return text


def _without_in_braces(text: str, node: yaml.MappingNode, names: list[str]) -> str:
    """The text with a mapping in braces written anew without one entry."""
    left = yaml.safe_load(text[node.start_mark.index : node.end_mark.index])
    del left[names[-1]]
    written = yaml.safe_dump(left, default_flow_style=True, sort_keys=False, width=_WIDE).strip()
    return f"{text[: node.start_mark.index]}{written}{text[node.end_mark.index :]}"


def _last_line(node: yaml.Node) -> int:
    """The line on which a value ends; a block's own mark is beyond the comments that follow it."""
    if isinstance(node, yaml.CollectionNode) and not node.flow_style and node.value:
        last = node.value[-1]
        return _last_line(last[1] if isinstance(last, tuple) else last)
    mark = node.end_mark
    return int(mark.line - 1 if mark.column == 0 and mark.line > node.start_mark.line else mark.line)
