"""Every combination that may be proposed on one machine for one workload."""

from __future__ import annotations

import functools
import itertools
import random
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from advisor.goal import Fidelity
from advisor.hardware.mesh import DATA_ONLY, Mesh, MeshAxis
from advisor.methods.setting import MethodSetting
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
        divides: The axis of the mesh that it divides among devices, if it trains on several.
        builds_on: Methods of which one must be in use beside it, if any are named.
        one_device_only: Whether it cannot be used on several devices.
    """

    method: str
    settings: tuple[MethodSetting, ...]
    divides: MeshAxis | None = None
    builds_on: tuple[str, ...] = ()
    one_device_only: bool = False


class Combination(msgspec.Struct, frozen=True, dict=True):
    """Methods on a number of devices, whatever the batch.

    Attributes:
        settings: The methods, sorted by name.
        gpu_count: Devices that train together.
        mesh: How they divide the model.
    """

    settings: tuple[MethodSetting, ...] = ()
    gpu_count: int = 1
    mesh: Mesh = DATA_ONLY

    @classmethod
    def of(cls, policy: Policy) -> Combination:
        """A policy without its batch."""
        return cls(policy.methods, policy.gpu_count, policy.axes)

    @property
    def data_degree(self) -> int:
        """Shares that a batch is divided into."""
        return self.mesh.degree(MeshAxis.DATA, self.gpu_count)

    @functools.cached_property
    def label(self) -> str:
        """What records call it: the methods (``"plain"`` without any), and the devices when there are several."""
        methods = " + ".join(setting.label for setting in self.settings) or "plain"
        return methods + self.mesh.on_devices(self.gpu_count)

    @property
    def words(self) -> str:
        """As people say it: methods, and devices if several, with what these divide beside the data.

        For example ``"fsdp + checkpoint every=2 on 4 devices"``, ``"ddp + ... on 4 devices (2 data x 2 tensor)"``.
        """
        methods = " + ".join(setting.words for setting in self.settings) or "plain"
        return methods + self.mesh.on_devices(self.gpu_count)

    def policy(
        self, micro_batch: int, accumulation_steps: int = 1, *, settled: Mapping[str, str] | None = None
    ) -> Policy:
        """The combination at a batch of each share of the data."""
        return Policy(
            methods=self.settings,
            micro_batch=micro_batch,
            accumulation_steps=accumulation_steps,
            gpu_count=self.gpu_count,
            mesh=self.mesh,
            settled=dict(settled or {}),
        )


class ResolvedRecipe(msgspec.Struct, frozen=True, kw_only=True):
    """A recipe as it applies here.

    Attributes:
        name: Its name.
        hand_tuned: Whether it is the experienced person's setting.
        settings: Its methods, sorted by name; empty when all of a hand-tuned recipe's parts were refused.
        notes: What was left out of it, and why.
        place: The number of devices and the mesh that it is for; ``None`` for the most devices that it works on.
        optional: Those of its methods that it is also worth trying without.
    """

    name: str
    hand_tuned: bool
    settings: tuple[MethodSetting, ...]
    notes: tuple[str, ...] = ()
    place: tuple[int, Mesh] | None = None
    optional: tuple[str, ...] = ()


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
        meshes: Number of devices -> the meshes that they may form, the plainest first; others: data alone is divided.
        misfits: Setting's label and a mesh that it cannot be used on -> why.
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
    meshes: dict[int, tuple[Mesh, ...]] = {}
    misfits: dict[tuple[str, Mesh], str] = {}

    @property
    def places(self) -> tuple[tuple[int, Mesh], ...]:
        """Every number of devices with each of its meshes."""
        return tuple((count, mesh) for count in self.gpu_counts for mesh in self.meshes_on(count))

    @property
    def has_meshes(self) -> bool:
        """Whether devices may divide anything but the data."""
        return any(mesh != DATA_ONLY for _, mesh in self.places)

    def meshes_on(self, gpu_count: int) -> tuple[Mesh, ...]:
        """The meshes that a number of devices may form, the plainest first."""
        return self.meshes.get(gpu_count, (DATA_ONLY,))

    def conflict_in(self, settings: Sequence[MethodSetting]) -> str | None:
        """Why these settings exclude each other, or ``None`` if they do not."""
        if not self.conflicts:
            return None
        pairs = itertools.combinations(sorted(setting.label for setting in settings), 2)
        return next((self.conflicts[pair] for pair in pairs if pair in self.conflicts), None)

    def combinations(self) -> Iterator[Combination]:
        """Every valid combination; for each number of devices, and each of its meshes, the plainest first."""
        for gpu_count, mesh in self.places:
            yield from self._combinations_on(gpu_count, mesh)

    def _combinations_on(self, gpu_count: int, mesh: Mesh) -> Iterator[Combination]:
        axes = [axis for axis in self.axes if _has_place(axis, gpu_count, mesh)]
        # Behind the last way to divide an axis, what has chosen none need not be followed any further.
        last_way = {
            divided: max((place for place, axis in enumerate(axes) if axis.divides is divided), default=-1)
            for divided in mesh.divided(gpu_count)
        }

        def extend(
            position: int, chosen: tuple[MethodSetting, ...], owned: frozenset[MeshAxis]
        ) -> Iterator[Combination]:
            if any(position > last for divided, last in last_way.items() if divided not in owned):
                return
            if position == len(axes):
                if self._has_dependencies(chosen):
                    yield Combination(_sorted(chosen), gpu_count, mesh)
                return
            yield from extend(position + 1, chosen, owned)
            axis = axes[position]
            if axis.divides in owned:
                return
            owned = owned if axis.divides is None else owned | {axis.divides}
            for setting in axis.settings:
                excluded = any(pair_of(setting, other) in self.conflicts for other in chosen)
                if not excluded and (setting.label, mesh) not in self.misfits:
                    yield from extend(position + 1, (*chosen, setting), owned)

        return extend(0, (), frozenset())

    def _divided_by(self, settings: Sequence[MethodSetting]) -> list[MeshAxis]:
        """The axes that the methods divide, one for each method that does."""
        divides = {axis.method: axis.divides for axis in self.axes if axis.divides is not None}
        return [divides[setting.name] for setting in settings if setting.name in divides]

    def _has_dependencies(self, settings: Sequence[MethodSetting]) -> bool:
        return not self._without_dependencies(settings)

    def _without_dependencies(self, settings: Sequence[MethodSetting]) -> set[str]:
        """Those of the methods that work on top of one that is not in use."""
        names = {setting.name for setting in settings}
        return {
            axis.method
            for axis in self.axes
            if axis.method in names and axis.builds_on and not names & set(axis.builds_on)
        }

    def on_devices(
        self, settings: tuple[MethodSetting, ...], gpu_count: int, mesh: Mesh | None = None
    ) -> Combination | None:
        """Methods on a number of devices: each axis that none of them divides is by the first way that goes with them.

        Args:
            settings: Methods that do not exclude each other.
            gpu_count: Number of devices.
            mesh: How they divide the model; ``None`` for the plainest mesh on which the methods can be used.

        Returns:
            ``None`` if one of them cannot be used there, or no way to divide an axis goes with them.
        """
        meshes = self.meshes_on(gpu_count) if mesh is None else (mesh,)
        found = (self._on_mesh(settings, gpu_count, one) for one in meshes)
        return next((one for one in found if one is not None), None)

    def _on_mesh(self, settings: tuple[MethodSetting, ...], gpu_count: int, mesh: Mesh) -> Combination | None:
        owned, divided = self._divided_by(settings), mesh.divided(gpu_count)
        placeless = {axis.method for axis in self.axes if not _has_place(axis, gpu_count, mesh)}
        if len(set(owned)) < len(owned) or any(setting.name in placeless for setting in settings):
            return None
        if any((setting.label, mesh) in self.misfits for setting in settings):
            return None
        missing = [one for one in divided if one not in owned]
        ways = [[setting for axis in self.axes if axis.divides is one for setting in axis.settings] for one in missing]
        for chosen in itertools.product(*ways):
            every = _sorted((*settings, *chosen))
            misfit = any((setting.label, mesh) in self.misfits for setting in chosen)
            if not misfit and (not chosen or self.conflict_in(every) is None) and self._has_dependencies(every):
                return Combination(every, gpu_count, mesh)
        return None

    def accepts(self, combination: Combination) -> bool:
        """Whether a combination of settings of this space is a valid one."""
        return (
            combination.gpu_count in self.gpu_counts
            and combination.mesh in self.meshes_on(combination.gpu_count)
            and len({setting.name for setting in combination.settings}) == len(combination.settings)
            and self.conflict_in(combination.settings) is None
            and self.on_devices(combination.settings, combination.gpu_count, combination.mesh) == combination
        )

    def neighbours(self, combination: Combination) -> Iterator[Combination]:
        """Every valid combination with one setting more, one fewer or one changed, on the same devices."""
        for axis in self.axes:
            others = tuple(one for one in combination.settings if one.name != axis.method)
            for setting in (None, *axis.settings):
                chosen = others if setting is None else (*others, setting)
                one = Combination(_sorted(chosen), combination.gpu_count, combination.mesh)
                if one != combination and self.accepts(one):
                    yield one

    def completed(self, settings: Sequence[MethodSetting], gpu_count: int, mesh: Mesh) -> Combination | None:
        """The combination of as many of these settings as go together, the first before the others.

        Args:
            settings: Settings of this space, perhaps several of one method.
            gpu_count: One of the numbers of devices.
            mesh: One of their meshes.

        Returns:
            ``None`` if none of them divides an axis of several devices, and nothing that does goes with them.
        """
        axes = {axis.method: axis for axis in self.axes}
        kept: list[MethodSetting] = []
        for setting in settings:
            axis = axes[setting.name]
            if not _has_place(axis, gpu_count, mesh) or (setting.label, mesh) in self.misfits:
                continue
            if axis.divides is not None and axis.divides in self._divided_by(kept):
                continue
            if any(setting.name == other.name or pair_of(setting, other) in self.conflicts for other in kept):
                continue
            kept.append(setting)
        while lonely := self._without_dependencies(kept):
            kept = [setting for setting in kept if setting.name not in lonely]
        return self.on_devices(_sorted(kept), gpu_count, mesh)

    def draw(self, generator: random.Random) -> Combination | None:
        """A valid combination at random: any may be drawn, with few methods as well as with many.

        Drawn evenly, nearly all would have as many methods as go together, for that is how nearly all are.
        """
        gpu_count = generator.choice(self.gpu_counts)
        meshes = self.meshes_on(gpu_count)
        mesh = generator.choice(meshes) if len(meshes) > 1 else meshes[0]
        share = generator.random()
        settings = [generator.choice(axis.settings) for axis in self.axes if generator.random() < share]
        generator.shuffle(settings)
        return self.completed(settings, gpu_count, mesh)

    def counted(self) -> Count:
        """Number of valid combinations, whatever the batch; of a large space, that there are more than so many."""
        number = sum(1 for _ in itertools.islice(self.combinations(), MOST_COUNTED + 1))
        return Count(min(number, MOST_COUNTED), exact=number <= MOST_COUNTED)

    @property
    def count(self) -> int:
        """Number of valid combinations, whatever the batch: each of them is made."""
        return sum(1 for _ in self.combinations())


def pair_of(first: MethodSetting, second: MethodSetting) -> tuple[str, str]:
    """The labels of two settings in a fixed order: the key of :attr:`ResolvedSpace.conflicts`."""
    low, high = sorted((first.label, second.label))
    return low, high


def _has_place(axis: Axis, gpu_count: int, mesh: Mesh) -> bool:
    """Whether a method can be used on a mesh: what divides an axis, where that has several devices."""
    if axis.divides is not None:
        return axis.divides in mesh.divided(gpu_count)
    return gpu_count == 1 or not axis.one_device_only


def _sorted(settings: Sequence[MethodSetting]) -> tuple[MethodSetting, ...]:
    return tuple(sorted(settings, key=lambda setting: setting.name))
