"""Several ranks of one launch call ``tune`` at once: one tunes, the others wait, and all see the same end.

The folder's lock makes one tune; the others wait and read its answer. Without a word from it after a failure, every
other one would repeat the whole failing search in turn.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import msgspec
import psutil

from advisor.errors import TrialError
from advisor.text.ranges import whole_variable
from advisor.text.records import encode_record, read_record
from advisor.trial.folder import StudyFolder, write_atomically

__all__ = ["failing_together", "launch_identity"]

_VARIABLES = ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE")


class _Failure(msgspec.Struct, frozen=True):
    launch: str
    message: str


def launch_identity(environment: Mapping[str, str] = os.environ) -> str | None:
    """The identity that the ranks of one launch share; ``None`` outside a launch of several ranks.

    Read from the variables that ``torchrun`` and its relatives set.

    Raises:
        OptionError: One of them is set to what no launcher sets it to.
    """
    if whole_variable(environment, "WORLD_SIZE", default=1, least=1) < 2 or "RANK" not in environment:
        return None
    whole_variable(environment, "RANK", default=0, least=0)
    return "|".join(environment.get(name, "") for name in _VARIABLES)


@contextmanager
def failing_together(folder: StudyFolder, launch: str | None) -> Iterator[None]:
    """Raise at once if another rank of the same launch failed, and record a failure of this one."""
    if launch is None:
        yield
        return
    path = folder.path / "failure.json"
    failure = read_record(path, _Failure)
    # A launch that was repeated looks the same (torchrun's default port and run id): older words are not of this one.
    if failure is not None and failure.launch == launch and path.stat().st_mtime >= psutil.Process().create_time():
        raise TrialError(f"Another rank of this launch tuned and failed: {failure.message}")
    try:
        yield
    except Exception as error:
        write_atomically(path, encode_record(_Failure(launch, str(error))))
        raise
