"""Trials of a workload that misbehaves in one place."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import msgspec

from advisor.policy.policy import Policy
from advisor.trial.spec import Trial, TrialSpec
from advisor.workload.workload import WorkloadKind, WorkloadSource
from tests.trial.specs import spec

__all__ = ["Unruly"]

_MODEL = Path(__file__).parent / "workloads" / "unruly.py"


class Unruly:
    """Writes the workload.

    Args:
        folder: Where.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def file(self, how: str = "", *where: str, above: int = 0) -> Path:
        """The workload's file.

        Args:
            how: It misbehaves; empty for not at all.
            where: See the workload.
            above: So many samples it misbehaves not.
        """
        text = f"{_MODEL.read_text()}\nHOW, WHERE, ABOVE, FOLDER = {how!r}, {where}, {above}, {str(self.folder)!r}\n"
        path = self.folder / f"model-{hashlib.sha256(text.encode()).hexdigest()[:8]}.py"
        path.write_text(text)
        return path

    def trial(self, kind: type[Trial[Any]], how: str = "", *where: str, above: int = 0, **changes: Any) -> TrialSpec:
        """A trial of it."""
        path = self.file(how, *where, above=above)
        source = WorkloadSource(kind=WorkloadKind.FILE, location=str(path), name="unruly", fingerprint=path.stem)
        fields: dict[str, Any] = {"policy": Policy(micro_batch=4), "device": "cuda:0", "memory_limit_bytes": 2**30}
        return spec(kind=kind, workload=source, **{**fields, **changes})

    @staticmethod
    def beside_plain(trial: TrialSpec) -> TrialSpec:
        """The same, in turn with plain training."""
        return msgspec.structs.replace(trial, beside=Policy(micro_batch=trial.policy.micro_batch))
