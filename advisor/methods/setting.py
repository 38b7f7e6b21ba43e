"""A method in use: its name and the values of its parameters."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping

import msgspec

__all__ = ["MethodSetting", "ParameterValue", "Parameters", "label_words", "use"]

ParameterValue = bool | int | float | str
Parameters = Mapping[str, ParameterValue]
"""Name -> value, for every parameter that a method declares."""


_NOT_TEXT = re.compile(r"-?[\d.]+(e-?\d+)?|True|False")
"""A value that says nothing without the name of its parameter."""


class MethodSetting(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, dict=True):
    """One method of the catalogue, with a value for every parameter that it declares."""

    name: str
    parameters: dict[str, ParameterValue] = {}

    @functools.cached_property  # A search reads it hundreds of thousands of times.
    def label(self) -> str:
        """What records call it, e.g. ``"checkpoint(every=2)"``."""
        if not self.parameters:
            return self.name
        inside = ", ".join(f"{key}={value}" for key, value in sorted(self.parameters.items()))
        return f"{self.name}({inside})"

    @property
    def words(self) -> str:
        """As people say it, with the names of parameters only for numbers: ``"checkpoint every=2"``."""
        return label_words(self.label)


def label_words(label: str) -> str:
    """What records call methods as people say them: ``"precision(dtype=bf16)"`` -> ``"precision bf16"``."""

    def in_words(found: re.Match[str]) -> str:
        pairs = [pair.split("=", 1) for pair in found[1].split(", ") if "=" in pair]
        return "".join(f" {name}={value}" if _NOT_TEXT.fullmatch(value) else f" {value}" for name, value in pairs)

    return re.sub(r"\(([^()]*=[^()]*)\)", in_words, label)


def use(name: str, **parameters: ParameterValue) -> MethodSetting:
    """Short form of :class:`MethodSetting`, as emitted wrappers write it."""
    return MethodSetting(name=name, parameters=parameters)
