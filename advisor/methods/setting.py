"""A method in use: its name and the values of its parameters."""

from __future__ import annotations

import functools
from collections.abc import Mapping

import msgspec

__all__ = ["MethodSetting", "ParameterValue", "Parameters", "use"]

ParameterValue = bool | int | float | str
Parameters = Mapping[str, ParameterValue]
"""Name -> value, for every parameter that a method declares."""


class MethodSetting(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, dict=True):
    """One method of the catalogue, with a value for every parameter that it declares."""

    name: str
    parameters: dict[str, ParameterValue] = {}

    @functools.cached_property  # A search reads it hundreds of thousands of times.
    def label(self) -> str:
        """Compact form, e.g. ``"checkpoint(every=2)"``."""
        if not self.parameters:
            return self.name
        inside = ", ".join(f"{key}={value}" for key, value in sorted(self.parameters.items()))
        return f"{self.name}({inside})"


def use(name: str, **parameters: ParameterValue) -> MethodSetting:
    """Short form of :class:`MethodSetting`, as emitted wrappers write it."""
    return MethodSetting(name=name, parameters=parameters)
