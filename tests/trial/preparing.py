"""Prepare workloads in processes forked from one that has a single thread and has run nothing.

A test process is no such thing: torch has started threads there, and what needs them would wait forever after a fork.
"""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec

from advisor.trial.spec import TrialSpec
from advisor.trial.worker import prepared
from advisor.trial.worker.forked_trial import end_children, run_forked


class PreparingProcess:
    """The process to fork from, until the end of the ``with`` block."""

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.trial.preparing"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.communicate()

    def prepare(self, spec: TrialSpec, folder: Path, *, attempt_seconds: float = 20.0) -> dict[str, Any] | None:
        """What ``prepare`` finds, for trials of this workload."""
        told = folder / "told"
        request = pickle.dumps((spec, told, attempt_seconds)).hex()
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{request}\n".encode())
        self._process.stdin.flush()
        assert self._process.stdout.readline() == b"None\n", "the forked process came to its end"
        answer: dict[str, Any] | None = json.loads(told.read_text())
        return answer


def _answer(spec: TrialSpec, told: Path) -> None:
    found = prepared.prepare(spec)
    fields = None
    if found is not None:
        other = msgspec.structs.replace(spec, seed=1)
        sized = msgspec.structs.replace(spec, model_size={"width": 2})
        fields = {
            "threads": found.threads,
            "loaded": found.workload is not None,
            "reused": found.loaded(spec) is found.workload if found.workload is not None else None,
            "other seed": found.take_model(other) is not None,
            "other size": found.take_model(sized) is not None,
            "taken": [found.take_model(spec) is not None for _ in range(2)],
        }
    told.write_text(json.dumps(fields))
    end_children()


def main() -> None:
    """Answer requests until there are no more."""
    for line in sys.stdin:
        spec, told, prepared._ATTEMPT_SECONDS = pickle.loads(bytes.fromhex(line))
        print(run_forked(lambda spec=spec, told=told: _answer(spec, told)), flush=True)  # type: ignore[misc]


if __name__ == "__main__":
    main()
