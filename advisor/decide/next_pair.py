"""Choose the two leaders to compare next, until choosing the best of them is expected to lose almost nothing.

The expected value of information as in :mod:`advisor.decide.repeat`, for measurements of two in turn: what counts is
the uncertainty of their difference, which is far smaller than that of each.
"""

from __future__ import annotations

from collections.abc import Container, Iterable

from advisor.decide.repeat import expected_loss
from advisor.search.propose.standing import JointStanding

__all__ = ["next_pair"]

_ENOUGH = 0.001
"""For comparisons that take seconds."""


def next_pair(
    standing: JointStanding,
    contenders: Iterable[int],
    *,
    among: Container[tuple[int, int]] | None = None,
    enough: float = _ENOUGH,
) -> tuple[int, int] | None:
    """The leader and the rival that may most likely be better; ``None`` if no rival is expected to be.

    Args:
        standing: The model's estimate of all contenders together.
        contenders: Their numbers in it.
        among: The pairs that can be compared, the smaller number first; ``None`` for all.
        enough: Share of the best throughput that the choice may be expected to lose to any rival.

    Returns:
        The smaller number first.
    """
    numbers = list(contenders)
    leader = min(numbers, key=lambda one: standing.mean[one])
    pairs = {one: (min(leader, one), max(leader, one)) for one in numbers if one != leader}
    losses = {
        one: expected_loss(*standing.behind(leader, one))
        for one, pair in pairs.items()
        if among is None or pair in among
    }
    rival = max(losses, key=lambda one: losses[one], default=None)
    return None if rival is None or losses[rival] < enough else pairs[rival]
