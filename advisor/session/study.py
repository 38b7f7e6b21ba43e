"""Open a study folder, and refuse one that is foreign, another study's, or in use."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import filelock
import msgspec

from advisor.errors import OutputFolderError
from advisor.hardware.hardware import Hardware
from advisor.policy.fingerprints import Asked, Fingerprints, hardware_facts
from advisor.session.request import TuneRequest
from advisor.text.printable import shown
from advisor.text.records import DamagedError, decode_record, encode_record
from advisor.trial.folder import StudyFolder, write_atomically
from advisor.workload.difference import Difference, Weight
from advisor.workload.identity import Identity

__all__ = [
    "AnotherStudyError",
    "StudyMarker",
    "check_folder",
    "default_folders",
    "folders_to_make",
    "locked",
    "open_study",
    "remove_begun",
    "study_marker",
]

_SCHEMA = 2
"""Before, a model was known by the text of its file alone."""

_VERSION = re.compile(r"\d+\.\d+\.\d")

_LONGEST_NAME = 200
"""Most bytes of a workload's name in a folder's name: file systems allow 255 in all."""

_LONGEST_REASON = 600


class AnotherStudyError(OutputFolderError):
    """The folder holds another study."""


class StudyMarker(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``study.json``: the workload, device and request that the folder's measurements belong to.

    Attributes:
        hardware: Properties that identify the device.
        request: Hash of goal, limits and search space.
        asked: The same in values.
        options: Flag -> value of what ``asked`` has only as a digest, or not at all, to be typed again.
        memory_limit_bytes: The limit that all trials of this study run under.
    """

    schema: int
    workload: dict[str, str]
    hardware: dict[str, str | int]
    versions: dict[str, str]
    request: str
    asked: Asked = {}
    options: dict[str, str] = {}
    memory_limit_bytes: int

    @property
    def fingerprints(self) -> Fingerprints:
        """The same as a policy file states it, but for what the model is."""
        return Fingerprints(
            workload=self.workload,
            hardware=self.hardware,
            versions=self.versions,
            request=self.request,
            asked=self.asked,
            options=self.options,
        )

    @property
    def fingerprint(self) -> str:
        """Names the study: what makes it another one, as far as that has no tolerance. The model's name has no part."""
        device = [self.hardware.get(name) for name in ("kind", "name", "compute_capability")]
        device += ["simulated"] if self.hardware.get("simulated") else []
        torch = ".".join(self.versions.get("torch", "").split(".")[:2])
        identity = (self.schema, self.workload.get("fingerprint"), tuple(device), torch, self.request)
        return hashlib.sha256(msgspec.json.encode(identity, order="deterministic")).hexdigest()[:16]

    def fingerprints_with(self, identity: Identity | None) -> Fingerprints:
        """The same, with what the model is and its code reads; what belongs to this machine is left out."""
        return msgspec.structs.replace(self.fingerprints, identity=None if identity is None else identity.portable)

    def differences(self, now: StudyMarker) -> list[Difference]:
        """What differs now."""
        libraries = [name for name in now.versions if name not in ("torch", "python", "momadvise", "transformers")]
        return self.fingerprints.differences(now.fingerprints, libraries)


def study_marker(
    request: TuneRequest, hardware: Hardware, versions: dict[str, str], space_text: str, limit_bytes: int
) -> StudyMarker:
    """The marker of the study that a request asks for."""
    source = request.source
    return StudyMarker(
        schema=_SCHEMA,
        workload={"name": source.name, "fingerprint": source.fingerprint, "model": source.typed},
        hardware=hardware_facts(hardware),
        versions=versions,
        request=request.fingerprint(space_text),
        asked=request.asked(space_text),
        options=request.options_again,
        memory_limit_bytes=limit_bytes,
    )


def default_folders(marker: StudyMarker) -> Iterator[Path]:
    """Candidate folders of a study, so that an edited model never meets old measurements.

    The first is for this source on this machine; the others are for when something else that the model reads changed.
    """
    runs, short = Path("momadvise-runs"), marker.fingerprint[:8]
    name = marker.workload["name"].encode()[:_LONGEST_NAME].decode(errors="ignore")
    first = runs / f"{name}-{short}"
    if not first.exists():  # a renamed file is the same model
        first = min(runs.glob(f"*-{short}"), default=first)
    yield first
    for number in itertools.count(2):
        yield first.with_name(f"{first.name}-{number}")


def check_folder(path: Path, marker: StudyMarker) -> StudyMarker | None:
    """Check the folder without changing it; return its marker, or ``None`` if it is new or empty.

    Raises:
        AnotherStudyError: It is another study's.
        OutputFolderError: It is a file, foreign, or not readable.
    """
    folder = StudyFolder(path.absolute())
    try:
        if not folder.path.exists():
            return None
        if not folder.path.is_dir():
            raise OutputFolderError(f"--output must be a folder, but {folder.path} is a file. Name another folder.")
        if folder.marker.exists():
            return _recognized(folder, marker)
        if not all(folder.is_ours(entry) for entry in folder.path.iterdir()):
            if folder.marker.exists():  # another process of this launch has just begun the study
                return _recognized(folder, marker)
            raise OutputFolderError(
                f"--output must be a new folder, an empty one, or one that momadvise made, but {folder.path} holds "
                "other files. Name another folder; nothing in this one was changed."
            )
    except OSError as error:
        raise _unusable(folder.path, error) from None
    return None


def open_study(path: Path, marker: StudyMarker) -> tuple[StudyFolder, StudyMarker]:
    """Create the study's folder, or recognize it. Call it with the lock held.

    Returns:
        The folder and the marker in force (a continued study keeps its memory limit).

    Raises:
        OutputFolderError: It is foreign, another study's, or not writable.
    """
    folder = StudyFolder(path.absolute())
    stored = check_folder(path, marker)
    if stored is not None:
        folder.clear_left_files()
        return folder, stored
    try:
        folder.path.mkdir(parents=True, exist_ok=True)
        folder.clear_left_files()
        write_atomically(folder.marker, msgspec.json.format(encode_record(marker)))
    except OSError as error:
        raise _unusable(folder.path, error) from None
    return folder, marker


def folders_to_make(path: Path) -> list[Path]:
    """A study's folder and those around it that do not exist yet, innermost first."""
    return [one for one in (path.absolute(), *path.absolute().parents) if not one.exists()]


def remove_begun(folder: StudyFolder, made: Iterable[Path]) -> None:
    """Remove a study that was begun and has nothing to keep, and the folders that were made for it.

    Call it with the lock held, and where no other process waits for it.
    """
    shutil.rmtree(folder.trials, ignore_errors=True)
    with contextlib.suppress(OSError):  # the error that led here is what the user has to hear of
        for file in (folder.marker, folder.lock):
            file.unlink(missing_ok=True)
        for path in made:
            path.rmdir()


def _unusable(path: Path, error: OSError) -> OutputFolderError:
    return OutputFolderError(
        f"--output must be a folder that can be written, but {path} cannot: {error.strerror}. Name another folder."
    )


def _not_understood(folder: StudyFolder) -> OutputFolderError:
    return OutputFolderError(
        f"--output must be a folder of this version of momadvise, but {folder.marker} cannot be understood. "
        "Name another folder; nothing in this one was changed."
    )


def _recognized(folder: StudyFolder, marker: StudyMarker) -> StudyMarker:
    content = folder.marker.read_bytes()
    try:
        stored = decode_record(content, StudyMarker)
    except DamagedError:
        raise _not_understood(folder) from None
    if stored.schema != marker.schema:
        raise AnotherStudyError(
            f"--output must be a new folder or this study's own, but {folder.path} belongs to another study: an older "
            "version of momadvise measured it, which knew a model by the text of its file alone. Name another folder, "
            "or leave --output out; nothing in this one was changed."
        )
    stale = [one.words for one in stored.differences(marker) if one.weight is Weight.STALE]
    if stale:
        raise AnotherStudyError(
            f"--output must be a new folder or this study's own, but {folder.path} belongs to another study: "
            f"{shown(', '.join(stale), _LONGEST_REASON)}. Name another folder, or leave --output out; "
            "nothing in this one was changed."
        )
    # What older studies did not state is not compared, but these they did.
    if not (stored.hardware.keys() >= {"kind", "name"} and _VERSION.match(stored.versions.get("torch", ""))):
        raise _not_understood(folder)
    if not os.access(folder.path, os.W_OK):
        raise OutputFolderError(f"--output must be a folder that can be written, but {folder.path} cannot.")
    return stored


@contextlib.contextmanager
def locked(path: Path, *, on_wait: Callable[[], None] | None) -> Iterator[None]:
    """Hold the folder's lock: one process tunes into a folder at a time.

    The operating system frees the lock of a process that was killed.

    Args:
        path: The study folder.
        on_wait: Called before waiting for another process to finish; ``None`` if that is an error instead.

    Raises:
        OutputFolderError: Another process tunes into the folder (without ``on_wait``), or it cannot be written.
    """
    folder = StudyFolder(path.absolute())
    lock = filelock.FileLock(folder.lock)
    try:
        folder.path.mkdir(parents=True, exist_ok=True)
        try:
            lock.acquire(timeout=0)
        except filelock.Timeout:
            if on_wait is None:
                raise OutputFolderError(
                    f"One process may tune into a folder at a time, but another one is using {folder.path}. "
                    "Wait for it, or name another folder with --output."
                ) from None
            on_wait()
            lock.acquire()
    except OSError as error:
        raise _unusable(folder.path, error) from None
    try:
        yield
    finally:
        lock.release()
