"""One rank, with torchrun's environment: forked from its launcher, or ``python -m advisor.trial.ranks.rank``.

It serves trials as the worker of a single device does, except that its share of the result goes to the launcher.
"""

from __future__ import annotations

import datetime
import faulthandler
import os
import socket
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import msgspec

from advisor.text.ranges import digits
from advisor.trial.guardian import end_with_parent
from advisor.trial.ranks.door import enter
from advisor.trial.ranks.seat import SEAT_VARIABLE, Seat
from advisor.workload.quick_imports import quick_imports

if TYPE_CHECKING:
    from advisor.trial.worker.partner import Partner

__all__ = ["main", "run_forked"]

_PARTNERS = "partners"
"""Name of the group of the ranks' partners."""

_FOREVER = datetime.timedelta(days=1)
_MOST_THREADS = 4096
"""A rank that waits for another is ended by the trial's time limit, never by a limit of the library."""


def main() -> None:
    """Find the other ranks, then serve until the launcher goes away."""
    seat = msgspec.json.decode(os.environ.pop(SEAT_VARIABLE), type=Seat)
    if seat.channel is not None:
        os.set_inheritable(seat.channel, False)
    _run(seat)


def run_forked(seat: Seat, foreign: Sequence[int]) -> NoReturn:
    """The same in a process that was forked from the launcher; ends the process, as the end of a program does."""
    status = 1
    try:
        for descriptor in foreign:
            os.close(descriptor)
        end_with_parent(seat.launcher)
        partner = _forked_partner(seat)
        _take_place(seat)
        _run(seat, partner)
        status = 0
    except SystemExit as ended:  # of the user's model
        status = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _take_threads() -> None:
    """As many as a library would take that is loaded here: the launcher's was loaded before anybody said how many."""
    import torch

    said = digits(os.environ.get("OMP_NUM_THREADS", ""))
    if said is not None and 0 < said <= _MOST_THREADS:
        torch.set_num_threads(said)


def _forked_partner(seat: Seat) -> Partner | None:
    """A process that alternates with this rank's trials, as a rank of a second group or as a single process.

    Forked before this process has a rank's environment and threads, which a single process would not have.
    """
    from advisor.trial.worker.partner_process import fork_partner

    def join() -> None:
        _take_place(seat)
        _join_group(seat, _PARTNERS)

    try:
        return fork_partner(None, join)
    except OSError:
        return None


def _take_place(seat: Seat) -> None:
    os.environ |= seat.environment()
    _take_threads()


def _run(seat: Seat, partner: Partner | None = None) -> None:
    end_with_parent(seat.launcher)
    faulthandler.enable()
    _serve(seat, _join(seat), partner)


def _join(seat: Seat) -> socket.socket:
    with quick_imports():
        from advisor.trial.protocol import Joined, encode_line

    if seat.entrance is None:
        assert seat.channel is not None, "a rank is connected to its launcher, or knows where to connect"
        channel = socket.socket(fileno=seat.channel)
    else:
        channel = enter(seat.entrance, seat.rank)
    _join_group(seat, "")
    channel.sendall(encode_line(Joined()))
    return channel


def _join_group(seat: Seat, group: str) -> None:
    """Find the other ranks of one of the groups that meet in the same place."""
    with quick_imports():
        import torch
        import torch.distributed as dist

        from advisor.training.processes.world import current_world

    store = seat.meeting.store(seat.size)
    store.set_timeout(_FOREVER)
    if group:
        store = dist.PrefixStore(group, store)  # type: ignore[attr-defined]
    cuda = torch.cuda.is_available() and dist.is_nccl_available()
    backend = "cpu:gloo,cuda:nccl" if cuda else "gloo"
    dist.init_process_group(backend, store=store, rank=seat.rank, world_size=seat.size, timeout=_FOREVER)
    current_world()  # makes its own group, on all ranks at once


def _serve(seat: Seat, channel: socket.socket, partner: Partner | None) -> None:
    import torch

    from advisor.errors import OutputFolderError
    from advisor.text.records import decode_record
    from advisor.trial.folder import TrialFolder
    from advisor.trial.outcome import Outcome
    from advisor.trial.protocol import LineReader, Progress, Reported, Request, Unwritten, encode_line
    from advisor.trial.worker.failure import is_secondary
    from advisor.trial.worker.imported_code import ImportedCode
    from advisor.trial.worker.model_copy import ModelCopy
    from advisor.trial.worker.run_trial import run_trial
    from advisor.trial.worker.serving import print_into

    def tell(text: str) -> None:
        if seat.rank == 0:  # one of them is enough for a display
            channel.sendall(encode_line(Progress(text=text)))

    model_copy, imported = ModelCopy(), ImportedCode()
    reader = LineReader(channel.fileno())
    while (lines := reader.read()) is not None:
        for line in lines:
            request = decode_record(line, Request)
            spec = request.spec
            if torch.device(spec.device).type == "cuda":
                spec = msgspec.structs.replace(spec, device=f"cuda:{seat.local_rank}")
            errors: list[BaseException] = []
            result: Any
            try:
                if Path(request.folder).is_dir():  # another node need not have it
                    print_into(TrialFolder(Path(request.folder)).log)
                with imported.held(spec):
                    result, leftover = run_trial(spec, tell, errors.append, partner=partner, model_copy=model_copy)
            except OutputFolderError as error:
                channel.sendall(encode_line(Unwritten(reason=str(error))))
                continue
            secondary = result.outcome is Outcome.FAILED and any(map(is_secondary, errors))
            errors.clear()
            channel.sendall(encode_line(Reported(result=result, clean=not leftover, secondary=secondary)))


if __name__ == "__main__":
    main()
