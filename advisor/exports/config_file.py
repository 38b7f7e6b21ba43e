"""A trainer's configuration as text: written anew, or a file of the user's that is changed."""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import math
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import yaml

from advisor.errors import OptionError
from advisor.exports.export import Export, nested
from advisor.exports.installed_keys import Strange, installed_keys, other_keys
from advisor.exports.patching import Change, changes_for, misspelled
from advisor.exports.reading import MISSING, each_once, is_same
from advisor.exports.rules import Format, Status, Target
from advisor.exports.yaml_text import changed_json, changed_yaml, has_shared_values
from advisor.files import write_whole
from advisor.text.printable import printable, shown
from advisor.text.yaml_file import read_yaml
from advisor.version import __version__

__all__ = ["Patched", "installed_version", "new_configuration", "patched_file", "version_remark"]

_WHAT = "A configuration that an export changes"
_MARK = "# momadvise"
_OWN_LINES = re.compile(rf"\A(?:{_MARK}[ :].*\n)+")


class Patched(msgspec.Struct, frozen=True, kw_only=True):
    """A file of the user's, and what an export makes of it.

    Attributes:
        path: The file.
        before: Its text.
        text: Its new text.
        changes: What is set, removed or left.
        misspelled: Its unknown keys, and the known one that each may be meant to be.
        unknown: Further keys that the installed trainer does not have.
        unchecked: Further keys that nothing is known of, as the trainer is not installed.
    """

    path: Path
    before: str
    text: str
    changes: list[Change]
    misspelled: dict[str, str]
    unknown: tuple[str, ...]
    unchecked: tuple[str, ...]

    def write(self) -> None:
        """Replace the file, atomically and with its permissions; a link stays a link.

        Raises:
            OptionError: The file may not be written.
            OSError: It could not be written; the old one is unchanged.
        """
        if not os.access(self.path, os.W_OK):
            raise OptionError(f"{_WHAT} must be writable, but {shown(self.path)} is not. Give permission (chmod u+w).")
        with self.path.open("rb") as file:
            ending = b"\r\n" if b"\r\n" in file.read() else b"\n"
        write_whole(self.path.resolve(), self.text.encode().replace(b"\n", ending))


def new_configuration(export: Export) -> str:
    """The text of a configuration that says a policy and nothing else."""
    kind = export.target.formats[0]
    if kind is Format.ARGUMENTS:
        return "".join(f"{line}\n" for line in _arguments(export.keys))
    document = nested(export.keys)
    if kind is Format.JSON:
        return json.dumps(document, indent=2) + "\n"
    return _header(export) + yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=110)


def patched_file(path: Path, export: Export) -> Patched:
    """What an export makes of a file of the user's, which is not written yet.

    Raises:
        OptionError: The file cannot be read, is damaged, holds no mapping, or has another format than the trainer's.
    """
    if Format.ARGUMENTS in export.target.formats:
        raise OptionError(
            f"--into must be given for a trainer with a configuration file, but {export.target.title} is a program. "
            "Leave --into out, and append what is printed to its command."
        )
    if not path.is_file():
        why = "is a folder" if path.is_dir() else "is no file" if path.exists() else "does not"
        raise OptionError(
            f"--into must name a file that exists, but {shown(path)} {why}. Leave --into out and redirect what is "
            "printed: > FILE."
        )
    kind = _format_of(path, export.target)
    read = _read_json if kind is Format.JSON else lambda one: read_yaml(one, what=_WHAT, error=OptionError)
    document = read(path)
    if not isinstance(document, dict):
        found = "empty" if document is None else f"a {type(document).__name__}"
        raise OptionError(f"{_WHAT} must hold a mapping of keys, but {shown(path)} is {found}. Is it the right file?")
    if "schema" in document and "policy" in document:
        raise OptionError(
            f"--into must name a configuration of {export.target.library}, but {shown(path)} is a policy. Name the "
            "trainer's file, or leave --into out and redirect what is printed: > FILE."
        )
    changes = changes_for(document, export)
    with path.open(encoding="utf-8-sig") as file:
        text = file.read()
    likely, strange = _strange_keys(document, export.target)
    return Patched(
        path=path,
        before=text,
        text=_changed_json(text, document, changes)
        if kind is Format.JSON
        else _changed_yaml(path, text, export, changes),
        changes=changes,
        misspelled=likely,
        unknown=strange.unknown,
        unchecked=strange.unchecked,
    )


def _strange_keys(document: Mapping[str, Any], target: Target) -> tuple[dict[str, str], Strange]:
    """What looks misspelled, and other keys that no table has; a key of the installed trainer is neither."""
    valid = {f"{section}.{name}" if section else name for section in target.sections for name in installed_keys(target)}
    likely = {key: near for key, near in misspelled(document, target).items() if key not in valid}
    unknown, unchecked = other_keys(document, target)
    return likely, Strange(
        tuple(key for key in unknown if key not in likely), tuple(key for key in unchecked if key not in likely)
    )


def version_remark(target: Target) -> str:
    """With which version the keys were checked, and which is installed, if it is another."""
    checked, installed = f"keys checked with {target.library} {target.version}", installed_version(target)
    if installed is None:
        return f"{checked}, which is not installed here"
    return checked if installed == target.version else f"{checked}; {installed} is installed here and was not checked"


def installed_version(target: Target) -> str | None:
    """The version of the trainer in this environment."""
    try:
        return importlib.metadata.version(target.library)
    except importlib.metadata.PackageNotFoundError:
        return None


def _header(export: Export) -> str:
    """Comments at the top of a file; each begins in the same way, so that the next export replaces them."""
    policy = export.policy
    batch = f"{policy.micro_batch} x {policy.accumulation_steps} samples"
    lines = [f"{_MARK} {__version__}: {policy.words}, {batch}{policy.axes.on_devices(policy.gpu_count)}"]
    lines.append(f"{_MARK}: {version_remark(export.target)}")
    for line in export.lines:
        if line.outside:
            lines.append(f"{_MARK}: {line.what}: {line.outside}")
        elif line.status is not Status.EXPORTED:
            lines.append(f"{_MARK}: {line.what} {line.status.value}: {line.text}")
    return "".join(f"{printable(line)}\n" for line in lines)


def _changed_yaml(path: Path, text: str, export: Export, changes: list[Change]) -> str:
    try:
        changed = changed_yaml(_OWN_LINES.sub("", text, count=1), changes)
        found = yaml.safe_load(changed)
    except yaml.YAMLError:
        found = None
    # Written out, so that what shares a value with a key that is changed is seen to change as well.
    meant = _applied(_written_out(yaml.safe_load(text) or {}), changes)
    if found is None or not _is_alike(found, meant):
        raise OptionError(
            f"{_WHAT} must have a value of its own for each key that is changed, but {shown(path)} shares some (with & "
            "and *). Write them out, and export again."
            if has_shared_values(text)
            else f"{_WHAT} must have keys that can be changed one by one, but that failed with {shown(path)}. Write "
            "each key on a line of its own, without { and }, and export again."
        )
    return _header(export) + changed


def _written_out(value: Any) -> Any:
    """A copy in which nothing is shared."""
    if isinstance(value, dict):
        return {key: _written_out(one) for key, one in value.items()}
    return [_written_out(one) for one in value] if isinstance(value, list) else value


def _is_alike(found: Any, wanted: Any) -> bool:
    """Equal throughout, where ``True`` is not 1."""
    if isinstance(found, dict) and isinstance(wanted, dict):
        return found.keys() == wanted.keys() and all(_is_alike(one, wanted[key]) for key, one in found.items())
    if isinstance(found, list) and isinstance(wanted, list):
        return len(found) == len(wanted) and all(map(_is_alike, found, wanted))
    if isinstance(found, float) and isinstance(wanted, float) and math.isnan(found) and math.isnan(wanted):
        return True
    return is_same(found, wanted)


def _applied(document: dict[str, Any], changes: list[Change]) -> dict[str, Any]:
    """The document with the changes, which are made in it."""
    for change in changes:
        *above, last = change.key.split(".")
        place = document
        for name in above:
            if change.after is MISSING or isinstance(place.get(name), dict):
                place = place[name]
            else:
                place[name] = {}
                place = place[name]
        if change.after is MISSING:
            del place[last]
        else:
            place[last] = change.after
    return document


def _changed_json(text: str, document: dict[str, Any], changes: list[Change]) -> str:
    document = _applied(document, changes)
    # In its place, so that numbers and lists stay as they are written; otherwise all of it is written anew.
    with contextlib.suppress(yaml.YAMLError, ValueError):
        changed = changed_json(text, changes)
        if _is_alike(json.loads(changed, object_pairs_hook=each_once), document):
            return changed
    indent = re.search(r"\n([ \t]+)\S", text)
    return (
        json.dumps(document, indent=indent[1] if indent else None, ensure_ascii=text.isascii())
        + text[len(text.rstrip()) :]
    )


def _format_of(path: Path, target: Target) -> Format:
    suffix = {".json": Format.JSON, ".yaml": Format.YAML, ".yml": Format.YAML}.get(path.suffix.lower())
    if suffix in target.formats:
        return suffix
    names = " or ".join(f".{one.value}" for one in target.formats)
    raise OptionError(f"--into must name {target.title} as {names}, but got {shown(path)}. Is it the right file?")


def _read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes(), object_pairs_hook=each_once)
    except OSError as reason:
        raise OptionError(f"{_WHAT} must be readable, but {shown(path)} is not: {reason.strerror}.") from None
    except (ValueError, RecursionError) as reason:
        raise OptionError(f"{_WHAT} must be valid JSON, but {shown(path)} is not: {shown(str(reason))}.") from None


def _arguments(keys: Mapping[str, Any]) -> list[str]:
    """``--key value``, and last what chooses a part of the configuration: a key without a dot, as ``key:value``."""
    options = [_argument(key, value) for key, value in keys.items() if "." in key]
    return options + [f"{key}:{value}" for key, value in keys.items() if "." not in key]


def _argument(key: str, value: Any) -> str:
    if isinstance(value, bool):
        above, _, last = key.rpartition(".")
        return f"--{key}" if value else f"--{above}.no-{last}"
    return f"--{key} {value}"
