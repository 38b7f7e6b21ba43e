"""Open a study folder, and refuse one that is foreign, another study's, or in use."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import filelock
import msgspec

from advisor.errors import OutputFolderError
from advisor.hardware.hardware import Hardware
from advisor.policy.file import Fingerprints
from advisor.session.request import TuneRequest
from advisor.text.printable import shown
from advisor.text.records import DamagedError, decode_record, encode_record
from advisor.trial.folder import StudyFolder, write_atomically

__all__ = ["StudyMarker", "check_folder", "default_folders", "locked", "open_study", "study_marker"]

_SCHEMA = 1

_LONGEST_NAME = 200
"""Most bytes of a workload's name in a folder's name: file systems allow 255 in all."""


class StudyMarker(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``study.json``: the workload, device and request that the folder's measurements belong to.

    Attributes:
        hardware: Properties that identify the device.
        request: Fingerprint of goal, limits, search space and seed.
        memory_limit_bytes: The limit that all trials of this study run under.
    """

    schema: int
    workload: dict[str, str]
    hardware: dict[str, str | int]
    versions: dict[str, str]
    request: str
    memory_limit_bytes: int

    @property
    def fingerprints(self) -> Fingerprints:
        """The fingerprints as a policy file states them."""
        return Fingerprints(
            workload=self.workload, hardware=self.hardware, versions=self.versions, request=self.request
        )

    @property
    def fingerprint(self) -> str:
        """Identity of the study, without the limit (free memory differs a little at every start)."""
        identity = (self.schema, self.workload, self.hardware, self.versions, self.request)
        return hashlib.sha256(msgspec.json.encode(identity, order="deterministic")).hexdigest()[:16]

    def differences(self, other: StudyMarker) -> list[str]:
        """Differences from another marker, in words."""
        found = []
        for name in ("schema", "workload", "hardware", "versions", "request"):
            mine, theirs = getattr(self, name), getattr(other, name)
            if mine == theirs:
                continue
            if isinstance(mine, dict) and isinstance(theirs, dict):
                keys = sorted(k for k in mine.keys() | theirs.keys() if mine.get(k) != theirs.get(k))
                found.append(f"{name} ({shown(', '.join(keys))})")
            else:
                found.append("goal, limits, search space or seed" if name == "request" else name)
        return found


def study_marker(
    request: TuneRequest, hardware: Hardware, versions: dict[str, str], space_text: str, limit_bytes: int
) -> StudyMarker:
    """The marker of the study that a request asks for."""
    return StudyMarker(
        schema=_SCHEMA,
        workload={"name": request.source.name, "fingerprint": request.source.fingerprint},
        hardware={
            "kind": hardware.kind.value,
            "name": hardware.name,
            "memory_bytes": hardware.memory_bytes,
            "host_cores": hardware.host_cores,
            "driver": hardware.driver_version or "",
            "compute_capability": ".".join(map(str, hardware.compute_capability or ())),
        },
        versions=versions,
        request=request.fingerprint(space_text),
        memory_limit_bytes=limit_bytes,
    )


def default_folders(marker: StudyMarker) -> Iterator[Path]:
    """Candidate folders of a study, so that an edited model never meets old measurements.

    The first is for this source on this machine; the others are for when something else that the model reads changed.
    """
    name = marker.workload["name"].encode()[:_LONGEST_NAME].decode(errors="ignore")
    first = Path("momadvise-runs") / f"{name}-{marker.fingerprint[:8]}"
    yield first
    for number in itertools.count(2):
        yield first.with_name(f"{first.name}-{number}")


def check_folder(path: Path, marker: StudyMarker) -> StudyMarker | None:
    """Check the folder without changing it; return its marker, or ``None`` if it is new or empty.

    Raises:
        OutputFolderError: It is a file, foreign, another study's, or not readable.
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


def _unusable(path: Path, error: OSError) -> OutputFolderError:
    return OutputFolderError(
        f"--output must be a folder that can be written, but {path} cannot: {error.strerror}. Name another folder."
    )


def _recognized(folder: StudyFolder, marker: StudyMarker) -> StudyMarker:
    try:
        stored = decode_record(folder.marker.read_bytes(), StudyMarker)
    except DamagedError:
        raise OutputFolderError(
            f"--output must be a folder of this version of momadvise, but {folder.marker} cannot be understood. "
            "Name another folder; nothing in this one was changed."
        ) from None
    if stored.fingerprint != marker.fingerprint:
        raise OutputFolderError(
            f"--output must be a new folder or this study's own, but {folder.path} belongs to another study: "
            f"different {', '.join(marker.differences(stored))}. Name another folder, or leave --output out; nothing "
            "in this one was changed."
        )
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
