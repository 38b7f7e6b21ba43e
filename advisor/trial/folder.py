"""The files of a study folder, and writing them atomically."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from advisor.errors import OutputFolderError
from advisor.files import clear_left_files, write_whole
from advisor.text.records import DamagedError, decode_record, encode_record
from advisor.trial.outcome import Outcome
from advisor.trial.result import Result
from advisor.trial.spec import ConfirmTrial, CountTrial, LookTrial, ProbeTrial, TimeTrial, Trial, TrialSpec

__all__ = ["StudyFolder", "TrialFolder", "write_atomically", "writing"]

_R = TypeVar("_R", bound=Result)
_FOLLOWER = "momadvise-node-"


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn a failure to write into an error that says what to do.

    Raises:
        OutputFolderError: The block raised an ``OSError``, such as no space or no permission.
    """
    try:
        yield
    except OSError as error:
        raise OutputFolderError(
            f"momadvise must be able to write what it finds, but {path} cannot be written: {error.strerror or error}. "
            "Make room or give permission there and run the same command again: finished trials are kept."
        ) from error


def write_atomically(path: Path, content: bytes | str) -> None:
    """Write a file atomically (:func:`advisor.files.write_whole`), or raise an error that says what to do.

    Raises:
        OutputFolderError: It could not be written; the old file, if any, is unmodified.
    """
    with writing(path):
        write_whole(path, content)


class TrialFolder:
    """The files of one trial: ``<study>/trials/<key>``."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.spec = path / "spec.json"
        """The request."""
        self.result = path / "result.json"
        """The result; exists only once the trial has ended."""
        self.log = path / "log.txt"
        """The output of the user's model and the libraries."""
        self.gradient = path / "gradient.pt"
        """The reference run's first gradient, for comparison; written by its worker."""
        self.movement = path / "movement.pt"
        """A plain loop's parameters after each step, for comparison with a wrapper's; written by its worker."""

    def read_result(self, spec: Trial[_R]) -> _R | None:
        """The stored result, or ``None`` if there is none that can be read: the trial has not finished."""
        result: _R | None = _read(self.result, spec.result_type)
        return result

    def read_spec(self) -> TrialSpec | None:
        """The stored request, or ``None`` if there is none that can be read."""
        found: TrialSpec | None = _read(self.spec, TrialSpec)
        return found

    def write_result(self, result: Result) -> None:
        """Store the result."""
        write_atomically(self.result, msgspec.json.format(encode_record(result)))

    def finished(self, spec: Trial[_R]) -> _R | None:
        """The stored result, if it is still valid for ``spec``.

        Interrupted trials and looks are always run again. A timeout is valid until at least twice the time is allowed;
        the runner may still decide to run it again. Probes and counts are reused only if they succeeded: the user may
        have fixed the failure where changes are not tracked, in a data file or a library.
        """
        result = self.read_result(spec)
        if result is None or result.outcome is Outcome.INTERRUPTED or isinstance(spec, LookTrial):
            return None
        if result.outcome is not Outcome.OK and isinstance(spec, ProbeTrial | CountTrial):
            return None
        if result.outcome is Outcome.TIMEOUT:
            earlier = self.read_spec()
            if earlier is None or spec.time_limit_seconds >= 2 * earlier.time_limit_seconds:
                return None
        return result


def _read(path: Path, kind: Any) -> Any:
    """A record; ``None`` if it is missing or damaged. Other read errors are raised."""
    try:
        return decode_record(path.read_bytes(), kind)
    except (FileNotFoundError, DamagedError):
        return None


class StudyFolder:
    """The files of one study."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.marker = path / "study.json"
        """What the measurements in this folder are valid for; it marks the folder as a study's."""
        self.identity = path / "identity.json"
        """What else the measurements depend on: the files that the workload read, and the model's identity."""
        self.lock = path / "lock"
        """Held while a process tunes in this folder."""
        self.trials = path / "trials"
        """One folder per trial."""
        self.database = path / "study.db"
        """Optuna's study."""
        self.ledger = path / "ledger.jsonl"
        """The candidates: one line of JSON per finished policy."""
        self.answer = path / "answer.json"
        """The recommendation."""
        self.policy = path / "policy.yaml"
        """The policy file, for people and for ``advisor.apply_policy``."""
        self.wrapper = path / "wrapper.py"
        """The wrapper that applies the policy."""
        self.page = path / "report.html"
        """The report, for people to look at."""
        self.emitted = path / "emitted.json"
        """Digests of every policy and wrapper written here, to detect edited ones."""

    def follower_log(self, rank: int) -> Path:
        """Output of another machine's ranks, if that machine writes into this folder."""
        return self.path / f"{_FOLLOWER}{rank}.log"

    def is_ours(self, entry: Path) -> bool:
        """Whether an entry may exist before the folder is a study's.

        A follower may start first, and another process may be writing the marker right now.
        """
        follower = entry.name.startswith(_FOLLOWER) and entry.suffix == ".log"
        return follower or entry.name == self.lock.name or entry.name.startswith(f".{self.marker.name}.")

    def clear_left_files(self) -> None:
        """Remove partial files of killed processes; call with the lock held."""
        for folder in (self.path, *self.trials.glob("*/")):
            clear_left_files(folder)

    def forget_confirmations(self) -> None:
        """Remove the results of wrappers that were run, and of what was measured again beside them: they run anew."""
        for path in self.trials.glob("*/"):
            folder = TrialFolder(path)
            spec = folder.read_spec()
            if isinstance(spec, ConfirmTrial) or (isinstance(spec, TimeTrial) and spec.repeat):
                folder.result.unlink(missing_ok=True)

    def trial(self, key: str) -> TrialFolder:
        """The files of one trial."""
        return TrialFolder(self.trials / key)
