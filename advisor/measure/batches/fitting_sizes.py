"""Find how many samples a batch may have, where a workload does not take any number of them.

A loss that ranks every sample's five nearest neighbors in the batch needs six samples; one over four views of each
image needs multiples of four. The user's own batch is one that works, and so, as a rule, are some of its divisors.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

__all__ = ["FittingSizes", "fitting_sizes"]


class FittingSizes(NamedTuple):
    """The sizes of batches that work: ``least``, and more by multiples of ``multiple``, which divides it.

    Attributes:
        least: The fewest samples that were seen to work.
        multiple: Every size is a multiple of it.
    """

    least: int
    multiple: int


def fitting_sizes(
    works: Callable[[int], bool | None], own: int, *, above: int = 1, multiple: int = 1
) -> FittingSizes | None:
    """Try divisors of the user's own batch, the smallest first.

    Args:
        works: Whether a batch of so many samples works; ``None`` if it cannot be known here, for lack of memory.
        own: The user's own batch.
        above: Samples that are known to be too few.
        multiple: Numbers of samples that are no multiples of it are known not to work.

    Returns:
        The sizes; ``None`` if not even the user's own works, so that the number of samples is not what is wrong.

    Example:
        >>> fitting_sizes(lambda samples: samples % 12 == 0, 96)
        FittingSizes(least=12, multiple=12)
        >>> fitting_sizes(lambda samples: samples > 5, 64)
        FittingSizes(least=8, multiple=1)
    """
    if own <= above or own % multiple or (own_works := works(own)) is False:
        return None
    smaller = (size for size in _divisors(own) if size > above and size % multiple == 0 and size < own)
    least = next((size for size in smaller if works(size)), own if own_works else None)
    if least is None:
        return None
    steps = (step for step in _divisors(least) if step % multiple == 0 and step < least)
    return FittingSizes(least, next((step for step in steps if works(least + step)), least))


def _divisors(number: int) -> list[int]:
    return [size for size in range(1, number + 1) if number % size == 0]
