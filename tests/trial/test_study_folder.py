from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from advisor.errors import OutputFolderError
from advisor.text.records import encode_record
from advisor.trial.folder import StudyFolder, write_atomically
from advisor.trial.outcome import Outcome
from advisor.trial.result import TimeResult
from advisor.trial.spec import ConfirmTrial, CountTrial, ProbeTrial, Trial
from tests.trial.specs import spec


def test_writing_replaces_the_file_whole(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_atomically(path, "first")
    write_atomically(path, b"second")
    assert path.read_text() == "second"
    assert os.listdir(tmp_path) == ["file"]


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_writing_that_fails_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    path = tmp_path / "file"
    write_atomically(path, "first")

    def full(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, step, full)
    with pytest.raises(OutputFolderError, match=r"but .*file cannot be written: No space left on device\. Make"):
        write_atomically(path, "second")
    assert path.read_text() == "first"
    assert os.listdir(tmp_path) == ["file"]


def test_a_trial_has_a_folder_of_its_own(tmp_path: Path) -> None:
    study = StudyFolder(tmp_path)
    trial = study.trial("time-1")
    assert trial.result == tmp_path / "trials" / "time-1" / "result.json"
    names = [study.marker, study.lock, study.database, study.ledger, study.answer, study.policy, study.wrapper]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("text", [None, "", "{", '{"key": "time-1"}', '{"key": "time-1", "outcome": "splendid"}'])
def test_a_result_that_cannot_be_understood_is_not_finished(tmp_path: Path, text: str | None) -> None:
    trial = StudyFolder(tmp_path).trial("time-1")
    trial.path.mkdir(parents=True)
    if text is not None:
        trial.result.write_text(text)
    assert trial.read_result(spec()) is None
    assert trial.finished(spec()) is None


def test_a_result_comes_back_as_it_was(tmp_path: Path) -> None:
    trial = StudyFolder(tmp_path).trial("time-1")
    trial.path.mkdir(parents=True)
    result = TimeResult(key="time-1", outcome=Outcome.OUT_OF_MEMORY, reason="too large", wall_seconds=1.5)
    trial.write_result(result)
    assert trial.read_result(spec()) == result
    assert trial.finished(spec()) == result


@pytest.mark.parametrize("kind", [ProbeTrial, CountTrial])
def test_what_a_study_rests_on_is_looked_at_again_unless_it_went_well(tmp_path: Path, kind: type[Trial[Any]]) -> None:
    """A data file that was missing is there now, and nothing that is compared has changed."""
    asked = spec(kind=kind)
    trial = StudyFolder(tmp_path).trial(asked.key)
    trial.path.mkdir(parents=True)
    trial.write_result(asked.ended(Outcome.FAILED, "no train.bin"))
    assert trial.finished(asked) is None
    well = asked.ended(Outcome.OK)
    trial.write_result(well)
    assert trial.finished(asked) == well


def test_confirmations_and_what_was_measured_again_beside_them_can_be_forgotten(tmp_path: Path) -> None:
    study = StudyFolder(tmp_path)
    first, again, confirmed = spec(), spec(repeat=1), spec(kind=ConfirmTrial, wrapper_path="wrapper.py")
    for one in (first, again, confirmed):
        trial = study.trial(one.key)
        trial.path.mkdir(parents=True)
        write_atomically(trial.spec, encode_record(one))
        trial.write_result(one.ended(Outcome.OK))
    study.forget_confirmations()
    left = [one for one in (first, again, confirmed) if study.trial(one.key).finished(one) is not None]
    assert left == [first]
