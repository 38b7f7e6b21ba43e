"""Validate paths from the user: they must be usable in another process, in a file and on a screen."""

from __future__ import annotations

import errno
import os
import unicodedata
from pathlib import Path

from advisor.errors import UserError
from advisor.text.printable import quoted

__all__ = ["as_seen_from_here", "path_of"]


def path_of(text: str | os.PathLike[str], what: str, error: type[UserError]) -> Path:
    """The path that the user means, where ``~`` and ``~user`` are home folders; it need not exist.

    Raises:
        UserError: It is not a path, names an unknown user, is too long for the file system, or it or its parent folders
            contain control characters or bytes that are not UTF-8.
    """
    try:
        path = Path(text)
    except TypeError:
        raise error(f"{what} must be a path, but got {quoted(text)}. Give a text.") from None
    try:
        path = path if "\0" in str(path) else path.expanduser()  # no user has such a name
    except RuntimeError:
        raise error(
            f"{what} must begin with ~ only before the name of a user of this machine, but got {quoted(text)}. "
            "Write the whole path, or ./ before it."
        ) from None
    try:
        whole = str(path.absolute())
    except OSError:  # the working folder was deleted: writing there will report it
        whole = str(path)
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


def as_seen_from_here(path: Path) -> Path:
    """The path as a user would type it: relative if it is below the current folder."""
    try:
        here = Path.cwd()
    except OSError:  # deleted
        return path
    return path.relative_to(here) if path.is_relative_to(here) else path
