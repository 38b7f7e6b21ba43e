"""The worker of a trial on several ranks: starts them, sends them requests, merges their reports.

Nothing is ended here. The parent ends the whole group once it has the answer, stopped ranks included.
"""

from __future__ import annotations

import os
import secrets
import socket
import sys
import time
import traceback
import uuid
from collections.abc import Iterable
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
from advisor.trial.ranks.seat import Seat

__all__ = ["launch"]


def launch(requests: int, answers: int, ranks: int, nodes: Nodes) -> NoReturn:
    """Start ranks, and run trials on them until the other end of ``requests`` is closed; ends this process.

    Args:
        requests: Descriptor to read requests from.
        answers: Descriptor to write answers to.
        ranks: How many, on all nodes together.
        nodes: The machines, of which this is the first.
    """
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
    file = PrivateFile()
    try:
        channels, ends = _channels(range(ranks))
        run = uuid.uuid4().hex
        seats = [
            Seat(
                rank=rank,
                size=ranks,
                local_rank=rank,
                local_size=ranks,
                launcher=os.getpid(),
                meeting=file.meeting,
                run=run,
                channel=ends[rank],
            )
            for rank in range(ranks)
        ]
        own = [requests, answers, *(channel.fileno() for channel in channels.values())]
        shared = [] if file.descriptor is None else [file.descriptor]
        processes = start_ranks(seats, own=own, shared=shared)
        return _serve(RankGroup(channels, processes, requests), ranks, requests, answers)
    finally:
        file.close()


def _launch_on_several(requests: int, answers: int, ranks: int, nodes: Nodes) -> int:
    """The ranks of this machine are connected to this process, those of others come in by the door."""
    listener = listening(nodes.host)
    plan = Launch(
        meeting=NetworkMeeting(host=nodes.host, port=nodes.port, run=uuid.uuid4().hex),
        ranks=ranks,
        entrance=Entrance(host=nodes.host, port=listener.getsockname()[1], token=secrets.token_hex(16)),
    )
    here = range(nodes.local_ranks(ranks))
    channels, ends = _channels(here)
    seats = [msgspec.structs.replace(seat, entrance=None, channel=ends[seat.rank]) for seat in plan.seats(nodes)]
    own = [requests, answers, listener.fileno(), *(channel.fileno() for channel in channels.values())]
    processes = start_ranks(seats, own=own)
    group = RankGroup(channels, processes, requests)
    group.open_door(listener, plan.entrance.token, range(len(here), ranks))
    store = announced(plan)
    status = _serve(group, ranks, requests, answers)
    del store
    return status


def _channels(ranks: Iterable[int]) -> tuple[dict[int, socket.socket], dict[int, int]]:
    """Connections to ranks: this process's ends, and descriptors of the others."""
    channels, ends = {}, {}
    for rank in ranks:
        channels[rank], end = socket.socketpair()
        ends[rank] = end.detach()
    return channels, ends


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
