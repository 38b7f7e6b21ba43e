"""The worker of a trial on several ranks: starts them, sends them requests, merges their reports.

Nothing is ended here. The parent ends the whole group once it has the answer, stopped ranks included.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import sys
import time
import traceback
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

import msgspec

from advisor.errors import OutputFolderError
from advisor.text.records import decode_record
from advisor.trial.folder import TrialFolder
from advisor.trial.host_memory import OutOfMemoryEvidence
from advisor.trial.nodes import Nodes
from advisor.trial.protocol import Finished, LineReader, Progress, Ready, Reported, Request, Unwritten, encode_line
from advisor.trial.ranks.door import Entrance
from advisor.trial.ranks.gathering import Gathering
from advisor.trial.ranks.join import Launch, announced
from advisor.trial.ranks.meeting import NetworkMeeting, PrivateFile, listening
from advisor.trial.ranks.rank_group import Death, RankGroup
from advisor.trial.ranks.rank_start import start_ranks

__all__ = ["launch"]


def launch(requests: int, answers: int, ranks: int, nodes: Nodes) -> NoReturn:
    """Start ranks, and run trials on them until the other end of ``requests`` is closed; ends this process."""
    assert nodes.rank == 0, "the first node tunes"
    status = 1
    try:
        if nodes.count == 1:
            status = _launch_here(requests, answers, ranks)
        else:
            status = _launch_on_several(requests, answers, ranks, nodes)
    except BaseException:  # must not leave a launcher that nobody hears of
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


def _launch_here(requests: int, answers: int, ranks: int) -> int:
    """On this machine only; unreachable from others."""
    with contextlib.closing(PrivateFile()) as file:
        plan = Launch(meeting=file.meeting, run=uuid.uuid4().hex, ranks=ranks)
        shared = [] if file.descriptor is None else [file.descriptor]
        group = _started(plan, Nodes(), requests, own=[answers], shared=shared)
        return _serve(group, ranks, requests, answers)


def _launch_on_several(requests: int, answers: int, ranks: int, nodes: Nodes) -> int:
    """The ranks of this machine are connected to this process, those of others come in by the door."""
    listener = listening(nodes.host)
    run, token = uuid.uuid4().hex, secrets.token_hex(16)
    plan = Launch(
        meeting=NetworkMeeting(host=nodes.host, port=nodes.port, run=run),
        run=run,
        ranks=ranks,
        entrance=Entrance(host=nodes.host, port=listener.getsockname()[1], token=token),
    )
    group = _started(plan, nodes, requests, own=[answers, listener.fileno()])
    group.open_door(listener, token, range(nodes.local_ranks(ranks), ranks))
    store = announced(plan, nodes)
    status = _serve(group, ranks, requests, answers)
    del store
    return status


def _started(plan: Launch, nodes: Nodes, requests: int, *, own: Sequence[int], shared: Sequence[int] = ()) -> RankGroup:
    """Start the ranks of this machine, each connected to this process."""
    channels: dict[int, socket.socket] = {}
    seats = []
    for seat in plan.seats(nodes):
        channels[seat.rank], end = socket.socketpair()
        seats.append(msgspec.structs.replace(seat, entrance=None, channel=end.detach()))
    own = [requests, *own, *(channel.fileno() for channel in channels.values())]
    return RankGroup(channels, start_ranks(seats, own=own, shared=shared), requests)


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
            _run(group, size, decode_record(line, Request), answers)


def _run(group: RankGroup, size: int, request: Request, answers: int) -> None:
    spec = request.spec
    assert spec.policy.gpu_count == size, f"{size} ranks cannot run a trial of {spec.policy.gpu_count}"
    evidence = OutOfMemoryEvidence()
    gathering = Gathering(spec, size, evidence.found)
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
    os.write(answers, encode_line(Finished(key=spec.key, clean=verdict.clean)))
