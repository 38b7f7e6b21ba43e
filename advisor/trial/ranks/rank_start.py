"""Starts the ranks of one machine: forked from this process, which has loaded the libraries, else executed."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

import msgspec

import advisor.trial.worker.serving  # noqa: F401  (what ranks need is loaded once, here)
from advisor.trial.forkable import can_fork, why_not_to_fork
from advisor.trial.ranks.rank import run_forked
from advisor.trial.ranks.seat import SEAT_VARIABLE, Seat

__all__ = ["start_ranks"]

_COMMAND = (sys.executable, "-P", "-u", "-m", "advisor.trial.ranks.rank")


def start_ranks(
    seats: Sequence[Seat], *, own: Sequence[int] = (), shared: Sequence[int] = (), forks: bool | None = None
) -> dict[int, int]:
    """Start a process for each seat: rank -> process number. Called by the main thread, with whose end they end.

    They print where this process prints, until a trial begins.

    Args:
        seats: Of all ranks of this machine; their channels are closed here.
        own: Descriptors of this process that are none of a rank's business.
        shared: Descriptors that every rank needs.
        forks: Whether to fork them; by default where that is possible.
    """
    if forks is None:
        forks = can_fork() and not why_not_to_fork()
    channels = [seat.channel for seat in seats if seat.channel is not None]
    processes = {}
    for seat in seats:
        if forks:
            processes[seat.rank] = _fork(seat, [*own, *(one for one in channels if one != seat.channel)])
        else:
            processes[seat.rank] = _execute(seat, shared)
        if seat.channel is not None:
            channels.remove(seat.channel)
            os.close(seat.channel)
    return processes


def _fork(seat: Seat, foreign: Sequence[int]) -> int:
    process = os.fork()
    if process == 0:
        run_forked(seat, foreign)
    return process


def _execute(seat: Seat, shared: Sequence[int]) -> int:
    """What is not inheritable, as almost nothing is, is closed in it."""
    inherited = [one for one in (*shared, seat.channel) if one is not None]
    environment = {**os.environ, **seat.environment(), SEAT_VARIABLE: msgspec.json.encode(seat).decode()}
    for descriptor in inherited:
        os.set_inheritable(descriptor, True)
    try:
        return os.posix_spawn(sys.executable, _COMMAND, environment)
    finally:
        for descriptor in inherited:
            os.set_inheritable(descriptor, False)
