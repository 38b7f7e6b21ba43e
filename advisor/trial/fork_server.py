"""The process that has loaded torch once, and forks every worker: ``python -m advisor.trial.fork_server --socket FD``.

Loading torch takes seconds, and trials that ran out of memory and confirmations need a new worker each time. What is
forked from here has loaded the libraries and run nothing. No GPU may be open before: if loading opens one, nothing is
forked. Why this is not the fork server of :mod:`multiprocessing`: docs/decisions/0037.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import os
import signal
import socket
import sys
import time

import msgspec

from advisor.trial.forkable import why_not_to_fork
from advisor.trial.outcome import status_of
from advisor.workload.quick_imports import quick_imports

__all__ = ["LARGEST_MESSAGE", "Fork", "ForkAnswer", "ForkRequest", "Forked", "Look", "Seen", "Unforkable", "main"]

_POLL_SECONDS = 0.01
_LOOK_SECONDS = 1.0

LARGEST_MESSAGE = 2**17
"""Bytes, of the 208 KiB that Linux takes in a packet by default; with a larger environment workers are started."""


class Fork(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Start a worker. Sent together with its descriptors, and last with that for what it prints.

    Attributes:
        flags: Names of the arguments that tell the numbers of its descriptors.
    """

    arguments: list[str]
    flags: list[str]
    folder: str
    environment: dict[str, str]


class Look(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """How has a worker's guardian ended?

    Attributes:
        kill_seconds: Kill what is left of its process group first, and wait so long for it to end.
    """

    process: int
    kill_seconds: float | None = None


class Forked(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A worker's guardian has been started."""

    process: int


class Unforkable(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Workers cannot be forked here."""

    reason: str


class Seen(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """How a process has ended.

    Attributes:
        status: Exit status, or minus the number of the signal that ended it; ``None`` if it has not.
    """

    status: int | None


ForkRequest = Fork | Look
ForkAnswer = Forked | Seen | Unforkable


def main() -> None:
    """Serve until the parent ends; in a forked process, become a worker."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--socket", type=int, required=True, help="inherited file descriptor")
    channel = socket.socket(fileno=parser.parse_args().socket)
    parent = os.getppid()
    _load()
    reason = why_not_to_fork()
    while (received := _receive(channel, parent)) is not None:
        request, descriptors = received
        if isinstance(request, Fork) and reason:
            answer: Forked | Seen | Unforkable = Unforkable(reason=reason)
        elif isinstance(request, Fork):
            process = os.fork()
            if process == 0:
                channel.close()
                _become_worker(request, descriptors)
                return
            answer = Forked(process=process)
        elif request.kill_seconds is None:
            answer = Seen(status=status_of(request.process))
        else:
            answer = Seen(status=_end(request.process, request.kill_seconds))
        for descriptor in descriptors:
            os.close(descriptor)
        with contextlib.suppress(BrokenPipeError):  # the next receipt finds out that the parent is gone
            channel.send(msgspec.json.encode(answer))
    os._exit(0)  # nothing has run here: taking the libraries apart would keep the parent waiting for nothing


def _load() -> None:
    """Import what every worker needs; on a CPU also what the first optimizer imports, a third as much again."""
    with quick_imports():
        import torch

        import advisor.trial.worker.serving  # noqa: F401

        if torch.version.cuda is None and torch.version.hip is None:
            # Elsewhere it might open a GPU, and then nothing could be forked.
            import torch._dynamo

    gc.freeze()  # looking for garbage among these objects would copy their pages


def _receive(channel: socket.socket, parent: int) -> tuple[ForkRequest, list[int]] | None:
    """The next request; ``None`` if the parent has ended, even if one of its children still holds the channel."""
    channel.settimeout(_LOOK_SECONDS)
    while os.getppid() == parent:
        try:
            data, descriptors, _, _ = socket.recv_fds(channel, LARGEST_MESSAGE, 4)
        except TimeoutError:
            continue
        except ConnectionResetError:
            return None
        if not data:
            return None
        request: ForkRequest = msgspec.json.decode(data, type=ForkRequest)
        return request, descriptors
    return None


def _end(process: int, seconds: float) -> int | None:
    """Kill a child's group and reap it; ``None`` if it does not end."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process, signal.SIGKILL)
    deadline = time.monotonic() + seconds
    while True:
        ended, status = os.waitpid(process, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > deadline:
            return None
        time.sleep(_POLL_SECONDS)


def _become_worker(request: Fork, descriptors: list[int]) -> None:
    """Do what starting a program does: set its own session, folder, environment, descriptors and arguments."""
    os.setsid()
    os.chdir(request.folder)
    os.environ.clear()
    os.environ.update(request.environment)
    *given, output = descriptors
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(output)
    sys.argv[1:] = [*request.arguments, *(f"{name}={one}" for name, one in zip(request.flags, given, strict=True))]
    from advisor.trial.worker_main import main as work

    work()


if __name__ == "__main__":
    main()
