"""Read the user's YAML as plain values, or refuse it with a one-line message."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import yaml

from advisor.errors import UserError
from advisor.text.printable import printable, quoted, shown

__all__ = ["read_yaml", "why_invalid"]

_ALLOW = "Give permission to read it (chmod u+r), or name another."

_MOST_BYTES = 2**24
_MOST_ENTRIES = 100_000
"""Most entries, with aliases counted each time: a few lines may expand beyond memory, or endlessly."""

_LARGEST_NUMBER = 2**63


class _Loader(yaml.SafeLoader):
    """PyYAML's safe loader, with invalid dates and misplaced tags reported as YAML errors."""

    def get_single_node(self) -> yaml.Node | None:
        """The whole document, in which each key of a mapping stands once; PyYAML takes the last in silence."""
        whole = super().get_single_node()
        waiting, known = [whole], set()
        while waiting:
            node = waiting.pop()
            if id(node) in known:  # an alias
                continue
            known.add(id(node))
            if isinstance(node, yaml.MappingNode):
                _require_each_once(node)
                waiting += [value for _, value in node.value]
            elif isinstance(node, yaml.SequenceNode):
                waiting += node.value
        return whole

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep)
        except (ValueError, LookupError, AttributeError, TypeError) as reason:
            problem = f"{quoted(node.value)} is no value of its kind ({type(reason).__name__})"
            raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark) from None


def _require_each_once(node: yaml.MappingNode) -> None:
    found = set()
    for key, _ in node.value:
        if isinstance(key, yaml.ScalarNode) and key.value != "<<":
            if (key.tag, key.value) in found:
                problem = f"the key {quoted(key.value)} stands twice; remove one"
                raise yaml.constructor.ConstructorError(None, None, problem, key.start_mark)
            found.add((key.tag, key.value))


def read_yaml(
    path: Path,
    *,
    what: str,
    error: type[UserError],
    missing: str = "Is the path right?",
    check: Callable[[str], None] = lambda text: None,
) -> Any:
    """Read a file.

    Args:
        path: The file.
        what: What it is, for the message: ``"A policy file"``.
        error: Type of the error to raise.
        missing: What to do where there is no such file, as a sentence.
        check: Given the text before it is parsed; raises if something is wrong with it.

    Raises:
        UserError: It cannot be read, is not YAML, or holds invalid values: numbers beyond 64 bits, text that is not
            Unicode, or endless entries.
    """
    where = shown(path)
    try:
        with path.open("rb") as file:
            data = file.read(_MOST_BYTES + 1)
    except OSError as reason:
        fixes = {FileNotFoundError: missing, IsADirectoryError: "Name a file in it.", PermissionError: _ALLOW}
        fix = fixes.get(type(reason), "Check its path.")
        raise error(f"{what} must be readable, but {where} is not: {reason.strerror or reason}. {fix}") from None
    if len(data) > _MOST_BYTES:
        raise error(f"{what} must have at most {_MOST_BYTES} bytes, but {where} has more. Is it the right file?")
    try:
        text = data.decode()
    except UnicodeDecodeError as reason:
        raise error(f"{what} must be UTF-8 text, but {where} is not: {reason}. Save it as UTF-8.") from None
    check(text)
    try:
        content = yaml.load(text, _Loader)
    except RecursionError:
        raise error(f"{what} must be valid YAML, but {where} is not: it is nested too deeply.") from None
    except yaml.YAMLError as reason:
        raise error(f"{what} must be valid YAML, but {where} is not: {_one_line(reason)}.") from None
    found = _unusable(content)
    if found:
        raise error(f"{what} must hold plain values, but {where} has {found}.")
    return content


def why_invalid(reason: msgspec.ValidationError, content: Any) -> str:
    """What is wrong with the content, including the invalid value, by the reason that its conversion failed."""
    message = re.sub(r"(?s)^Invalid enum value .* - at", "Invalid value - at", str(reason))
    path = re.search(r" - at `\$((?:\.\w+|\[\d+\])+)`$", message)
    message = shown(message, longest=300)
    if path is None:
        return message
    value = content
    for key, index in re.findall(r"\.(\w+)|\[(\d+)\]", path[1]):
        try:
            value = value[key] if key else value[int(index)]
        except (TypeError, LookupError):  # a key that is no word
            return message
    return f"{message}, which is {quoted(value)}"


def _unusable(content: Any) -> str:
    """A description of a value that no such file needs, if there is one."""
    count, waiting = 0, [content]
    while waiting:
        value = waiting.pop()
        count += 1
        if count > _MOST_ENTRIES:
            return f"more than {_MOST_ENTRIES} entries, those that an alias repeats counted each time"
        if isinstance(value, dict):
            waiting += [*value.keys(), *value.values()]
        elif isinstance(value, list | tuple | set):
            waiting += value
        elif isinstance(value, int) and abs(value) >= _LARGEST_NUMBER:
            return f"the number {quoted(value)}, which has more than 64 bits"
        elif isinstance(value, str) and not value.isascii() and any("\ud800" <= one <= "\udfff" for one in value):
            return f"the text {quoted(value)}, which is no Unicode"
    return ""


def _one_line(reason: yaml.YAMLError) -> str:
    if isinstance(reason, yaml.MarkedYAMLError) and reason.problem and reason.problem_mark:
        problem = " ".join(reason.problem.split())
        if problem == "but found another document":  # the second half of its sentence
            problem = "it holds several documents (--- begins one); keep one"
        return f"line {reason.problem_mark.line + 1}: {printable(problem)}"
    return shown(" ".join(str(reason).split()))
