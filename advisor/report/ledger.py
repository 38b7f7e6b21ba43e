"""The ledger: one JSON line per finished trial, appended as it finishes."""

from __future__ import annotations

import datetime
import os
from pathlib import Path

import msgspec

from advisor.errors import OutputFolderError
from advisor.trial.outcome import Outcome
from advisor.trial.spec import TrialKind, TrialResult, TrialSpec

__all__ = ["Ledger", "LedgerEntry"]


class LedgerEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One line: what was tried, how it ended, what was measured.

    Attributes:
        finished_at: Time of the entry, ISO 8601 in UTC.
        key: Key of the trial.
        kind: What was done.
        policy: The methods in one line.
        micro_batch: Samples per forward pass.
        accumulation_steps: Passes per optimizer step.
        outcome: How it ended.
        reason: Why, when it is not OK.
        samples_per_second: Measured throughput (TIME and CONFIRM), else ``null``.
        peak_bytes: Measured peak: of the step, or of the largest batch tried (SIZE); ``null`` without one.
        wall_seconds: How long it took, as the parent saw it.
        warm: Whether a running worker served it.
    """

    finished_at: str
    key: str
    kind: TrialKind
    policy: str
    micro_batch: int
    accumulation_steps: int
    outcome: Outcome
    reason: str
    samples_per_second: float | None
    peak_bytes: int | None
    wall_seconds: float
    warm: bool


class Ledger:
    """A file that only grows.

    An entry is written with one call and flushed to the disk, so that a killed process loses no finished trial; the
    torn last line that a power cut could leave is closed before the next entry and skipped when reading.

    Args:
        path: The file; it is made when the first entry is written.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def append(self, spec: TrialSpec, result: TrialResult) -> None:
        """Add a finished trial.

        Raises:
            OutputFolderError: The file cannot be written.
        """
        line = msgspec.json.encode(_entry(spec, result)) + b"\n"
        try:
            with self.path.open("ab+") as file:
                size = file.seek(0, os.SEEK_END)
                if size:
                    file.seek(size - 1)
                    if file.read(1) != b"\n":
                        line = b"\n" + line
                file.write(line)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise OutputFolderError(
                f"The output folder must be writable, but {self.path}: {error.strerror or error}. "
                "Use another --output folder."
            ) from error

    def read(self) -> tuple[LedgerEntry, ...]:
        """Every whole entry, in the order of finishing; empty without a file."""
        if not self.path.exists():
            return ()
        entries = []
        for line in self.path.read_bytes().splitlines():
            try:
                entries.append(msgspec.json.decode(line, type=LedgerEntry))
            except msgspec.DecodeError:
                # Only an interrupted write leaves such a line; what it was about was not finished writing.
                continue
        return tuple(entries)


def _entry(spec: TrialSpec, result: TrialResult) -> LedgerEntry:
    measurement, sizing = result.measurement, result.sizing
    peak = None
    if measurement is not None:
        peak = measurement.memory.peak_bytes
    elif sizing is not None and sizing.points:
        peak = sizing.points[-1].memory.peak_bytes
    return LedgerEntry(
        finished_at=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        key=result.key,
        kind=spec.kind,
        policy=spec.policy.label,
        micro_batch=spec.policy.micro_batch,
        accumulation_steps=spec.policy.accumulation_steps,
        outcome=result.outcome,
        reason=result.reason,
        samples_per_second=None if measurement is None else measurement.samples_per_second,
        peak_bytes=peak,
        wall_seconds=result.wall_seconds,
        warm=result.warm,
    )
