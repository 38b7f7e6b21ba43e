"""The records of a trainer's table: which keys say a method, in what they differ, or why there are none.

A table is data, so that it can be read in both directions: from a policy to keys, and from keys to a policy
(:func:`advisor.exports.reading.settings_in`).
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Any

import msgspec

from advisor.methods.setting import ParameterValue

__all__ = ["Format", "Given", "Rule", "Schema", "Status", "Target", "adapter", "approximated", "exported", "refused"]


class Status(enum.Enum):
    """What became of a part of a policy."""

    EXPORTED = "exported"
    """The same mechanism, by keys of the configuration, the launcher or the environment."""
    APPROXIMATED = "approximated"
    """Something near, which is not what was measured."""
    ADAPTER = "needs the adapter"
    """No key says it; code can."""
    REFUSED = "cannot be said"
    """Neither a key nor an adapter can."""


class Format(enum.Enum):
    """How a configuration is written."""

    YAML = "yaml"
    JSON = "json"
    ARGUMENTS = "arguments"
    """``--key value``, for a trainer whose configuration is a program."""


class Given(msgspec.Struct, frozen=True):
    """Stands for a value of the policy: a parameter of the method, or a quantity (``QUANTITIES`` of ``export.py``)."""

    name: str


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """How a trainer says a method, or a quantity of the policy such as ``micro_batch``.

    Attributes:
        of: The method or quantity.
        status: What becomes of it.
        where: Name of a parameter or quantity -> the values that the rule covers; others: all.
        beside: The rule holds only if one of these methods is in use (empty: always).
        keys: Dotted key -> its value, which may be :class:`Given`.
        text: In what it differs, why there is no key, or what else to know.
        outside: What must be given outside of the file: a variable of the environment, or a command.
    """

    of: str
    status: Status
    where: Mapping[str, tuple[ParameterValue, ...]] = {}
    beside: tuple[str, ...] = ()
    keys: Mapping[str, Any] = {}
    text: str = ""
    outside: str = ""

    def covers(self, values: Mapping[str, Any], methods: frozenset[str]) -> bool:
        """Whether it holds for these values of parameters and quantities, and the methods in use."""
        fits = all(values.get(name) in allowed for name, allowed in self.where.items())
        return fits and (not self.beside or not methods.isdisjoint(self.beside))


class Schema(msgspec.Struct, frozen=True):
    """Where the source of a library lists the keys of a configuration.

    Attributes:
        package: The package, as it is imported.
        files: Patterns of its files.
        classes: Classes whose fields and parameters are the keys. Empty: keys are read in many places, so that every
            field, option and word in quotes counts as one, lest a valid key is called unknown.
        prefix: What a key may begin with, or leave out.
    """

    package: str
    files: tuple[str, ...]
    classes: tuple[str, ...] = ()
    prefix: str = ""


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """A trainer, and what its configuration can say.

    Attributes:
        name: As in ``--to``.
        title: As people call its configuration.
        library: The distribution that reads it.
        version: The version whose keys are listed.
        formats: How the configuration may be written, the usual one first.
        plain: Dotted key -> the value that means plain training, for everything that the trainer might do by itself.
        rules: For each method and quantity, the first that covers a setting counts.
        own: Key of a choice that is the user's -> its values that say a method; where the policy decides nothing, only
            these are switched off, and any other value stays.
        older: Former spelling of a key -> the key.
        rivals: Key that cannot stand beside what is written -> why.
        others: Valid keys that look like a misspelling of one in this table.
        schemas: Where all of its keys are listed; the first must be installed, others may have further keys.
        sections: Dotted keys of the mappings whose keys these are; the top is empty.
        nested: Dotted key of a further mapping -> where all of its keys are listed; the first must be installed.
        of_unknown: What becomes of a key that it does not know.
        use: How to train with the file, with ``{file}`` and ``{gpu_count}``.
        adapter: The call that applies a whole policy in this trainer, in place of a file; empty if there is none.
        notes: What else to know of the trainer.
    """

    name: str
    title: str
    library: str
    version: str
    formats: tuple[Format, ...]
    plain: Mapping[str, Any]
    rules: tuple[Rule, ...]
    own: Mapping[str, tuple[Any, ...]] = {}
    older: Mapping[str, str] = {}
    rivals: Mapping[str, str] = {}
    others: frozenset[str] = frozenset()
    schemas: tuple[Schema, ...] = ()
    sections: tuple[str, ...] = ("",)
    nested: Mapping[str, tuple[Schema, ...]] = {}
    of_unknown: str = "does not read it"
    use: str = ""
    adapter: str = ""
    notes: tuple[str, ...] = ()

    @property
    def adapter_words(self) -> str:
        """What to do about a method that needs the adapter, as a sentence."""
        if self.adapter:
            return f"The adapter applies the whole policy, in place of {self.title}: {self.adapter}"
        return "There is no adapter for this trainer: train with wrapper.py, in a loop of your own."

    @property
    def written(self) -> tuple[str, ...]:
        """Every dotted key that an export may write."""
        found = dict.fromkeys(self.plain)
        found |= dict.fromkeys(key for rule in self.rules for key in rule.keys)
        return tuple(found)


def exported(
    of: str,
    keys: Mapping[str, Any] | None = None,
    *,
    text: str = "",
    outside: str = "",
    beside: tuple[str, ...] = (),
    **where: ParameterValue,
) -> Rule:
    """A method that the trainer does in the same way; ``where`` limits it to one value of a parameter."""
    return Rule(
        of=of,
        status=Status.EXPORTED,
        keys=keys or {},
        text=text,
        outside=outside,
        beside=beside,
        where=_limits(where),
    )


def approximated(
    of: str,
    keys: Mapping[str, Any],
    differs: str,
    *,
    outside: str = "",
    beside: tuple[str, ...] = (),
    **where: ParameterValue,
) -> Rule:
    """A method that the trainer does in another way, which ``differs``."""
    return Rule(
        of=of,
        status=Status.APPROXIMATED,
        keys=keys,
        outside=outside,
        text=differs,
        beside=beside,
        where=_limits(where),
    )


def adapter(of: str, why: str, *, beside: tuple[str, ...] = (), **where: ParameterValue) -> Rule:
    """A method for which there is no key, and ``why``."""
    return Rule(of=of, status=Status.ADAPTER, text=why, beside=beside, where=_limits(where))


def refused(of: str, why: str, **where: ParameterValue) -> Rule:
    """A method that this trainer cannot do at all, and ``why``."""
    return Rule(of=of, status=Status.REFUSED, text=why, where=_limits(where))


def _limits(where: Mapping[str, ParameterValue]) -> dict[str, tuple[ParameterValue, ...]]:
    return {name: (value,) for name, value in where.items()}
