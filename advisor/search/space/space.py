"""Every combination that may be proposed on one machine for one workload."""

from __future__ import annotations

import functools
import itertools
import random
from collections.abc import Iterator, Sequence

import msgspec

from advisor.goal import Fidelity
from advisor.methods.use import MethodUse
from advisor.policy.policy import Policy

__all__ = ["MOST_COUNTED", "Axis", "Combination", "Count", "ResolvedRecipe", "ResolvedSpace", "pair_of"]

MOST_COUNTED = 10_000
"""Combinations that are counted one by one; of a space with more nobody needs to know how many there are."""


class Count(msgspec.Struct, frozen=True):
    """A number of combinations.

    Attributes:
        number: As many there are; fewer than there are, if it is not exact.
        exact: Whether that is the number.
    """

    number: int
    exact: bool = True


class Axis(msgspec.Struct, frozen=True, kw_only=True):
    """One method as a dimension of the search: off, or one of its settings.

    Attributes:
        method: Name of the method.
        settings: Its settings that apply here.
        distributes: Whether it trains on several devices: on several, exactly one such method is in use; on one, none.
        builds_on: Methods of which one must be in use beside it, if any are named.
        one_device_only: Whether it cannot be used on several devices.
    """

    method: str
    settings: tuple[MethodUse, ...]
    distributes: bool = False
    builds_on: tuple[str, ...] = ()
    one_device_only: bool = False


class Combination(msgspec.Struct, frozen=True, dict=True):
    """Methods on a number of devices, whatever the batch.

    Attributes:
        uses: The methods, sorted by name.
        gpu_count: Devices that train together.
    """

    uses: tuple[MethodUse, ...] = ()
    gpu_count: int = 1

    @classmethod
    def of(cls, policy: Policy) -> Combination:
        """A policy without its batch."""
        return cls(policy.methods, policy.gpu_count)

    @functools.cached_property
    def label(self) -> str:
        """The methods in words (``"plain"`` without any), and the devices when there are several."""
        methods = " + ".join(use.label for use in self.uses) or "plain"
        return methods if self.gpu_count == 1 else f"{methods} on {self.gpu_count} devices"


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
        gpu_counts: Numbers of devices that may train together, ascending.
        time_ratios: Setting's label -> what it is expected to do to the time of a step here, as a ratio; others: 1.
    """

    name: str
    fidelity: Fidelity
    axes: tuple[Axis, ...]
    batch_fractions: tuple[float, ...]
    recipes: tuple[ResolvedRecipe, ...]
    refused: dict[str, str]
    dropped_recipes: dict[str, str]
    conflicts: dict[tuple[str, str], str]
    gpu_counts: tuple[int, ...] = (1,)
    time_ratios: dict[str, float] = {}

    def conflict_in(self, uses: Sequence[MethodUse]) -> str | None:
        """Why these settings exclude each other, or ``None`` if they do not."""
        if not self.conflicts:
            return None
        pairs = itertools.combinations(sorted(use.label for use in uses), 2)
        return next((self.conflicts[pair] for pair in pairs if pair in self.conflicts), None)

    def combinations(self) -> Iterator[Combination]:
        """Every valid combination; for each number of devices the plainest first."""
        for gpu_count in self.gpu_counts:
            yield from self._combinations_on(gpu_count)

    def _combinations_on(self, gpu_count: int) -> Iterator[Combination]:
        axes = [axis for axis in self.axes if not (axis.distributes if gpu_count == 1 else axis.one_device_only)]
        # Behind the last way to distribute, what has chosen none need not be followed any further.
        last_way = max((place for place, axis in enumerate(axes) if axis.distributes), default=-1)

        def extend(position: int, chosen: tuple[MethodUse, ...]) -> Iterator[Combination]:
            if gpu_count > 1 and position > last_way and not self._distributing(chosen):
                return
            if position == len(axes):
                if self._has_dependencies(chosen) and (gpu_count == 1) == (self._distributing(chosen) == 0):
                    yield Combination(tuple(sorted(chosen, key=lambda use: use.name)), gpu_count)
                return
            yield from extend(position + 1, chosen)
            for setting in axes[position].settings:
                if axes[position].distributes and self._distributing(chosen):
                    break
                if not any(pair_of(setting, other) in self.conflicts for other in chosen):
                    yield from extend(position + 1, (*chosen, setting))

        return extend(0, ())

    def _distributing(self, uses: Sequence[MethodUse]) -> int:
        """How many of the methods train on several devices."""
        names = {axis.method for axis in self.axes if axis.distributes}
        return sum(use.name in names for use in uses)

    def _has_dependencies(self, uses: Sequence[MethodUse]) -> bool:
        return not self._without_dependencies(uses)

    def _without_dependencies(self, uses: Sequence[MethodUse]) -> set[str]:
        """Those of the methods that work on top of one that is not in use."""
        names = {use.name for use in uses}
        return {
            axis.method
            for axis in self.axes
            if axis.method in names and axis.builds_on and not names & set(axis.builds_on)
        }

    def on_devices(self, uses: tuple[MethodUse, ...], gpu_count: int) -> Combination | None:
        """Methods on a number of devices: with the first way to distribute that goes with them, if they name none.

        Args:
            uses: Methods that do not exclude each other.
            gpu_count: Number of devices.

        Returns:
            ``None`` if one of them cannot be used there, or nothing that distributes goes with them.
        """
        distributing = self._distributing(uses)
        if gpu_count == 1:
            return Combination(uses) if distributing == 0 and self._has_dependencies(uses) else None
        if any(axis.one_device_only and axis.method in {use.name for use in uses} for axis in self.axes):
            return None
        if distributing:
            return Combination(uses, gpu_count) if distributing == 1 and self._has_dependencies(uses) else None
        for axis in self.axes:
            for setting in axis.settings if axis.distributes else ():
                if self.conflict_in((*uses, setting)) is None and self._has_dependencies((*uses, setting)):
                    return Combination(tuple(sorted((*uses, setting), key=lambda use: use.name)), gpu_count)
        return None

    def accepts(self, combination: Combination) -> bool:
        """Whether a combination of settings of this space is a valid one."""
        return (
            combination.gpu_count in self.gpu_counts
            and len({use.name for use in combination.uses}) == len(combination.uses)
            and self.conflict_in(combination.uses) is None
            and self.on_devices(combination.uses, combination.gpu_count) == combination
        )

    def completed(self, uses: Sequence[MethodUse], gpu_count: int) -> Combination | None:
        """The combination of as many of these settings as go together, the first before the others.

        Args:
            uses: Settings of this space, perhaps several of one method.
            gpu_count: One of the numbers of devices.

        Returns:
            ``None`` if none of them distributes on several devices, and nothing that does goes with them.
        """
        axes = {axis.method: axis for axis in self.axes}
        kept: list[MethodUse] = []
        for use in uses:
            axis = axes[use.name]
            if axis.distributes if gpu_count == 1 else axis.one_device_only:
                continue
            if axis.distributes and self._distributing(kept):
                continue
            if any(use.name == other.name or pair_of(use, other) in self.conflicts for other in kept):
                continue
            kept.append(use)
        while lonely := self._without_dependencies(kept):
            kept = [use for use in kept if use.name not in lonely]
        return self.on_devices(tuple(sorted(kept, key=lambda use: use.name)), gpu_count)

    def draw(self, generator: random.Random) -> Combination | None:
        """A valid combination at random: any may be drawn, with few methods as well as with many.

        Drawn evenly, nearly all would have as many methods as go together, for that is how nearly all are.
        """
        gpu_count = generator.choice(self.gpu_counts)
        share = generator.random()
        uses = [generator.choice(axis.settings) for axis in self.axes if generator.random() < share]
        generator.shuffle(uses)
        return self.completed(uses, gpu_count)

    def counted(self) -> Count:
        """Number of valid combinations, whatever the batch; of a large space, that there are more than so many."""
        number = sum(1 for _ in itertools.islice(self.combinations(), MOST_COUNTED + 1))
        return Count(min(number, MOST_COUNTED), exact=number <= MOST_COUNTED)

    @property
    def count(self) -> int:
        """Number of valid combinations, whatever the batch: each of them is made."""
        return sum(1 for _ in self.combinations())


def pair_of(first: MethodUse, second: MethodUse) -> tuple[str, str]:
    """The labels of two settings in a fixed order: the key of :attr:`ResolvedSpace.conflicts`."""
    low, high = sorted((first.label, second.label))
    return low, high
