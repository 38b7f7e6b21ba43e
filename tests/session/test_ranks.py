"""Ranks of one launch see the same end."""

import os
from pathlib import Path

import psutil
import pytest

from advisor.errors import NothingFitsError, TrialError
from advisor.session.setup.ranks import failing_together, launch_identity
from advisor.trial.folder import StudyFolder

RANK_0 = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_PORT": "29500", "TORCHELASTIC_RUN_ID": "a"}


def test_a_launch_is_recognized_by_what_its_ranks_share() -> None:
    assert launch_identity(RANK_0) == launch_identity({**RANK_0, "RANK": "1"})
    assert launch_identity(RANK_0) != launch_identity({**RANK_0, "TORCHELASTIC_RUN_ID": "b"})


def test_a_single_process_is_no_launch() -> None:
    assert launch_identity({}) is None
    assert launch_identity({"RANK": "0", "WORLD_SIZE": "1"}) is None


def test_what_one_rank_failed_with_is_raised_at_once_in_the_others(tmp_path: Path) -> None:
    folder = StudyFolder(tmp_path)
    with pytest.raises(NothingFitsError), failing_together(folder, "launch"):
        raise NothingFitsError("nothing fits below 1 GiB")
    with pytest.raises(TrialError, match="nothing fits below 1 GiB"), failing_together(folder, "launch"):
        pytest.fail("the search must not be repeated")


def test_the_same_launch_started_again_later_tries_again(tmp_path: Path) -> None:
    """Trap: torchrun's default port and run id are the same every time."""
    folder = StudyFolder(tmp_path)
    with pytest.raises(NothingFitsError), failing_together(folder, "launch"):
        raise NothingFitsError("the data was not there yet")
    before_this_process = psutil.Process().create_time() - 1
    os.utime(tmp_path / "failure.json", (before_this_process, before_this_process))
    with failing_together(folder, "launch"):
        ran = True
    assert ran


def test_another_launch_tries_again(tmp_path: Path) -> None:
    folder = StudyFolder(tmp_path)
    with pytest.raises(NothingFitsError), failing_together(folder, "launch"):
        raise NothingFitsError("no")
    with failing_together(folder, "another launch"):
        ran = True
    assert ran
