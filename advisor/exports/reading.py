"""From a trainer's keys to settings of methods: a table read in the other direction."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from typing import Any

from advisor.exports.rules import Given, Rule, Target
from advisor.methods.catalogue import CATALOGUE
from advisor.methods.setting import MethodSetting
from advisor.text.ranges import digits

__all__ = ["MISSING", "each_once", "is_same", "put", "settings_in", "unquoted", "value_at"]

MISSING = object()
"""Stands for a key that is not there."""


def settings_in(document: Mapping[str, Any], target: Target) -> tuple[MethodSetting, ...]:
    """The settings of methods that a configuration says in the same way as an export writes them.

    Args:
        document: The configuration as nested mappings.
        target: Its trainer.

    Returns:
        At most one setting for each method, in the order of the table. Approximations count: that the trainer's way
        differs is no reason to take the configuration for plain training. What has no keys of its own is not found.
    """
    found: dict[str, tuple[int, MethodSetting]] = {}
    for rule in target.rules:
        if all(is_same(target.plain.get(key, MISSING), value) for key, value in rule.keys.items()):
            continue  # no keys, or those of plain training
        setting = _read(rule, document, target)
        if setting is not None and len(rule.keys) > found.get(rule.of, (0,))[0]:
            found[rule.of] = len(rule.keys), setting  # the rule with the most keys says the most
    return tuple(setting for _, setting in found.values())


def value_at(document: Mapping[str, Any], key: str) -> Any:
    """The value of a dotted key, or :data:`MISSING`."""
    value: Any = document
    for name in key.split("."):
        if not isinstance(value, Mapping) or name not in value:
            return MISSING
        value = value[name]
    return value


def _read(rule: Rule, document: Mapping[str, Any], target: Target) -> MethodSetting | None:
    """The setting that a rule's keys stand for, if the configuration has them all."""
    method = next((one for one in CATALOGUE if one.name == rule.of), None)
    if method is None:  # a quantity
        return None
    choices = {parameter.name: parameter.choices for parameter in method.parameters}
    values = {name: rule.where.get(name, allowed)[0] for name, allowed in choices.items()}
    for key, wanted in rule.keys.items():
        found = value_at(document, key)
        if isinstance(wanted, Given):
            if wanted.name not in choices:
                if found is MISSING or is_same(found, target.plain.get(key, MISSING)):
                    return None
                continue  # a quantity, which any other value is
            if not any(is_same(found, choice) for choice in choices[wanted.name]):
                return None
            values[wanted.name] = found
        elif not is_same(found, wanted):
            return None
    return MethodSetting(name=rule.of, parameters=values)


def is_same(found: Any, wanted: Any) -> bool:
    """Equal, where ``True`` is not 1."""
    return bool(found == wanted) and isinstance(found, bool) == isinstance(wanted, bool)


def each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of JSON, for ``json.loads``, which otherwise takes the last of several equal keys in silence.

    Raises:
        ValueError: A key stands twice.
    """
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"it has {key!r} twice")
        found[key] = value
    return found


def unquoted(value: Any) -> Any:
    """A copy in which numbers, truth values and mappings in quotes are what they say, as trainers read them."""
    if isinstance(value, Mapping):
        return {key: unquoted(inner) for key, inner in value.items()}
    if not isinstance(value, str):
        return value
    if value.lstrip().startswith("{"):  # as a command line would have it
        with contextlib.suppress(ValueError, RecursionError):
            return unquoted(json.loads(value))
    number = digits(value)
    return {"true": True, "false": False}.get(value.lower(), value) if number is None else number


def put(document: dict[str, Any], key: str, value: Any) -> None:
    """Set a dotted key."""
    *above, last = key.split(".")
    place = document
    for name in above:
        inner = place.get(name)
        if not isinstance(inner, dict):
            inner = place[name] = {}
        place = inner
    place[last] = value
