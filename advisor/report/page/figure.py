"""A number of the document, which says how it was obtained."""

from __future__ import annotations

import enum
from typing import Any, TypeVar, cast

import msgspec

__all__ = ["Figure", "Part", "Source", "simulated"]


class Source(enum.Enum):
    """How a number was obtained."""

    MEASURED = "measured"
    """By a timed trial."""
    PROFILED = "profiled"
    """Measured, by a few steps of a profiling run: rough."""
    PREDICTED = "predicted"
    """By a model or a trace; nothing of it ran."""
    SIMULATED = "simulated"
    """On a device in software."""


class Part(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A part of the document."""


class Figure(Part, frozen=True, kw_only=True, omit_defaults=True):
    """A number with its 95 % interval, where that is known."""

    value: float
    low: float | None = None
    high: float | None = None
    source: Source


_P = TypeVar("_P", bound=Part)


def simulated(part: _P) -> _P:
    """The same part of a device in software: what ran there was not measured; a prediction stays one."""
    return cast("_P", _simulated(part))


def _simulated(value: Any) -> Any:
    if isinstance(value, Source):
        return value if value is Source.PREDICTED else Source.SIMULATED
    if isinstance(value, msgspec.Struct):
        fields = value.__struct_fields__
        return msgspec.structs.replace(value, **{name: _simulated(getattr(value, name)) for name in fields})
    if isinstance(value, tuple):
        return tuple(_simulated(one) for one in value)
    return {key: _simulated(one) for key, one in value.items()} if isinstance(value, dict) else value
