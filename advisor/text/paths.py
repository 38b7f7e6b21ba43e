"""Paths that people type: whether they can be handed on to another process, into a file and to a screen."""

from __future__ import annotations

import errno
import os
import unicodedata
from pathlib import Path

from advisor.errors import UserError
from advisor.text.printable import quoted

__all__ = ["path_of"]


def path_of(text: str | os.PathLike[str], what: str, error: type[UserError]) -> Path:
    """The path that somebody means; nothing need be there.

    Args:
        text: What was given; ``~`` and ``~user`` are home folders.
        what: Of which option, for the message.
        error: What to raise.

    Raises:
        UserError: It is no path, names a user who does not exist, is longer than the file system takes, or has bytes
            that are not UTF-8 or control characters in it or in the folders above it.
    """
    try:
        path = Path(text)
    except TypeError:
        raise error(f"{what} must be a path, but got {quoted(text)}. Give a text.") from None
    try:
        path = path if "\0" in str(path) else path.expanduser()  # there is no user of such a name to look for
    except RuntimeError:
        raise error(
            f"{what} must begin with ~ only before the name of a user of this machine, but got {quoted(text)}. "
            "Write the whole path, or ./ before it."
        ) from None
    whole = _absolute(path)
    if any(unicodedata.category(character) in ("Cc", "Cs") for character in whole):
        raise error(
            f"{what} must be a path in UTF-8 without control characters, but got {quoted(whole)}. "
            "Rename it, or use another."
        )
    try:
        path.lstat()
    except OSError as reason:
        if reason.errno == errno.ENAMETOOLONG:
            raise error(
                f"{what} must be a path that the file system takes, but {quoted(whole)}: {reason.strerror}. "
                "Use a shorter name."
            ) from None
    return path


def _absolute(path: Path) -> str:
    try:
        return str(path.absolute())
    except OSError:  # the working folder was deleted: what is to be written there will say so
        return str(path)
