"""Process-wide settings that last as long as a training.

Several trainings may be open at once and close in any order: the setting of the one opened last holds, and when all are
closed, the original value returns.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from advisor.training.training import Training

__all__ = ["disputed", "hold", "is_held"]

_T = TypeVar("_T")


@dataclass(eq=False)
class _Held:
    """The value of a setting for one training, and that before it, restored when the training closes."""

    before: Any
    value: Any


_HELD: dict[str, list[_Held]] = {}
"""Setting -> the open trainings that changed it, in that order."""


def hold(training: Training, name: str, value: _T, *, read: Callable[[], _T], write: Callable[[_T], None]) -> None:
    """Change a setting, known by its name to all trainings that change it, until the training closes.

    ``read`` returns its current value, ``write`` sets it.
    """
    own, everyone = _Held(read(), value), _HELD.setdefault(name, [])
    write(value)
    everyone.append(own)

    def release() -> None:
        place = everyone.index(own)
        del everyone[place]
        if place == len(everyone):
            write(own.before)
        else:
            everyone[place].before = own.before  # Its setting holds, but it must not return to this one's.

    training.on_close(release)


def is_held(name: str) -> bool:
    """Whether an open training holds a setting."""
    return bool(_HELD.get(name))


def disputed(trainings: int) -> list[str]:
    """The settings on which open trainings do not agree: each steps with those of the one opened last.

    Args:
        trainings: How many are open.
    """
    return [
        name
        for name, held in _HELD.items()
        if held and (len(held) < trainings or any(one.value != held[0].value for one in held))
    ]
