"""Which fields of a trial make it the same trial as another."""

from __future__ import annotations

import functools
from typing import Annotated, Any, TypeVar, get_args

import msgspec

__all__ = ["Incidental", "identity_of"]

_T = TypeVar("_T")

Incidental = Annotated[_T, msgspec.Meta(extra={"identity": None})]
"""A field left out of the trial's key: a stored result is valid for every value of it."""


@functools.cache
def identity_of(kind: type[msgspec.Struct]) -> tuple[tuple[str, Any, Any], ...]:
    """Name and default of each field in the key, and the function that reduces it (``None``: the whole value)."""
    found = []
    for field in msgspec.structs.fields(kind):
        marks = [
            one.extra["identity"] for one in get_args(field.type)[1:] if isinstance(one, msgspec.Meta) and one.extra
        ]
        if None not in marks:
            default = field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()
            found.append((field.name, default, marks[0] if marks else None))
    return tuple(found)
