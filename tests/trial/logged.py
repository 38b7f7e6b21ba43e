"""Workloads that write down what happens to them in which process."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import msgspec

from advisor.trial.spec import TrialSpec
from advisor.workload.workload import WorkloadKind, WorkloadSource
from tests.trial.specs import WORKLOADS, spec


class Logged:
    """A copy of ``workloads/logged.py``, with whatever a test adds to it.

    Args:
        folder: For the copy and its log.
        added: Source below it.
    """

    def __init__(self, folder: Path, added: str = "") -> None:
        folder.mkdir(exist_ok=True)
        self._path = folder / "logged.py"
        shutil.copyfile(WORKLOADS / "logged.py", self._path)
        with self._path.open("a") as file:
            file.write(f"\n\n{added}\n")
        self._log = folder / "log"

    def spec(self, **changes: Any) -> TrialSpec:
        """A trial of it."""
        source = WorkloadSource(
            kind=WorkloadKind.FILE, location=str(self._path), name="logged", fingerprint=str(self._path)
        )
        return msgspec.structs.replace(spec(**changes), workload=source)

    def processes(self, what: str) -> list[int]:
        """The processes in which something happened, in that order."""
        lines = self._log.read_text().splitlines() if self._log.exists() else []
        return [int(line.rsplit(" ", 1)[1]) for line in lines if line.rsplit(" ", 1)[0] == what]
