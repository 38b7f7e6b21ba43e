"""Standard streams that never end a search: closed, full, without a reader, or of an encoding that knows little.

What cannot be written is lost, and the search goes on; only for standard output somebody has to hear of it at the end.
"""

from __future__ import annotations

import codecs
import contextlib
import errno
import io
import os
import select
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

__all__ = ["ERRORS", "KeptStreams", "streams_kept"]

ERRORS = "momadvise"
"""The name under which codecs know how these streams write characters that they do not have."""
_IN_ASCII = {
    **dict.fromkeys("─━╌═╶╴", "-"),
    **dict.fromkeys("│┃║", "|"),
    **dict.fromkeys("┌┐└┘├┤┬┴┼╭╮╰╯┏┓┗┛┡┩╇", "+"),
    "±": "+-",
    "\N{MULTIPLICATION SIGN}": "x",
    "…": "...",
    "\N{EN DASH}": "-",
    "•": "*",
    "█": "#",
    "°": "o",
}


class KeptStreams:
    """What became of standard output and standard error."""

    def __init__(self) -> None:
        self._raw: dict[str, _Kept] = {}

    @property
    def lost(self) -> OSError | None:
        """Why standard output did not take everything; not that its reader, or the terminal, is gone (``| head``)."""
        error = self._raw["stdout"].error if "stdout" in self._raw else None
        return None if error is None or error.errno in (errno.EPIPE, errno.EIO) else error

    def _replace(self, name: str, stream: TextIO | None) -> TextIO:
        if stream is None:  # closed before the program began
            return open(os.devnull, "w", encoding="utf-8")
        try:
            descriptor = stream.fileno()
        except (AttributeError, OSError, ValueError):
            return stream  # a caller's own, in memory
        if not isinstance(stream, io.TextIOWrapper):
            return stream
        self._raw[name] = raw = _Kept(descriptor)
        return io.TextIOWrapper(
            io.BufferedWriter(raw),
            encoding=stream.encoding,
            errors=ERRORS,
            line_buffering=stream.line_buffering or name == "stderr",
        )


@contextlib.contextmanager
def streams_kept() -> Iterator[KeptStreams]:
    """Within, nothing that is printed can fail."""
    _open_what_is_closed()
    before = {name: getattr(sys, name) for name in ("stdout", "stderr")}
    kept = KeptStreams()
    for name, stream in before.items():
        if stream is not None:
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        setattr(sys, name, kept._replace(name, stream))
    try:
        yield kept
    finally:
        for name, stream in before.items():
            getattr(sys, name).flush()
            setattr(sys, name, stream)


class _Kept(io.FileIO):
    """A descriptor that takes everything, and keeps in mind what it could not pass on."""

    def __init__(self, descriptor: int) -> None:
        super().__init__(descriptor, "wb", closefd=False)
        self.error: OSError | None = None

    def write(self, data: ReadableBuffer, /) -> int:
        try:
            while (written := super().write(data)) is None:  # somebody has set it not to wait
                select.select([], [self], [])
        except OSError as error:
            self.error = self.error or error
            return memoryview(data).nbytes
        return written


def _open_what_is_closed() -> None:
    """Have the first three descriptors open: what is opened next must not become somebody's standard output."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            opened = os.open(os.devnull, os.O_RDWR)  # the lowest number that is free
            os.set_inheritable(opened, True)


def _in_ascii(error: UnicodeError) -> tuple[str, int]:
    """What stands for characters that a stream does not know; in JSON they occur in strings alone, and escaped so."""
    assert isinstance(error, UnicodeEncodeError), "streams are written"
    return "".join(map(_escaped, error.object[error.start : error.end])), error.end


def _escaped(character: str) -> str:
    units = character.encode("utf-16-be", "surrogatepass")
    pairs = zip(units[::2], units[1::2], strict=True)
    return _IN_ASCII.get(character) or "".join(f"\\u{high:02x}{low:02x}" for high, low in pairs)


codecs.register_error(ERRORS, _in_ascii)
