"""What must change in a configuration of the user's: what the policy says is set, what would contradict it goes."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from advisor.errors import OptionError
from advisor.exports.export import Export
from advisor.exports.reading import MISSING, is_same, value_at
from advisor.exports.rules import Target
from advisor.text.printable import quoted, shown

__all__ = ["Change", "changes_for", "misspelled", "strange_keys"]

_OFF = ("", "no", "none", "off", "false", "disabled")
_NO_TEXT = re.compile(r"|true|false|null|[-+]?[0-9.]+(?:[eE][-+]?[0-9]+)?", re.IGNORECASE)
"""Texts that without quotes would be read as a number, a truth value or nothing."""
_OWN = "the policy decides nothing here, and was not measured with it"
_LIKENESS = 0.88
"""How alike two keys are, from 0 to 1, of which one is taken for a misspelling of the other."""


class Change(NamedTuple):
    """A key of the user's that an export sets, removes or leaves.

    Attributes:
        key: The dotted key.
        before: Its value; ``MISSING`` if it was not there.
        after: Its new value; ``MISSING`` if it is removed.
        why: Why, where it is not what the policy says.
    """

    key: str
    before: Any
    after: Any
    why: str = ""

    @property
    def stays(self) -> bool:
        """Whether the user's value is left although the policy was measured with another."""
        return is_same(self.before, self.after)

    @property
    def words(self) -> str:
        """The change on one line."""
        before, after = _said(self.before), _said(self.after)
        if self.before is MISSING:
            return f"{self.key}: {after} (new)"
        if self.after is MISSING:
            return f"{self.key}: {before} is removed ({self.why})"
        return f"{self.key}: {before} stays ({self.why})" if self.stays else f"{self.key}: {before} -> {after}"


def changes_for(document: Mapping[str, Any], export: Export) -> list[Change]:
    """What must change so that a configuration says a policy; the configuration itself is left alone.

    Raises:
        OptionError: A key that must be a mapping is something else.
    """
    own = export.target.own
    changes = _whole(document, list(_removed(document, export)))
    for key, value in export.keys.items():
        changes += _made_room(document, key, export, {change.key for change in changes})
        before = value_at(document, key)
        if is_same(before, value):
            continue
        if key in own and key not in export.decided and before is not MISSING and before not in own[key]:
            changes.append(Change(key, before, before, _OWN))
        else:
            changes.append(Change(key, before, value))
    return changes + [Change(key, value, value, _OWN) for key, value in _own_adapters(document, export)]


def _own_adapters(document: Mapping[str, Any], export: Export) -> Iterator[tuple[str, Any]]:
    """What chooses adapters, where the policy has none: it stays, and is another training than what was measured."""
    for key in _of_adapters(export):
        value = value_at(document, key)
        if key not in export.keys and value is not MISSING and not _is_off(value) and not _has_adapters(export):
            yield key, value


def _of_adapters(export: Export) -> Iterator[str]:
    """The user's keys that choose adapters and the weights beneath them."""
    rules = [rule for rule in export.target.rules if rule.of in ("lora", "qlora")]
    found = dict.fromkeys(key for rule in rules for key in rule.keys)
    yield from (key for key in found if key in export.target.own)


def _has_adapters(export: Export) -> bool:
    return any(key in export.decided for key in _of_adapters(export))


def misspelled(document: Mapping[str, Any], target: Target) -> dict[str, str]:
    """Keys that no table has, and the known key that each may be meant to be."""
    known = sorted({*target.written, *target.older, *target.rivals})
    found = {}
    for key in strange_keys(document, target):
        near = difflib.get_close_matches(key, known, n=1, cutoff=_LIKENESS)
        if near and key not in target.others:
            found[key] = near[0]
    return found


def strange_keys(document: Mapping[str, Any], target: Target) -> Iterator[str]:
    """Dotted keys that no table has."""
    known = {*target.written, *target.older, *target.rivals}
    above = {".".join(names[:depth]) for names in (key.split(".") for key in known) for depth in range(1, len(names))}
    yield from (key for key in _keys(document) if key not in known and key not in above)


def _removed(document: Mapping[str, Any], export: Export) -> Iterator[Change]:
    target = export.target
    reasons = {key: "of a method that the policy does not use" for key in target.written if key not in target.own}
    reasons |= {key: f"the former name of {new}" for key, new in target.older.items()}
    reasons |= target.rivals
    if _has_adapters(export):
        reasons |= dict.fromkeys(_of_adapters(export), "the policy's adapters have it not")
    for key, why in reasons.items():
        before = value_at(document, key)
        if before is MISSING or (key in (*target.rivals, *target.own) and _is_off(before)):
            continue
        if any(key == one or one.startswith(f"{key}.") or key.startswith(f"{one}.") for one in export.keys):
            continue  # it is set, or what is above or below it
        yield Change(key, before, MISSING, why)


def _whole(document: Mapping[str, Any], removed: list[Change]) -> list[Change]:
    """The same changes, where a mapping that would be left without entries is removed as a whole."""
    changes = {change.key: change for change in removed}
    for change in removed:
        above = change.key.rpartition(".")[0]
        place = value_at(document, above) if above else None
        if isinstance(place, Mapping) and all(f"{above}.{name}" in changes for name in place):
            for name in place:
                changes.pop(f"{above}.{name}")
            changes[above] = Change(above, place, MISSING, change.why)
    return list(changes.values())


def _made_room(document: Mapping[str, Any], key: str, export: Export, removed: set[str]) -> list[Change]:
    """The removal of a value above a key, where the trainer takes a word or a mapping in that place.

    Raises:
        OptionError: The value above has another meaning.
    """
    names = key.split(".")[:-1]
    for depth in range(1, len(names) + 1):
        where = ".".join(names[:depth])
        place = value_at(document, where)
        if place is MISSING or place is None or where in removed or isinstance(place, Mapping):
            continue
        if where in export.target.written:
            return [Change(where, place, MISSING, "a mapping takes its place")]
        raise OptionError(
            f"{where} must be a mapping, because {key} goes there, but it is {quoted(place)}. Write its content in its "
            "place, and export again."
        )
    return []


def _keys(document: Mapping[str, Any], above: str = "") -> Iterator[str]:
    for name, value in document.items():
        yield f"{above}{name}"
        if isinstance(value, Mapping):
            yield from _keys(value, f"{above}{name}.")


def _said(value: Any) -> str:
    """A value as YAML and JSON write it; a text that would otherwise look like another value in quotes."""
    if isinstance(value, bool | None):
        return json.dumps(value)
    return f'"{shown(value)}"' if isinstance(value, str) and _NO_TEXT.fullmatch(value) else shown(value)


def _is_off(value: Any) -> bool:
    return not value or (isinstance(value, str) and value.lower() in _OFF)
