"""A gate at one place of a run: who comes there first waits until the player has hit whom it wants to hit.

So a hit comes when something can be seen to be under way, and never after a while.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import msgspec

__all__ = ["Arrival", "At", "Place", "argument", "arrived", "opened", "pass_by", "take_argument"]

_LOOK_SECONDS = 0.005
_LONGEST_WAIT_SECONDS = 240.0


class At(msgspec.Struct, frozen=True):
    """Something that happens in a run.

    Attributes:
        what: ``"server"``, the kind of a trial, or the name of a file of the study.
        point: Of a server ``"loading"``; of a trial ``"begin"``, ``"told"`` (a line of its progress), ``"end"`` (before
            its result is written) or ``"written"``; of a file ``"writing"`` (all but renamed) or ``"written"``.
        rank: Of a trial on several ranks, the one that waits.
    """

    what: str
    point: str
    rank: int | None = None


class Place(msgspec.Struct, frozen=True):
    """The n-th time, from 0, that something happens."""

    at: At
    nth: int = 0

    def __str__(self) -> str:
        turn = f" {self.nth + 1}" if self.nth else ""
        return f"{self.at.what}{turn}, {self.at.point}"


class Arrival(msgspec.Struct, frozen=True):
    """Who waits at the gate.

    Attributes:
        process: Its number.
        key: The trial that it runs, or empty.
    """

    process: int
    key: str


class _Gate(msgspec.Struct, frozen=True):
    folder: str
    place: Place


_gate: _Gate | None = None


def argument(folder: Path, place: Place) -> str:
    """What a program is given first to have a gate; not in its environment, of which a model's reads are recorded.

    Args:
        folder: New, for this gate alone.
        place: Where it is.
    """
    folder.mkdir(parents=True)
    return msgspec.json.encode(_Gate(str(folder), place)).decode()


def take_argument() -> str:
    """In such a program: have that gate, and leave the other arguments."""
    global _gate
    text = sys.argv.pop(1)
    _gate = msgspec.json.decode(text, type=_Gate)
    return text


def arrived(folder: Path) -> Arrival | None:
    """Who waits there; ``None`` as long as nobody has come."""
    try:
        return msgspec.json.decode((folder / "arrived").read_bytes(), type=Arrival)
    except FileNotFoundError:
        return None


def opened(folder: Path) -> None:
    """Let it pass."""
    (folder / "open").touch()


def pass_by(at: At, key: str = "") -> None:
    """Said by a run where something happens: waits if the gate is here."""
    assert _gate is not None, "the program has taken its argument"
    folder = Path(_gate.folder)
    if at != _gate.place.at or _number(folder) != _gate.place.nth:
        return
    _arrive(folder, Arrival(os.getpid(), key))
    end = time.monotonic() + _LONGEST_WAIT_SECONDS
    while not (folder / "open").exists() and time.monotonic() < end:
        time.sleep(_LOOK_SECONDS)


def _number(folder: Path) -> int:
    """How often it has happened before, whichever process it happened in."""
    number = 0
    while True:
        try:
            os.close(os.open(folder / f"passed-{number}", os.O_CREAT | os.O_EXCL | os.O_WRONLY))
        except FileExistsError:
            number += 1
        else:
            return number


def _arrive(folder: Path, arrival: Arrival) -> None:
    (folder / "arriving").write_bytes(msgspec.json.encode(arrival))
    os.rename(folder / "arriving", folder / "arrived")
