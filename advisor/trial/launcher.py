"""The worker of a trial on several ranks: has them started, hands them requests, merges what they report.

Nothing is ended here. The parent ends the whole group once it has the answer, stopped ranks included.
"""

from __future__ import annotations

import os
import secrets
import socket
import threading
import time
import traceback
import uuid
from collections.abc import Mapping
from pathlib import Path

import msgspec

from advisor.errors import OutputFolderError
from advisor.trial.agent import run_agent
from advisor.trial.folder import TrialFolder
from advisor.trial.following import Launch, announced
from advisor.trial.gathering import Gathering
from advisor.trial.host_memory import OutOfMemoryEvidence
from advisor.trial.nodes import Nodes
from advisor.trial.protocol import Finished, LineReader, Progress, Ready, Reported, Request, Unwritten, encode_line
from advisor.trial.rank_group import Death, RankGroup

__all__ = ["launch"]


def launch(requests: int, answers: int, ranks: int, nodes: Nodes) -> None:
    """Start ranks, and run trials on them until the other end of ``requests`` is closed; does not return.

    Args:
        requests: Descriptor to read requests from.
        answers: Descriptor to write answers to.
        ranks: How many, on all nodes together.
        nodes: The machines, of which this is the first.
    """
    assert nodes.rank == 0, "the first node tunes"
    host = "127.0.0.1" if nodes.count == 1 else nodes.host
    # Other nodes reach this one by a name that need not be that of one interface.
    listener = socket.create_server(("127.0.0.1" if nodes.count == 1 else "", 0))
    plan = Launch(
        run=uuid.uuid4().hex,
        local_ranks=nodes.local_ranks(ranks),
        address=f"{host}:{listener.getsockname()[1]}",
        token=secrets.token_hex(16),
    )
    plan.into_environment()

    def started(processes: Mapping[int, int]) -> None:
        group = RankGroup(listener, plan.token, processes, requests)
        threading.Thread(target=_watch, args=(group, ranks, requests, answers), daemon=True).start()

    with announced(plan, nodes):
        own = (requests, answers, listener.fileno())
        run_agent(plan.local_ranks, plan.run, nodes, started, own)


def _watch(group: RankGroup, size: int, requests: int, answers: int) -> None:
    """Serve, then end the process; whatever goes wrong here must not leave a launcher that nobody hears of."""
    status = 1
    try:
        status = _serve(group, size, requests, answers)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


def _serve(group: RankGroup, size: int, requests: int, answers: int) -> int:
    """Run trials; the exit status when there is nothing more to do."""
    while group.joined < size:
        news, closed = group.receive()
        if closed or any(isinstance(message, Death) for _, message in news):
            return 1  # what it printed is in the log
    os.write(answers, encode_line(Ready()))
    reader = LineReader(requests)
    while True:
        news, readable = group.receive()
        if any(isinstance(message, Death) for _, message in news):
            return 1  # between trials: the parent finds out when it asks for the next one
        if not readable:
            continue
        lines = reader.read()
        if lines is None:
            return 0
        for line in lines:
            _run(group, size, msgspec.json.decode(line, type=Request), answers)


def _run(group: RankGroup, size: int, request: Request, answers: int) -> None:
    spec = request.spec
    assert spec.policy.gpu_count == size, f"{size} ranks cannot run a trial of {spec.policy.gpu_count}"
    evidence = OutOfMemoryEvidence()
    gathering = Gathering(spec.key, size, evidence.found)
    group.send(request)
    while (verdict := gathering.verdict(time.monotonic())) is None:
        evidence.look()
        news, _ = group.receive(gathering.deadline)
        for rank, message in news:
            match message:
                case Progress():
                    os.write(answers, encode_line(message))
                case Reported():
                    gathering.report(rank, message, time.monotonic())
                case Death(status=status):
                    gathering.death(rank, status, time.monotonic())
                case Unwritten():
                    os.write(answers, encode_line(message))
                    return
                case _:
                    raise AssertionError(f"a rank at work on {spec.key} must not say {message}")
    try:
        TrialFolder(Path(request.folder)).write_result(verdict.result)
    except OutputFolderError as error:
        os.write(answers, encode_line(Unwritten(reason=str(error))))
        return
    os.write(answers, encode_line(Finished(key=spec.key, clean=not verdict.why, why=verdict.why)))
