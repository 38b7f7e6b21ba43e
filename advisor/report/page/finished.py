"""Read a finished study back from its folder: the answer, what it rests on, and every trial."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, cast

import msgspec

from advisor.decide.answer import Answer, load_answer
from advisor.decide.candidate import Candidate
from advisor.errors import OptionError
from advisor.policy.fingerprints import Asked
from advisor.text.printable import shown
from advisor.text.records import DamagedError, decode_record, read_record
from advisor.trial.folder import StudyFolder
from advisor.trial.result import TrialResult
from advisor.trial.spec import TrialSpec

__all__ = ["RULE", "FinishedStudy", "StoredTrial", "read_finished", "require_files"]


class StoredTrial(NamedTuple):
    """A trial that ended."""

    spec: TrialSpec
    result: TrialResult


class FinishedStudy(msgspec.Struct, frozen=True):
    """What a study folder holds.

    Attributes:
        model: What a command in the current folder calls the workload; empty for functions.
        asked: Option -> value.
        options: Flag -> value of what else is typed to ask for it again.
        tried: Candidates in the order in which they were tried.
        trials: In the order in which they ended, as far as that was recorded.
    """

    folder: StudyFolder
    answer: Answer
    model: str = ""
    asked: Asked = {}
    options: dict[str, str] = {}
    tried: tuple[Candidate, ...] = ()
    trials: tuple[StoredTrial, ...] = ()


class _Marker(msgspec.Struct):
    """What is needed of ``study.json``, of whichever version."""

    workload: dict[str, str] = {}
    versions: dict[str, str] = {}
    asked: Asked = {}
    options: dict[str, str] = {}


def read_finished(path: Path) -> FinishedStudy:
    """Read a study with an answer.

    Raises:
        OptionError: It is no study, one without an answer, one of another version, or it cannot be read.
    """
    folder = StudyFolder(path)
    try:
        if not path.is_dir():
            raise OptionError(
                f"{RULE}, but {shown(path)} is {'a file' if path.exists() else 'not there'}. Name the folder that "
                "holds its answer.json, such as momadvise-runs/NAME."
            )
        if not folder.marker.exists():
            raise OptionError(f"{RULE}, but {shown(path)} holds none: it has no {folder.marker.name}. {_NAME_ANOTHER}")
        return _read(folder)
    except OSError as error:
        raise OptionError(f"{RULE}, but {shown(path)} cannot be read: {error.strerror or error}.") from None


RULE = "momadvise report needs the folder of a finished study"
"""How its errors begin."""

_NAME_ANOTHER = "Name another folder."


_LARGEST_BYTES = 256 * 2**20


def require_files(folder: StudyFolder) -> None:
    """Nothing is waited for, or read without end.

    Raises:
        OptionError: A record of the study is no file, or larger than any that a study writes.
    """
    for path in (folder.marker, folder.answer, folder.ledger, folder.policy):
        if not path.exists() or path.is_dir():
            continue  # Reading says what is wrong.
        if not path.is_file():
            raise OptionError(f"{RULE}, but {shown(path)} is no file. {_NAME_ANOTHER}")
        if path.stat().st_size > _LARGEST_BYTES:
            raise OptionError(f"{RULE}, but {shown(path)} is larger than any that a study writes. {_NAME_ANOTHER}")


def _read(folder: StudyFolder) -> FinishedStudy:
    require_files(folder)
    marker = read_record(folder.marker, _Marker)
    folder.marker.read_bytes()  # whether it may be read at all
    if not folder.answer.exists():
        tried = _tried(folder)
        raise OptionError(
            f"{RULE}, but {shown(folder.path)} "
            + (
                "has no answer yet: the search was ended from outside"
                if tried
                else "is empty: nothing was measured yet"
            )
            + ". Run the command that began it again: it continues."
        )
    folder.answer.read_bytes()
    answer = load_answer(folder)
    if answer is None or marker is None:
        version = "" if marker is None else marker.versions.get("momadvise", "")
        by = f"momadvise {version}" if version else "another version of momadvise"
        raise OptionError(
            f"{RULE} that this version understands, but {shown(folder.path)} was written by {shown(by)}, or is "
            "damaged. Make the report with that version, or run the study's command again."
        )
    trials = tuple(_trials(folder))
    return FinishedStudy(
        folder=folder,
        answer=answer,
        model=_model(marker.workload.get("model", ""), trials),
        asked=marker.asked,
        options=marker.options,
        tried=tuple(_tried(folder)),
        trials=trials,
    )


def _model(typed: str, trials: Sequence[StoredTrial]) -> str:
    """The workload as it is typed here. The marker has it as from the folder of then, and alone if it is gone here."""
    sources = (trial.spec.workload for trial in trials)
    found = next((one for one in sources if typed and os.path.exists(one.location)), None)
    return typed if found is None else found.typed_here


def _tried(folder: StudyFolder) -> list[Candidate]:
    """The lines of the ledger, of which a changed candidate may have several."""
    found = []
    with contextlib.suppress(FileNotFoundError):
        for line in folder.ledger.read_bytes().split(b"\n"):
            with contextlib.suppress(DamagedError):
                found.append(decode_record(line, Candidate))
    return found


def _trials(folder: StudyFolder) -> list[StoredTrial]:
    """The trials that can be read; others, of another version say, are left out."""
    found = []
    for path in sorted(folder.trials.glob("*/result.json")):
        trial = folder.trial(path.parent.name)
        with contextlib.suppress(DamagedError, OSError):
            if not (trial.spec.is_file() and trial.result.is_file()):
                continue  # a pipe would be waited for
            spec = decode_record(trial.spec.read_bytes(), TrialSpec)
            result = decode_record(trial.result.read_bytes(), TrialResult)
            found.append(StoredTrial(cast("TrialSpec", spec), cast("TrialResult", result)))
    return sorted(found, key=lambda one: one.result.ended_at)
