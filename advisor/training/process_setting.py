"""Settings of the whole process, for as long as a training lasts.

Several trainings may be open at once and be closed in any order: the setting of the one that opened last holds, and
when all are closed it is again what it was before the first.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from advisor.training.training import Training

__all__ = ["hold", "is_held"]

_T = TypeVar("_T")


class _Held:
    """What a setting was before one training, and goes back to when that one is closed."""

    def __init__(self, before: Any) -> None:
        self.before = before


_HELD: dict[str, list[_Held]] = {}
"""Setting -> the open trainings that changed it, in that order."""


def hold(training: Training, name: str, value: _T, *, read: Callable[[], _T], write: Callable[[_T], None]) -> None:
    """Change a setting until the training closes.

    Args:
        training: Whose it is.
        name: Of the setting; the same for everyone who changes it.
        value: What it is to be.
        read: Gives what it is.
        write: Changes it.
    """
    own, everyone = _Held(read()), _HELD.setdefault(name, [])
    write(value)
    everyone.append(own)

    def release() -> None:
        place = everyone.index(own)
        del everyone[place]
        if place == len(everyone):
            write(own.before)
        else:
            everyone[place].before = own.before  # Its setting holds; what it will go back to is not this one's.

    training.on_close(release)


def is_held(name: str) -> bool:
    """Whether an open training holds a setting."""
    return bool(_HELD.get(name))
