"""Records as JSON: the one place that reads back what may be damaged, and that writes what no encoding knows.

A file may have been cut, edited or overwritten, and a pipe written into by somebody else's code. Whatever is wrong with
a record, it is damaged, and what that means is its reader's to say.
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
"""Fields that are divided by: a record that has another value in one is damaged."""

_TOKENS = re.compile(rb'"(?:[^"\\]|\\.)*+"|-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?', re.DOTALL)
_LONG_NUMBER = re.compile(rb"\d{20}")
_WHOLE = re.compile(rb"-?\d{20,}")
"""Beyond 64 bits: nothing that is counted here comes near, and Python has no float for the longest of them."""


class DamagedError(ValueError):
    """What was read is no record of its kind."""


def encode_record(record: object) -> bytes:
    """Write a record. Lone surrogates, which stand for bytes that are no UTF-8, become escapes in its texts."""
    try:
        return msgspec.json.encode(record)
    except UnicodeEncodeError:
        return msgspec.json.encode(_mended(msgspec.to_builtins(record, str_keys=True)))


@overload
def decode_record(data: bytes, kind: type[_T]) -> _T: ...


@overload
def decode_record(data: bytes, kind: Any) -> Any: ...


def decode_record(data: bytes, kind: Any) -> Any:
    """Read a record.

    Args:
        data: What was written.
        kind: Its type.

    Raises:
        DamagedError: It is no JSON, or not of that type: text that is not UTF-8, numbers beyond 64 bits, brackets
            without end and values that the type refuses included.
    """
    try:
        record = msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, AssertionError) as error:
        raise DamagedError(str(error)) from error
    if _LONG_NUMBER.search(data) and any(_WHOLE.fullmatch(token) for token in _TOKENS.findall(data)):
        raise DamagedError("a number has more than 64 bits")
    return record


def read_record(path: Path, kind: type[_T]) -> _T | None:
    """The record in a file; ``None`` if there is none that can be read and understood."""
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
