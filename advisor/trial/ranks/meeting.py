"""Where the ranks of a trial find each other: on one machine a file that nobody else can open, on several a port."""

from __future__ import annotations

import contextlib
import datetime
import ipaddress
import os
import socket
import sys
from pathlib import Path
from typing import Any

import msgspec

from advisor.files import PrivateFolder

__all__ = [
    "FileMeeting",
    "Meeting",
    "NetworkMeeting",
    "PrivateFile",
    "listening",
    "loopback_only",
    "reached_store",
    "served_store",
]

_LONGEST_MEETING = datetime.timedelta(minutes=10)


class FileMeeting(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The ranks of one machine meet in a file."""

    path: str

    def store(self, size: int) -> Any:
        """What torch.distributed exchanges addresses through."""
        import torch.distributed as dist

        return dist.FileStore(self.path, size)  # type: ignore[attr-defined]


class NetworkMeeting(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The ranks of several machines meet at a store of the first one."""

    host: str
    port: int
    run: str

    def store(self, size: int) -> Any:
        """What torch.distributed exchanges addresses through."""
        import torch.distributed as dist

        return dist.PrefixStore(self.run, reached_store(self.host, self.port))  # type: ignore[attr-defined]


Meeting = FileMeeting | NetworkMeeting


class PrivateFile:
    """A file for one meeting that no other user can open: in memory, without a name, where the system has that.

    Elsewhere it lies in a folder that is this user's alone. What a launcher that was killed has left of those goes when
    the next one makes its own.
    """

    def __init__(self, *, in_memory: bool | None = None) -> None:
        self.descriptor: int | None = None
        """What a rank must inherit, if anything."""
        self._folder: PrivateFolder | None = None
        if in_memory is not False and Path("/proc/self/fd").is_dir() and hasattr(os, "memfd_create"):
            with contextlib.suppress(OSError):  # not permitted, say
                self.descriptor = os.memfd_create("momadvise-ranks")
        path = f"/proc/self/fd/{self.descriptor}"
        if self.descriptor is None:
            assert not in_memory, "this system keeps no files in memory"
            self._folder = PrivateFolder("ranks")
            path = str(self._folder.path / "store")
        self.meeting = FileMeeting(path=path)
        """For the ranks that start with the descriptor."""

    def close(self) -> None:
        """Nobody meets there any more."""
        if self.descriptor is not None:
            os.close(self.descriptor)
        if self._folder is not None:
            self._folder.close()


def loopback_only() -> dict[str, str]:
    """Variables that keep what gloo and NCCL open on this machine from being reached from others.

    A rank's connections to others of its machine go by that interface or by shared memory in any case.
    """
    loopback = "lo" if sys.platform == "linux" else "lo0"
    return {"GLOO_SOCKET_IFNAME": loopback, "NCCL_SOCKET_IFNAME": f"={loopback}"}


def listening(host: str, port: int = 0) -> socket.socket:
    """A socket that other machines can reach.

    Args:
        host: How they name this machine. Of an address, that alone is listened on; of a name, all addresses are, as
            other machines need not know it by the address that it has here.
        port: Where; 0 for one that the system chooses.

    Raises:
        OSError: Somebody else listens there.
    """
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return socket.create_server(("", port))
    family = socket.AF_INET6 if address.version == 6 else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except OSError:  # the address of a gateway, say
        return socket.create_server(("", port))


def served_store(host: str, port: int) -> Any:
    """The store at which several machines meet, served by this process as long as what this returns is held.

    Raises:
        OSError: Somebody else listens there.
    """
    listener = listening(host, port)
    return _tcp_store(host, port, is_master=True, master_listen_fd=listener.detach())


def reached_store(host: str, port: int) -> Any:
    """The same store, from any machine.

    Raises:
        torch.distributed.DistError: Nobody does.
    """
    return _tcp_store(host, port, is_master=False)


def _tcp_store(host: str, port: int, **options: Any) -> Any:
    import torch.distributed as dist

    return dist.TCPStore(  # type: ignore[attr-defined]
        host, port, timeout=_LONGEST_MEETING, wait_for_workers=False, **options
    )
