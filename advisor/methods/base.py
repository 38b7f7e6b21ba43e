"""The interface of a method: what it declares and does.

A method is one file with one subclass of :class:`Method` and one line in ``catalogue.py``. It declares what the rest of
the program needs, so that no other code depends on its name. Importing a method imports no torch: the parent process
reads the declarations, the worker calls :meth:`Method.apply`.
"""

from __future__ import annotations

import abc
import enum
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

from advisor.goal import Fidelity
from advisor.hardware.hardware import Hardware
from advisor.hardware.mesh import Mesh, MeshAxis
from advisor.methods.setting import ParameterValue
from advisor.workload.facts import Facts

if TYPE_CHECKING:
    from advisor.training.training import Training

__all__ = ["Conflict", "Method", "Parameter", "Saves", "Stage", "Verdict"]


class Stage(enum.IntEnum):
    """When a method is applied; composition sorts by it.

    The order matters: changes to what is learned come before any wrapping, checkpoint wrappers must exist before
    compilation and sharding see the modules, the optimizer must see the final parameters, and step contexts wrap the
    result of all others.
    """

    MODEL = 0
    PARALLELIZE = 1
    LOSS = 2
    CHECKPOINT = 3
    COMPILE = 4
    SHARD = 5
    OPTIMIZER = 6
    STEP = 7


class Saves(enum.Enum):
    """The categories of device memory that a method can lower."""

    PARAMETERS = "parameters"
    GRADIENTS = "gradients"
    OPTIMIZER_STATE = "optimizer state"
    ACTIVATIONS = "activations"
    LOGITS = "logits"
    WORKSPACE = "workspace"


class Parameter(msgspec.Struct, frozen=True):
    """One parameter of a method.

    Attributes:
        name: Keyword of :meth:`Method.apply`.
        choices: Every value that may be searched, the most common first.
        meaning: One line for ``momadvise methods NAME``.
        worse: Choice -> fidelity, for choices that fall short of the method's own fidelity.
        time_ratio: Choice -> factor on the method's own :attr:`Method.time_ratio`; others: 1.
        computes_in: Choice -> number format of matrix products; see :attr:`Method.computes_in`.
    """

    name: str
    choices: tuple[ParameterValue, ...]
    meaning: str
    worse: dict[ParameterValue, Fidelity] = {}
    time_ratio: dict[ParameterValue, float] = {}
    computes_in: dict[ParameterValue, str] = {}


class Conflict(msgspec.Struct, frozen=True):
    """A method that cannot be combined with the declaring one.

    Attributes:
        other: Name of the other method.
        reason: Why, as the user reads it.
        own: Parameter values of the declaring method for which the conflict holds (empty: always).
        where: Parameter values of the other method for which it holds (empty: always).
    """

    other: str
    reason: str
    own: dict[str, ParameterValue] = {}
    where: dict[str, ParameterValue] = {}


class Verdict(msgspec.Struct, frozen=True):
    """Whether a method can be applied, and why not (or what to know)."""

    applicable: bool
    reason: str = ""

    @classmethod
    def yes(cls, reason: str = "") -> Verdict:
        """It applies."""
        return cls(True, reason)

    @classmethod
    def no(cls, reason: str) -> Verdict:
        """It is refused; ``reason`` says why and, where there is one, the fix."""
        assert reason, "a refusal has a reason"
        return cls(False, reason)


class Method(abc.ABC):
    """Base class of every memory optimization method.

    Class attributes:
        name: Name in policies, search spaces and reports.
        summary: What it does, in one line.
        fidelity: How far its training may differ from plain training (parameters may name choices that are worse).
        gradient_tolerance: Largest relative error of the gradient vector that the contract suite accepts after
            one step (0.0: bit-equal).
        update_tolerance: Largest relative error of how far the parameters moved that the contract suite accepts after
            two steps; default: by fidelity.
        random_gradients: Whether its gradients scatter so widely around the exact ones that the error of a single step
            is meaningless: the contract suite then checks their mean over many draws.
        other_masks: Whether dropout draws different, equally valid masks: training can then only be compared with plain
            training without dropout.
        slow_start: Whether its first steps take seconds to minutes at any batch size, because something is compiled:
            its trials get more time before they count as hanging.
        learns_slower: Whether it learns less per step by design, as with fewer trained weights: its loss then need not
            keep pace with that of plain training.
        saves: Categories of memory it lowers; empty for a method that only changes the time.
        time_ratio: Expected step time with it relative to that without it, on a GPU at the same batch, from its paper
            or from counting passes (recomputing the forward pass: 4/3). It is only a weak prior of the search, within a
            quarter either way, which the first measurements outweigh. The gain from a larger batch is left out.
        cpu_time_ratio: The same on a CPU, if known; otherwise its cost on a GPU is expected on a CPU too, but not its
            gain.
        computes_in: Number format (``"bf16"``, ``"fp16"``, ``"tf32"``, ``"float8"``) of most matrix products; empty if
            unchanged or decided by a parameter. The format's rate on the device is measured before anything is
            proposed.
        costs: What it costs, in a few words ("about one more forward pass").
        pays: When to use it.
        does_not_pay: When not to.
        rests_on: A sentence on a condition of its gain that may change after the measurement; empty if there is none.
        avoids_page_faults: Whether with it a step takes no pages from the system that the step before had.
        stage: When it is applied.
        parameters: Its parameters with their choices.
        decides: What it alone decides ("which activations of the blocks are kept"): two methods that decide the same
            thing cannot be combined. Empty if it decides nothing.
        conflicts: Further methods it cannot be combined with.
        requires: Importable names of optional libraries it needs.
        extra: The extra of this distribution that installs them.
        accumulates: Whether it works with more than one micro-batch per optimizer step.
        axis: The axis of the mesh that it divides among devices, if it trains on several. An axis of more than one
            device needs exactly one such method; an axis of one allows none.
        builds_on: Names of methods, one of which must be in use together with it (empty: no dependency).
        one_device_only: Why it cannot be used on several devices; empty where it can.
        citation: Paper or documentation it comes from.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    fidelity: ClassVar[Fidelity]
    gradient_tolerance: ClassVar[float] = 0.0
    update_tolerance: ClassVar[float | None] = None
    random_gradients: ClassVar[bool] = False
    other_masks: ClassVar[bool] = False
    learns_slower: ClassVar[bool] = False
    slow_start: ClassVar[bool] = False
    saves: ClassVar[frozenset[Saves]]
    time_ratio: ClassVar[float] = 1.0
    cpu_time_ratio: ClassVar[float | None] = None
    computes_in: ClassVar[str] = ""
    costs: ClassVar[str]
    pays: ClassVar[str]
    does_not_pay: ClassVar[str]
    rests_on: ClassVar[str] = ""
    avoids_page_faults: ClassVar[bool] = False
    stage: ClassVar[Stage]
    parameters: ClassVar[tuple[Parameter, ...]] = ()
    decides: ClassVar[str] = ""
    conflicts: ClassVar[tuple[Conflict, ...]] = ()
    requires: ClassVar[tuple[str, ...]] = ()
    extra: ClassVar[str | None] = None
    accumulates: ClassVar[bool] = True
    axis: ClassVar[MeshAxis | None] = None
    builds_on: ClassVar[tuple[str, ...]] = ()
    one_device_only: ClassVar[str] = ""
    citation: ClassVar[str]

    @property
    def distributes(self) -> bool:
        """Whether it trains one model on several devices."""
        return self.axis is not None

    @abc.abstractmethod
    def applicable(self, parameters: Mapping[str, ParameterValue], facts: Facts | None, hardware: Hardware) -> Verdict:
        """Judge one setting of the parameters on this workload and hardware.

        Runs in the parent process: no torch, no model.

        Args:
            parameters: One value for every declared parameter.
            facts: What the probe learned, or ``None`` when only the hardware is known.
            hardware: The device and its host.
        """

    def measured_time_ratio(self, parameters: Mapping[str, ParameterValue], facts: Facts) -> float | None:
        """Step time with one setting relative to that without, from the probe's rates of the device.

        The effect of a number format (:attr:`computes_in`) follows from its rate in any case.

        Args:
            parameters: One value for every declared parameter.
            facts: What the probe learned.

        Returns:
            The ratio; ``None`` if the rates do not tell, as for most methods.
        """
        return None

    def facts_of(self, training: Training, batch: Any, degrees: tuple[int, ...]) -> dict[str, Any]:
        """What this method must know of a model before it can be judged. Runs in the probe, after a plain step.

        Args:
            training: A training to which no method was applied; it is left as it was.
            batch: A small batch.
            degrees: Numbers of devices that may divide each layer.

        Returns:
            Fields of :class:`~advisor.workload.facts.Facts`; none for most methods.
        """
        return {}

    def settled_by(self, parameters: Mapping[str, ParameterValue], mesh: Mesh, facts: Facts) -> str | None:
        """What the probe has found out for one setting on a mesh, as the method would put it into ``settled``.

        Args:
            parameters: One value for every declared parameter.
            mesh: How the devices divide the model.
            facts: What the probe learned.

        Returns:
            The entry; ``None`` if the method finds out itself, as most do.
        """
        return None

    def why_not_on(self, parameters: Mapping[str, ParameterValue], mesh: Mesh, facts: Facts | None) -> str:
        """Why one setting cannot be used on a mesh whose axes all have their methods; empty if it can.

        Runs in the parent process, like :meth:`applicable`.

        Args:
            parameters: One value for every declared parameter.
            mesh: How the devices divide the model.
            facts: What the probe learned, or ``None`` when only the hardware is known.
        """
        return ""

    @abc.abstractmethod
    def apply(self, training: Training, **parameters: ParameterValue) -> None:
        """Change ``training`` in place. Runs in the worker and in the user's own process.

        Raises:
            MethodRefusedError: The method finds that it cannot apply after all.
        """
