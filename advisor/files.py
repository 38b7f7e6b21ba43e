"""Atomic file writes, and per-process folders that later processes clean up after a crash.

Every file that is replaced is written here. (The ledger and logs append lines themselves; SQLite and Optuna manage
their own files.)
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import socket
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import BinaryIO

import psutil

__all__ = ["PrivateFolder", "add_line", "clear_left_files", "set_aside", "sync_folder", "write_whole"]

_LEFT_FILE = re.compile(r"\.(?P<name>.+)\.(?P<place>[0-9a-f]{8})-(?P<process>[0-9]+)\.part")
_LEFT_FOLDER = re.compile(r"momadvise-(?P<name>[a-z]+)-(?P<place>[0-9a-f]{8})-(?P<process>[0-9]+)-.+")

_CLOCK_SECONDS = 5
"""The start of a process and a file's time come from clocks that may differ slightly."""


def write_whole(path: Path, content: bytes | str | Callable[[BinaryIO], object]) -> None:
    """Write a file atomically: even after a crash or on a full disk, either the old or the new one exists.

    It is on disk before this returns. One that is replaced hands on its permissions.

    Args:
        path: The file; its folder exists.
        content: Text, written as UTF-8, or a function that writes to the file it is given.

    Raises:
        OSError: Names the file; the old one, if any, is unmodified.
    """
    temporary = path.with_name(f".{path.name}.{_place()}-{os.getpid()}.part")
    try:
        with temporary.open("wb") as file:
            if callable(content):
                content(file)
            else:
                file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        with contextlib.suppress(FileNotFoundError):
            shutil.copymode(path, temporary)
        os.replace(temporary, path)
        sync_folder(path.parent)
    except BaseException as error:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        refused = _refusal(error)
        if refused is None:
            raise
        raise OSError(refused.errno, refused.strerror or str(refused), str(path)) from error


def add_line(path: Path, line: bytes) -> None:
    """Add a line to a file, on disk before this returns.

    Raises:
        OSError: It could not be written; names the file, which may end in a part of the line.
    """
    is_new = not path.exists()
    try:
        with path.open("a+b") as file:
            if file.tell():
                file.seek(-1, os.SEEK_END)
                if file.read(1) != b"\n":
                    file.write(b"\n")  # a killed process left a torn line; it must not swallow this one
            file.write(line + b"\n")
            file.flush()
            os.fsync(file.fileno())
        if is_new:
            sync_folder(path.parent)
    except OSError as error:
        raise OSError(error.errno, error.strerror or str(error), str(path)) from error


def sync_folder(folder: Path) -> None:
    """Flush a folder's entries to disk, where the system supports it."""
    if os.name != "posix":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError:  # some network file systems refuse it for folders, and keep the order without it
        pass
    finally:
        os.close(descriptor)


def set_aside(path: Path, word: str) -> Path:
    """Rename a file to a free name that contains a word for the reason; returns its new path."""
    kept = path.with_stem(f"{path.stem}.{word}")
    number = 1
    while kept.exists():
        number += 1
        kept = path.with_stem(f"{path.stem}.{word}-{number}")
    path.rename(kept)
    return kept


def clear_left_files(folder: Path) -> None:
    """Remove partial files that killed processes of this machine left in a folder."""
    for path in folder.glob(".*.part"):
        _clear(path, _LEFT_FILE.fullmatch(path.name))


class PrivateFolder:
    """A folder that only this user can read, with a word in its name, for a block. Removes those of dead processes."""

    def __init__(self, purpose: str) -> None:
        for left in Path(tempfile.gettempdir()).glob("momadvise-*"):
            _clear(left, _LEFT_FOLDER.fullmatch(left.name))
        self.path = Path(tempfile.mkdtemp(prefix=f"momadvise-{purpose}-{_place()}-{os.getpid()}-"))

    def __enter__(self) -> Path:
        return self.path

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Remove it and everything in it."""
        shutil.rmtree(self.path, ignore_errors=True)


def _clear(path: Path, named: re.Match[str] | None) -> None:
    if named is None or named["place"] != _place():
        return
    with contextlib.suppress(OSError):  # another process may be cleaning up, too
        found = path.lstat()
        if found.st_uid != os.getuid() or not _is_gone(int(named["process"]), found.st_mtime):
            return
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def _is_gone(process: int, written: float) -> bool:
    """Whether the process that wrote at that time has ended; its number may have been reused since."""
    try:
        found = psutil.Process(process)
        return found.status() == psutil.STATUS_ZOMBIE or found.create_time() > written + _CLOCK_SECONDS
    except psutil.NoSuchProcess:
        return True


@cache
def _place() -> str:
    """Identity of this machine and container, within which process numbers are comparable."""
    with contextlib.suppress(OSError):
        return hashlib.sha256(f"{socket.gethostname()} {os.readlink('/proc/self/ns/pid')}".encode()).hexdigest()[:8]
    return hashlib.sha256(socket.gethostname().encode()).hexdigest()[:8]


def _refusal(error: BaseException) -> OSError | None:
    """The operating system's error, if a library has wrapped it."""
    seen: set[int] = set()
    following: BaseException | None = error
    while following is not None and id(following) not in seen and isinstance(following, Exception):
        if isinstance(following, OSError):
            return following
        seen.add(id(following))
        following = following.__cause__ or following.__context__
    return None
