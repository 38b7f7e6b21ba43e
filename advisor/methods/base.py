"""What one method declares and does.

A method is one file with one subclass of :class:`Method` and one line in ``catalogue.py``. It declares what the
rest of the program needs, so that nothing outside its file knows it by name. Importing a method imports no torch:
the parent process reads the declarations, the worker calls :meth:`Method.apply`.
"""

from __future__ import annotations

import abc
import enum
from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

import msgspec

from advisor.goal import Fidelity
from advisor.hardware.hardware import Hardware
from advisor.methods.use import ParameterValue
from advisor.workload.facts import Facts

if TYPE_CHECKING:
    from advisor.training.training import Training

__all__ = ["Conflict", "Method", "Parameter", "Saves", "Stage", "Verdict"]


class Stage(enum.IntEnum):
    """When a method is applied; composition sorts by it.

    The order is not free: what is learned is decided before anything is wrapped, checkpoint wrappers must exist
    before compilation and sharding see the modules, the optimizer must see the final parameters, and step contexts
    wrap what all others made.
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
        choices: Every value that may be searched, the most usual first.
        meaning: One line for ``momadvise methods NAME``.
        worse: Choice -> fidelity, for choices with which the method's own fidelity does not hold.
        time_ratio: Choice -> factor on the method's own :attr:`Method.time_ratio`; others: 1.
        computes_in: Choice -> number format that matrix products are computed in with it; see
            :attr:`Method.computes_in`.
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
        random_gradients: Whether its gradients are random numbers around the exact ones, too far from them in one step
            for an error to tell anything: the contract suite then looks at their mean over many draws.
        other_masks: Whether dropout draws other masks than in plain training, as right as those: training can then
            only be compared with plain training where nothing drops out.
        slow_start: Whether its first steps take seconds to minutes however small the batch, because something is
            compiled: its trials are given more time before they count as hanging.
        learns_slower: Whether it learns less in the same steps by design, as with fewer weights that train: its loss is
            then not held to the pace of plain training's.
        saves: Categories of memory it lowers; empty for a method that only changes the time.
        time_ratio: Expected time of a step with it over that without it, on a GPU at the same batch, from its paper or
            from counting passes (recomputing the forward pass: 4/3). The search begins with it as a weak prior, off by
            a quarter either way, that the first measurements outweigh; it promises nothing to anybody. A method that
            saves memory allows a larger batch besides, which this leaves out.
        cpu_time_ratio: The same on a CPU, where it is known; otherwise what it costs on a GPU is expected of a CPU too,
            and what it gains is not.
        computes_in: Number format (``"bf16"``, ``"fp16"``, ``"tf32"``, ``"float8"``) of most matrix products with it;
            empty where it leaves that alone, or where a parameter says it. What the format is worth on a device is
            measured before anything is proposed.
        costs: What it costs, in a few words ("about one more forward pass").
        pays: When to use it.
        does_not_pay: When not to.
        rests_on: A sentence on what its gain rests on that need not stay as it was measured; empty where there is none.
        stage: When it is applied.
        parameters: Its parameters with their choices.
        decides: What it alone decides ("which activations of the blocks are kept"): two methods that decide the same
            cannot be combined. Empty if it leaves everything to others.
        conflicts: Further methods it cannot be combined with.
        requires: Importable names of optional libraries it needs.
        extra: The extra of this distribution that installs them.
        accumulates: Whether it works with more than one micro-batch per optimizer step.
        distributes: Whether it trains one model on several devices. On several devices exactly one such method is in
            use; on one device none applies.
        builds_on: Names of methods, one of which must be in use beside it (empty: none needs to be).
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
    stage: ClassVar[Stage]
    parameters: ClassVar[tuple[Parameter, ...]] = ()
    decides: ClassVar[str] = ""
    conflicts: ClassVar[tuple[Conflict, ...]] = ()
    requires: ClassVar[tuple[str, ...]] = ()
    extra: ClassVar[str | None] = None
    accumulates: ClassVar[bool] = True
    distributes: ClassVar[bool] = False
    builds_on: ClassVar[tuple[str, ...]] = ()
    one_device_only: ClassVar[str] = ""
    citation: ClassVar[str]

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
        """Time of a step with one setting over that without, as far as the probe's rates of the device tell.

        What a number format is worth (:attr:`computes_in`) follows from its rate in any case.

        Args:
            parameters: One value for every declared parameter.
            facts: What the probe learned.

        Returns:
            The ratio; ``None`` where no rate tells, as of most methods.
        """
        return None

    @abc.abstractmethod
    def apply(self, training: Training, **parameters: ParameterValue) -> None:
        """Change ``training`` in place. Runs in the worker and in the user's own process.

        Raises:
            MethodRefusedError: The method finds that it cannot apply after all.
        """
