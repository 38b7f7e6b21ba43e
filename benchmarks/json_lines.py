"""Files of JSON lines: one record per line, appended as it is measured; every benchmark stores its results in one."""

from __future__ import annotations

import gzip
import os
from collections.abc import Hashable, Iterable
from pathlib import Path
from typing import Any, Protocol, TypeVar

import msgspec

__all__ = ["Placed", "append", "file_of", "latest", "read"]

_ROOT = Path(__file__).resolve().parents[1]
_RESULTS = _ROOT / "docs" / "results"
_TRIED_OUT = _ROOT / "build" / "results"

T = TypeVar("T")


class Placed(Protocol):
    """A record of which only the latest for the same place counts."""

    @property
    def place(self) -> Hashable:
        """What the record is about."""


P = TypeVar("P", bound=Placed)


def file_of(name: str, size: str, folder: Path = _RESULTS) -> Path:
    """Where the rows of a benchmark go unless a file is named. A smoke run's are no results: git does not see them."""
    return (_TRIED_OUT if size == "smoke" else folder) / f"{name}.jsonl"


def read(path: Path, decoder: msgspec.json.Decoder[T]) -> list[T]:
    """The records of a file in order; none if it does not exist. Files that end in ``.gz`` are decompressed.

    A truncated line is skipped: the process ended while it wrote, and the record is measured again.
    """
    if not path.exists():
        return []
    content = path.read_bytes()
    records: list[T] = []
    for line in (gzip.decompress(content) if path.suffix == ".gz" else content).splitlines():
        try:
            records.append(decoder.decode(line))
        except msgspec.DecodeError:
            continue
    return records


def latest(records: Iterable[P], *, latest_last: bool = False) -> list[P]:
    """The last record for each place.

    Args:
        records: In the order of the file.
        latest_last: Order them by when they were last written, instead of first.
    """
    found: dict[Hashable, P] = {}
    for record in records:
        if latest_last:
            found.pop(record.place, None)
        found[record.place] = record
    return list(found.values())


def append(path: Path, *records: Any) -> None:
    """Add records to a file, all or none; they are on disk when this returns."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # Unbuffered: a buffered file would write its rest again before it is truncated, and fail again.
    with path.open("ab", buffering=0) as file:
        begin = file.tell()
        # A process that was ended while it wrote has left a truncated line.
        rest = b"\n" if begin > 0 and not path.read_bytes().endswith(b"\n") else b""
        rest += b"".join(msgspec.json.encode(record) + b"\n" for record in records)
        try:
            while rest:
                rest = rest[file.write(rest) :]
        except OSError:  # such as a full disk: some of the records would pass for all of them
            file.truncate(begin)
            raise
        os.fsync(file.fileno())
