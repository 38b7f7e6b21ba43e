"""The worker's loop in this process, between two pipes; trials in processes of their own are in test_forked_trial."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import msgspec
import pytest

from advisor.trial.folder import StudyFolder
from advisor.trial.outcome import Outcome
from advisor.trial.protocol import Answer, Finished, Ready, Request, Unwritten, encode_line
from advisor.trial.result import TrialResult
from advisor.trial.spec import TrialSpec
from advisor.trial.worker import serving
from tests.trial.specs import spec


def served(requests: list[Request]) -> list[Answer]:
    """What the worker says to these requests."""
    request_read, request_write = os.pipe()
    answer_read, answer_write = os.pipe()
    for request in requests:
        os.write(request_write, encode_line(request))
    os.close(request_write)
    serving.serve(request_read, answer_write)
    os.close(request_read)
    os.close(answer_write)
    with os.fdopen(answer_read, "rb") as answers:
        return [msgspec.json.decode(line, type=Answer) for line in answers]


def test_a_full_disk_is_told_and_the_worker_serves_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(spec: TrialSpec, tell: object, **options: object) -> tuple[TrialResult, str]:
        return spec.ended(Outcome.OK), ""

    full = iter([True])

    def sync(descriptor: int) -> None:
        if next(full, False):
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(serving, "run_trial", run)
    monkeypatch.setattr(serving, "wants_process_of_its_own", lambda spec: False)  # ``sync`` counts in this process
    monkeypatch.setattr(serving, "print_into", lambda log: None)
    monkeypatch.setattr(os, "fsync", sync)
    study = StudyFolder(tmp_path)
    requests = []
    for repeat in range(2):
        trial = spec("well", repeat=repeat)
        folder = study.trial(trial.key)
        folder.path.mkdir(parents=True)
        requests.append(Request(spec=trial, folder=str(folder.path)))
    started, unwritten, finished = served(requests)
    assert isinstance(started, Ready)
    assert isinstance(unwritten, Unwritten)
    assert "No space left on device" in unwritten.reason
    assert isinstance(finished, Finished)
    assert study.trial(requests[0].spec.key).read_result(requests[0].spec) is None
    assert study.trial(finished.key).read_result(requests[1].spec) is not None


def test_a_log_that_cannot_be_opened_is_told(tmp_path: Path) -> None:
    trial = spec("well")
    _, unwritten = served([Request(spec=trial, folder=str(tmp_path / "gone"))])
    assert isinstance(unwritten, Unwritten)
    assert "log.txt" in unwritten.reason
