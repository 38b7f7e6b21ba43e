"""Change a mapping in braces inside a YAML text: comments and line breaks between its entries stay.

A comment on the line of an entry that is removed goes with it, as in a mapping without braces.
"""

from __future__ import annotations

import re
from typing import Any

import yaml

__all__ = ["with_flow_entry", "without_flow_entry"]

_TO_COMMA = re.compile(r"(?:\s|#[^\n]*\n)*,")
"""What is between a value and its comma."""
_REST_OF_LINE = re.compile(r"[ \t]*(,?)[ \t]*(?:#[^\n]*)?\n")
"""The rest of a line on which a value ends, where no other entry follows."""


def with_flow_entry(text: str, node: yaml.MappingNode, written: str) -> str:
    """The text with one more entry, on a line of its own where the others have one.

    Args:
        text: The whole text.
        node: The mapping.
        written: ``key: value``.
    """
    if not node.value:
        inside = text.index("{", node.start_mark.index) + 1
        space = " " if text[inside] == "#" else ""
        return f"{text[:inside]}{written}{space}{text[inside:]}"
    key, value = node.value[-1]
    end = value.end_mark.index
    rest = _REST_OF_LINE.match(text, end)
    if rest is None or not _begins_line(text, key):
        return f"{text[:end]}, {written}{text[end:]}"
    comma = rest[1]
    indentation = " " * key.start_mark.column
    line = f"{'' if comma else ','}{rest[0]}{indentation}{written}{comma}\n"
    return f"{text[:end]}{line}{text[rest.end() :]}"


def without_flow_entry(text: str, node: yaml.MappingNode, entry: tuple[Any, Any]) -> str:
    """The text without one of the entries of a mapping."""
    key, value = entry
    start, end = key.start_mark.index, value.end_mark.index
    rest, comma = _REST_OF_LINE.match(text, end), _TO_COMMA.match(text, end)
    if rest is not None and _begins_line(text, key) and (rest[1] or comma is None):
        return f"{text[: start - key.start_mark.column]}{text[rest.end() :]}"
    place = node.value.index(entry)
    if comma is not None:
        between = text[end : comma.end() - 1]
        after = comma.end()
        while not between.strip() and text[after] == " ":
            after += 1
        return f"{text[:start]}{between}{text[after:]}"
    if place:
        before = node.value[place - 1][1].end_mark.index
        comma = _TO_COMMA.match(text, before)
        assert comma is not None, "a comma divides two entries"
        left = text[before : comma.end() - 1] + text[comma.end() : start]
        return f"{text[:before]}{left if left.strip() else ''}{text[end:]}"
    return f"{text[:start]}{text[end:]}"


def _begins_line(text: str, key: yaml.Node) -> bool:
    start = key.start_mark.index
    return not text[start - key.start_mark.column : start].strip()
