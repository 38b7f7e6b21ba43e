"""Ranks of one machine find each other where nobody else can come."""

from __future__ import annotations

import json
import os
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from advisor.trial.outcome import Outcome
from advisor.trial.process.connection import child_environment
from advisor.trial.process.runner import Runner
from advisor.trial.ranks.meeting import FileMeeting, NetworkMeeting, PrivateFile, listening
from advisor.trial.ranks.rank_group import Death, RankGroup
from advisor.trial.ranks.rank_start import start_ranks
from advisor.trial.ranks.seat import Seat
from tests.trial.specs import my_children, wait_until
from tests.trial.test_ranks import Ranks


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for what is temporary."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def seat(rank: int, meeting: FileMeeting | NetworkMeeting, *, channel: int | None = None) -> Seat:
    return Seat(
        rank=rank,
        size=2,
        local_rank=rank,
        local_size=2,
        launcher=os.getpid(),
        meeting=meeting,
        run="a launch",
        channel=channel,
    )


def test_a_file_in_memory_has_no_name_that_others_could_open(temporary: Path) -> None:
    file = PrivateFile()
    assert file.descriptor is not None
    assert os.fstat(file.descriptor).st_nlink == 0
    assert file.meeting.path == f"/proc/self/fd/{file.descriptor}"
    file.close()
    assert list(temporary.iterdir()) == []


def test_a_file_in_a_folder_is_this_users_alone_and_goes_with_the_meeting(temporary: Path) -> None:
    file = PrivateFile(in_memory=False)
    (folder,) = temporary.iterdir()
    assert file.meeting.path == str(folder / "store")
    assert folder.stat().st_mode & 0o777 == 0o700
    file.close()
    assert list(temporary.iterdir()) == []


def test_on_one_machine_gloo_and_nccl_stay_there_whatever_the_environment_says() -> None:
    alone = seat(1, FileMeeting(path="store")).environment({"GLOO_SOCKET_IFNAME": "eth0", "OMP_NUM_THREADS": "3"})
    assert alone["GLOO_SOCKET_IFNAME"] in ("lo", "lo0")
    assert alone["NCCL_SOCKET_IFNAME"] == f"={alone['GLOO_SOCKET_IFNAME']}"
    assert (alone["RANK"], alone["WORLD_SIZE"], alone["LOCAL_RANK"], alone["OMP_NUM_THREADS"]) == ("1", "2", "1", "3")
    several = seat(1, NetworkMeeting(host="first", port=29400, run="a")).environment({})
    assert "GLOO_SOCKET_IFNAME" not in several
    assert (several["MASTER_ADDR"], several["MASTER_PORT"]) == ("first", "29400")


def test_of_an_address_that_alone_is_listened_on() -> None:
    with listening("127.0.0.1") as one, listening("localhost") as every, listening("192.0.2.1") as not_here:
        assert one.getsockname()[0] == "127.0.0.1"
        assert every.getsockname()[0] == "0.0.0.0", "other machines may know a name by another address"
        assert not_here.getsockname()[0] == "0.0.0.0", "the address of a gateway"


@pytest.fixture
def pipe() -> Iterator[int]:
    here, there = os.pipe()
    yield here
    os.close(here)
    os.close(there)


@pytest.mark.slow
def test_ranks_that_are_executed_meet_in_a_folder(
    temporary: Path, pipe: int, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """As on a system without files in memory, and where the libraries have opened a GPU."""
    monkeypatch.setenv("PYTHONPATH", child_environment(os.environ)["PYTHONPATH"])
    file = PrivateFile(in_memory=False)
    pairs = [socket.socketpair() for _ in range(2)]
    seats = [seat(rank, file.meeting, channel=end.detach()) for rank, (_, end) in enumerate(pairs)]
    group = RankGroup(dict(enumerate(one for one, _ in pairs)), start_ranks(seats, forks=False), pipe)
    heard: list[object] = []

    def all_joined() -> bool:
        heard.extend(group.receive()[0])
        return group.joined == 2 or bool(heard)

    def all_ended() -> bool:
        heard.extend(group.receive()[0])
        return len(heard) == 2

    assert wait_until(all_joined, seconds=120.0)
    assert heard == [], capfd.readouterr()
    for channel, _ in pairs:
        channel.shutdown(socket.SHUT_RDWR)
    assert wait_until(all_ended)
    assert sorted(heard, key=str) == [(rank, Death(status=0)) for rank in range(2)]
    group.close()
    file.close()
    assert list(temporary.iterdir()) == []


@pytest.mark.slow
def test_while_ranks_of_one_machine_train_nothing_can_be_reached_from_others(tmp_path: Path) -> None:
    """Nor is there a store: what listens are the connections of gloo, at ports of each rank on loopback."""
    ranks = Ranks(tmp_path)
    with Runner(tmp_path / "study") as runner:
        result = runner.run(ranks.spec(2, how="looks around", who=(1,)))
        assert result.outcome is Outcome.OK, (result, runner.tail_of_log(result.key))
        listeners = json.loads((tmp_path / "listening").read_text())
    assert {address for _, _, address, _ in listeners} <= {"127.0.0.1", "::1"}
    assert {process for process, *_ in listeners} <= set(ranks.processes(2)), "neither launcher nor guardian listens"
    assert {kind for _, kind, *_ in listeners} <= {"SOCK_STREAM"}
    assert my_children() == []
