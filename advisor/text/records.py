"""Records as JSON, read with checks for damage and written with escapes for text that cannot be encoded.

A file may have been truncated, edited or overwritten, and other code may have written to a pipe. Any fault makes a
record damaged; its reader decides what that means.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, TypeVar, overload

import msgspec

__all__ = ["AboveZero", "CountFromOne", "DamagedError", "decode_record", "encode_record", "read_record"]

_T = TypeVar("_T")

CountFromOne = Annotated[int, msgspec.Meta(ge=1)]
AboveZero = Annotated[float, msgspec.Meta(gt=0)]
"""Fields used as divisors: a record with any other value in one is damaged."""

_TOKENS = re.compile(rb'"(?:[^"\\]|\\.)*+"|-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?', re.DOTALL)
_LONG_NUMBER = re.compile(rb"\d{20}")
_WHOLE = re.compile(rb"-?\d{20,}")
"""Beyond 64 bits: no count here comes near, and the longest do not fit in a float."""


class DamagedError(ValueError):
    """The data is not a valid record of its type."""


def encode_record(record: object) -> bytes:
    """Write a record. Lone surrogates, which stand for bytes that are not UTF-8, are escaped."""
    try:
        return msgspec.json.encode(record)
    except UnicodeEncodeError:
        return msgspec.json.encode(_mended(msgspec.to_builtins(record, str_keys=True)))


@overload
def decode_record(data: bytes, kind: type[_T]) -> _T: ...


@overload
def decode_record(data: bytes, kind: Any) -> Any: ...


def decode_record(data: bytes, kind: Any) -> Any:
    """Read a record of a type.

    Raises:
        DamagedError: It is not JSON, or not of that type: also for text that is not UTF-8, numbers beyond 64 bits,
            endless brackets and values that the type refuses.
    """
    try:
        record = msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, AssertionError) as error:
        raise DamagedError(str(error)) from error
    if _LONG_NUMBER.search(data) and any(_WHOLE.fullmatch(token) for token in _TOKENS.findall(data)):
        raise DamagedError("a number has more than 64 bits")
    return record


def read_record(path: Path, kind: type[_T]) -> _T | None:
    """The record in a file; ``None`` if it is missing, unreadable or damaged."""
    try:
        return decode_record(path.read_bytes(), kind)
    except (OSError, DamagedError):
        return None


def _mended(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode(errors="backslashreplace").decode()
    if isinstance(value, dict):
        return {_mended(key): _mended(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_mended(one) for one in value]
    return value
