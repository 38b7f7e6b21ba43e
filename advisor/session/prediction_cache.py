"""Predictions that were made before: the same question is not traced twice.

A question is all that the answer depends on: the model's files, the policy, the device, the versions. What else the
model's code read is kept with the answer, and must be what it was. Each answer is a file below the user's cache folder
(``MOMADVISE_CACHE`` names another). Unreadable ones are replaced; where nothing can be written, nothing is kept.
"""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import os
from pathlib import Path

import msgspec
import platformdirs

import advisor.errors
from advisor.files import clear_left_files, write_whole
from advisor.session.setup.versions import versions
from advisor.text.records import encode_record, read_record
from advisor.trial.result import PredictResult
from advisor.trial.spec import PredictTrial
from advisor.workload.identity import Identity
from advisor.workload.reads import Reads

__all__ = ["KeptPrediction", "PredictionCache"]

_MOST_FILES = 200
"""The oldest beyond that are removed; one has some ten kilobytes."""


class KeptPrediction(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One file."""

    question: str
    date: str
    result: PredictResult
    identity: Identity


class PredictionCache:
    """Finds and keeps predictions."""

    def __init__(self, folder: Path | None = None) -> None:
        named = os.environ.get("MOMADVISE_CACHE")
        self._folder = folder or (Path(named) if named else platformdirs.user_cache_path("momadvise")) / "predictions"

    def path(self, spec: PredictTrial, device: str) -> Path:
        """The file of a question."""
        return self._folder / f"{hashlib.sha256(_question(spec, device).encode()).hexdigest()[:16]}.json"

    def find(self, spec: PredictTrial, device: str) -> KeptPrediction | None:
        """What was answered before."""
        kept = read_record(self.path(spec, device), KeptPrediction)
        if kept is None or kept.question != _question(spec, device) or kept.result.prediction is None:
            return None
        return None if kept.identity.changes() else kept

    def keep(self, spec: PredictTrial, device: str, result: PredictResult) -> None:
        """Keep an answer, if a file can be written."""
        assert result.prediction is not None, "only predictions are kept"
        path = self.path(spec, device)
        kept = KeptPrediction(
            question=_question(spec, device),
            date=datetime.date.today().isoformat(),
            result=result,
            identity=Identity.of(result.reads or Reads(), result.identity),
        )
        with contextlib.suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            clear_left_files(path.parent)
            write_whole(path, encode_record(kept))
            for old in sorted(self._folder.glob("*.json"), key=_written, reverse=True)[_MOST_FILES:]:
                old.unlink(missing_ok=True)


def _question(spec: PredictTrial, device: str) -> str:
    known = {
        "trial": spec.key,
        "device": device,
        "versions": versions(),
        "package": _package_stamp(),
    }
    return msgspec.json.encode(known, order="deterministic").decode()


def _package_stamp() -> str:
    """Changes when a file of this package does: its version is the same for as long as it is developed."""
    package = Path(advisor.errors.__file__).parent
    stamps = sorted(f"{path.relative_to(package)} {path.stat().st_mtime_ns}" for path in package.rglob("*.py"))
    return hashlib.sha256("\n".join(stamps).encode()).hexdigest()[:16]


def _written(path: Path) -> float:
    with contextlib.suppress(OSError):  # removed meanwhile, by another process
        return path.stat().st_mtime
    return 0.0
