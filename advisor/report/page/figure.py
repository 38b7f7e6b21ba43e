"""A number of the document, which says how it was obtained."""

from __future__ import annotations

import enum

import msgspec

__all__ = ["Figure", "Part", "Source"]


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
