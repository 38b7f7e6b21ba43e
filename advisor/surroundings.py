"""User errors for failures of the operating system: a full disk, a missing permission, a limit."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from advisor.errors import OutputFolderError, SurroundingsError, UserError

__all__ = ["check_working_folder", "refused"]

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_TO_DO = {
    **dict.fromkeys(_FULL, "Make room"),
    **dict.fromkeys((errno.EACCES, errno.EPERM, errno.EROFS), "Give permission"),
    errno.EMFILE: "Allow more open files (ulimit -n)",
    errno.ENFILE: "Close other programs' files",
    errno.EAGAIN: "Allow more processes (ulimit -u)",
    errno.ENOMEM: "Free memory",
}


def check_working_folder() -> None:
    """Check that the current folder exists: processes are started in it.

    Raises:
        SurroundingsError: It was deleted.
    """
    try:
        os.getcwd()
    except OSError:
        raise SurroundingsError(
            "momadvise must run in an existing folder, but the current one was deleted. Change to another folder (cd) "
            "and run the same command again."
        ) from None


def refused(error: OSError, output: Path | None = None) -> UserError:
    """The error to raise in place of an ``OSError``, which may concern the output folder."""
    try:
        check_working_folder()
    except SurroundingsError as gone:
        return gone
    what = f"{error.filename}: {error.strerror}" if error.filename else error.strerror or str(error)
    to_do = _TO_DO.get(error.errno or 0, "Fix that")
    ours = output is not None and isinstance(error.filename, str) and Path(error.filename).is_relative_to(output)
    rule = "be able to write what it finds" if ours else "get what it needs from the system"
    kind = OutputFolderError if ours else SurroundingsError
    again = f"{to_do} and run the same command again: finished trials are kept."
    return kind(f"momadvise must {rule}, but {what}. {again}")
