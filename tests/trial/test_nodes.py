"""Ranks on several nodes: two of them, both on this machine."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from advisor.trial.nodes import Nodes
from advisor.trial.outcome import Outcome
from advisor.trial.process.follower import follow
from advisor.trial.process.runner import Runner
from tests.trial.specs import is_running, my_children, wait_until
from tests.trial.test_ranks import Ranks


def test_a_single_machine_needs_no_flags() -> None:
    assert Nodes().flags() == ()
    assert Nodes().local_ranks(3) == 3


def test_several_machines_meet_at_the_first() -> None:
    nodes = Nodes(count=2, endpoint="[::1]:29400", rank=1)
    assert (nodes.host, nodes.port) == ("::1", 29400)
    assert nodes.local_ranks(4) == 2
    assert nodes.flags() == ("--nodes=2", "--endpoint=[::1]:29400", "--node-rank=1")


@pytest.mark.parametrize("endpoint", ["", "host", "host:", "host:port"])
def test_several_machines_need_a_place_to_meet(endpoint: str) -> None:
    with pytest.raises(AssertionError, match="host:port"):
        Nodes(count=2, endpoint=endpoint)


@pytest.fixture
def endpoint() -> str:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return f"127.0.0.1:{server.getsockname()[1]}"


@pytest.fixture
def follower(endpoint: str, tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    code = f"""
from pathlib import Path
from advisor.trial.process.follower import follow
from advisor.trial.nodes import Nodes
follow(Nodes(count=2, endpoint={endpoint!r}, rank=1), Path({str(tmp_path)!r}, "follower.txt"))
"""
    process = subprocess.Popen([sys.executable, "-c", code], cwd=Path(__file__).parent.parent.parent)
    yield process
    process.kill()
    process.wait()


def test_a_follower_gives_up_when_nobody_launches_anything(endpoint: str, tmp_path: Path) -> None:
    nodes = Nodes(count=2, endpoint=endpoint, rank=1)
    follow(nodes, tmp_path / "follower.txt", patience_seconds=0.1)
    assert not (tmp_path / "follower.txt").exists()


def knocked(launcher: psutil.Process) -> list[socket.socket]:
    """Strangers at every port of a launcher: those that say something wrong, or too much, and those that are silent."""
    addresses = [one.laddr for one in launcher.net_connections("tcp") if one.status == psutil.CONN_LISTEN]
    assert len(addresses) == 2, "the store where ranks meet, and the door"
    assert {address.ip for address in addresses} == {"127.0.0.1"}, "the address of the endpoint"
    strangers = []
    for address in addresses:
        for said in (b"", b"x", b"\xff\n", b"GET / HTTP/1.1\r\n\r\n", b"x" * 2**16):
            strangers.append(socket.create_connection(address, timeout=10.0))
            with contextlib.suppress(OSError):  # not heard to the end
                strangers[-1].sendall(said)
    return strangers


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_follower_takes_part_in_launch_after_launch(
    endpoint: str, follower: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    ranks = Ranks(tmp_path)
    with Runner(tmp_path / "study", nodes=Nodes(count=2, endpoint=endpoint)) as runner:
        failed = runner.run(ranks.spec(2, how="raises", who=(1,)))
        assert failed.outcome is Outcome.FAILED, (failed, (tmp_path / "follower.txt").read_text())
        assert failed.reason == "rank 1: ValueError: my mistake"
        before = ranks.processes(2)

        trial = ranks.spec(2)
        good = runner.run(trial)
        assert good.outcome is Outcome.OK, (good, (tmp_path / "follower.txt").read_text())
        assert good.measurement is not None
        assert good.measurement.samples_per_second == pytest.approx(8 / good.measurement.step_seconds)
        first, second = (psutil.Process(process) for process in ranks.processes(2))
        assert not set(before) & {first.pid, second.pid}
        assert follower.pid in [parent.pid for parent in second.parents()]
        assert follower.pid not in [parent.pid for parent in first.parents()]
        assert not any(is_running(process) for process in before)

        launcher = first.parent()
        assert launcher is not None
        strangers = knocked(launcher)
        again = runner.run(ranks.spec(2, repeat=1))
        assert again.outcome is Outcome.OK, (again, runner.tail_of_log(again.key))
        assert again.warm, "no stranger has ended the launcher"
        for stranger in strangers:
            stranger.close()
        follower.kill()
        assert wait_until(lambda: not second.is_running())
    assert wait_until(lambda: my_children() == [])
    assert not first.is_running()
