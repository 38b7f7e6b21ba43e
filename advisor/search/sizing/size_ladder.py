"""The sizes of a model as one chain, ordered by the number of parameters, then by the values of the size.

Sizes whose parameter counts differ by less than 2 % form one group: an image size adds a few position embeddings, and
that is no larger model.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from advisor.workload.sizes import SizeCounts

__all__ = ["Rung", "chain_of", "groups_of", "includes", "worth"]

_SAME = 0.02
"""Parameter counts that differ by less than this share are called equal."""


class Rung(msgspec.Struct, frozen=True, kw_only=True):
    """One size of the chain.

    Attributes:
        size: Arguments of ``build_model`` and ``make_batch``; empty for the model as it is.
        parameter_count: Parameters of the model at this size.
    """

    size: dict[str, int | float]
    parameter_count: int

    @property
    def order(self) -> tuple[int, tuple[int | float, ...]]:
        """Sort key of the chain."""
        return self.parameter_count, tuple(self.size.values())


def chain_of(counts: SizeCounts) -> tuple[Rung, ...]:
    """The chain: every listed size that can be built, and the model's own."""
    found: dict[str, Rung] = {}
    for counted in (counts.own, *counts.listed):
        if counted.parameter_count is not None:
            rung = Rung(size=counted.size, parameter_count=counted.parameter_count)
            found.setdefault(repr(sorted(rung.size.items())), rung)
    return tuple(sorted(found.values(), key=lambda rung: rung.order))


def worth(rungs: Sequence[Rung], index: int, share_of_floor: float | None = None) -> float:
    """The largest size that a combination reached, as a number for the sampler.

    That is the parameter count, or the place in the chain where all sizes have the same. A combination that fell
    short is told apart from others that did by ``share_of_floor``: throughput falls about as the size grows, so that
    a size smaller by that share would keep the floor.

    Args:
        rungs: The chain.
        index: The size reached, or the smallest that the combination failed at.
        share_of_floor: Its throughput / floor where it failed; ``None`` where it did not.
    """
    same = rungs[-1].parameter_count < rungs[0].parameter_count * (1 + _SAME)
    size = float(index + 1 if same else rungs[index].parameter_count)
    return size * (1.0 if share_of_floor is None else min(1.0, share_of_floor))


def includes(rung: Rung, other: Rung) -> bool:
    """Whether a size is at least as large as another in every argument."""
    if rung.size.keys() != other.size.keys():
        return rung.parameter_count >= other.parameter_count
    return all(rung.size[name] >= value for name, value in other.size.items())


def groups_of(rungs: Sequence[Rung]) -> list[tuple[int, ...]]:
    """The places of a chain, gathered where parameter counts are called equal."""
    groups: list[list[int]] = []
    for index, rung in enumerate(rungs):
        if groups and rung.parameter_count < rungs[groups[-1][0]].parameter_count * (1 + _SAME):
            groups[-1].append(index)
        else:
            groups.append([index])
    return [tuple(group) for group in groups]
