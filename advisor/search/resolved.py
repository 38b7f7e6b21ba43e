"""Every combination that may be proposed on one machine for one workload."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import msgspec

from advisor.methods.use import MethodUse
from advisor.problem.goal import Fidelity

__all__ = ["Axis", "ResolvedRecipe", "ResolvedSpace", "pair_of"]


class Axis(msgspec.Struct, frozen=True, kw_only=True):
    """One method as a dimension of the search: off, or one of its settings.

    Attributes:
        method: Name of the method.
        settings: Its settings that apply here.
    """

    method: str
    settings: tuple[MethodUse, ...]


class ResolvedRecipe(msgspec.Struct, frozen=True, kw_only=True):
    """A recipe as it applies here.

    Attributes:
        name: Its name.
        hand_tuned: Whether it is the experienced person's setting.
        uses: Its methods, sorted by name; empty when all of a hand-tuned recipe's parts were refused.
        notes: What was left out of it, and why.
    """

    name: str
    hand_tuned: bool
    uses: tuple[MethodUse, ...]
    notes: tuple[str, ...] = ()


class ResolvedSpace(msgspec.Struct, frozen=True, kw_only=True):
    """Every combination that may be proposed.

    Attributes:
        name: Name of the space.
        fidelity: The ceiling that was applied.
        axes: One per method that has a setting that applies.
        batch_fractions: Shares of the largest feasible micro-batch.
        recipes: To be tried first, after plain training.
        refused: Setting (or method, when all of its settings are) -> why it cannot be used here.
        dropped_recipes: Recipe -> why it is not tried.
        conflicts: Pairs of settings' labels that exclude each other -> why.
    """

    name: str
    fidelity: Fidelity
    axes: tuple[Axis, ...]
    batch_fractions: tuple[float, ...]
    recipes: tuple[ResolvedRecipe, ...]
    refused: dict[str, str]
    dropped_recipes: dict[str, str]
    conflicts: dict[tuple[str, str], str]

    def conflict_in(self, uses: Sequence[MethodUse]) -> str | None:
        """Why these settings exclude each other, or ``None`` if they do not."""
        for first, second in itertools.combinations(uses, 2):
            reason = self.conflicts.get(pair_of(first, second))
            if reason is not None:
                return reason
        return None

    def combinations(self) -> Iterator[tuple[MethodUse, ...]]:
        """Every valid combination, plain training first, methods sorted by name."""

        def extend(position: int, chosen: tuple[MethodUse, ...]) -> Iterator[tuple[MethodUse, ...]]:
            if position == len(self.axes):
                yield tuple(sorted(chosen, key=lambda use: use.name))
                return
            yield from extend(position + 1, chosen)
            for setting in self.axes[position].settings:
                if not any(pair_of(setting, other) in self.conflicts for other in chosen):
                    yield from extend(position + 1, (*chosen, setting))

        return extend(0, ())

    @property
    def count(self) -> int:
        """Number of valid combinations, whatever the batch."""
        return sum(1 for _ in self.combinations())


def pair_of(first: MethodUse, second: MethodUse) -> tuple[str, str]:
    """The labels of two settings in a fixed order: the key of :attr:`ResolvedSpace.conflicts`."""
    low, high = sorted((first.label, second.label))
    return low, high
