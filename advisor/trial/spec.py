"""What the parent asks of a worker: one record per kind of trial, told apart in JSON by ``kind``."""

from __future__ import annotations

import functools
import hashlib
import operator
from typing import Annotated, Any, Generic, TypeVar, cast, get_args

import msgspec

from advisor.policy.policy import Policy
from advisor.predict.prediction import CudaDevice
from advisor.trial.outcome import Outcome
from advisor.trial.result import (
    ComparedResult,
    ConfirmResult,
    CountResult,
    FidelityResult,
    LookResult,
    PairResult,
    PlainLoopResult,
    PredictResult,
    ProbeResult,
    Result,
    SizeResult,
    SplitResult,
    TimedResult,
    TimeResult,
    VerifyResult,
)
from advisor.trial.trial_key import Incidental, identity_of
from advisor.workload.batch_layout import BatchLayout
from advisor.workload.workload import WorkloadSource

__all__ = [
    "ComparedSpec",
    "ComparedTrial",
    "ConfirmTrial",
    "CountTrial",
    "FidelityTrial",
    "Incidental",
    "LookTrial",
    "PairTrial",
    "PlainLoopTrial",
    "PredictTrial",
    "ProbeTrial",
    "SizeTrial",
    "SplitTrial",
    "TimeTrial",
    "TimedTrial",
    "Trial",
    "TrialSpec",
    "VerifyTrial",
]

_T = TypeVar("_T")
_R = TypeVar("_R", bound=Result, covariant=True)
_Compared = TypeVar("_Compared", bound=ComparedResult, covariant=True)
_Timed = TypeVar("_Timed", bound=TimedResult, covariant=True)

_ByFingerprint = Annotated[WorkloadSource, msgspec.Meta(extra={"identity": operator.attrgetter("fingerprint")})]
"""A workload is identified by its content, wherever its file is."""


class Trial(msgspec.Struct, Generic[_R], frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind"):
    """The fields of every trial. Trials with equal keys are the same trial and run once.

    Attributes:
        policy: What to apply. Its ``gpu_count`` is the number of ranks, one process each (see :attr:`ranks`).
        model_size: Arguments of ``build_model`` and ``make_batch`` (the workload's ``SIZES``); empty for the defaults.
        memory_limit_bytes: Exceeding it ends the trial as OUT_OF_MEMORY. Results hold for every limit, unless the kind
            of trial says otherwise.
        seed: Seed of the model's initialization, the batches and dropout.
        layout: Where batches have their samples, as found by the probe; a trial without it finds it itself.
        measure_seconds: Soft limit: stop adding steps or batches after this many seconds of stepping.
        time_limit_seconds: Hard limit of the whole trial, enforced by the parent.
        repeat: Distinguishes deliberate repetitions of the same trial.
    """

    workload: _ByFingerprint
    policy: Policy
    model_size: dict[str, int | float] = {}
    device: str
    memory_limit_bytes: Incidental[int]
    seed: int = 0
    layout: Incidental[BatchLayout | None] = None
    measure_seconds: Incidental[float]
    time_limit_seconds: Incidental[float]
    repeat: int = 0

    @property
    def ranks(self) -> int:
        """Number of processes: one per device."""
        return self.policy.gpu_count

    @property
    def kind(self) -> str:
        """The kind of trial, as written in JSON."""
        return str(self.__struct_config__.tag)

    @property
    def key(self) -> str:
        """Identity of the trial: its fields but incidental ones and defaults; a later field changes no older key."""
        asked = {
            name: value if of is None else of(value)
            for name, default, of in identity_of(type(self))
            if (value := getattr(self, name)) != default
        }
        digest = hashlib.sha256(msgspec.json.encode(asked, order="deterministic")).hexdigest()[:12]
        return f"{self.kind.replace(' ', '-')}-{digest}"

    @property
    def result_type(self) -> type[_R]:
        """The record type of its result."""
        return cast("type[_R]", _result_of(type(self)))

    def ended(self, outcome: Outcome, reason: str = "", **found: Any) -> _R:
        """Make the result of this trial."""
        return self.result_type(key=self.key, outcome=outcome, reason=reason, **found)


@functools.cache
def _result_of(kind: type[Trial[Any]]) -> Any:
    return get_args(kind.__orig_bases__[0])[0]  # type: ignore[attr-defined]


class ProbeTrial(Trial[ProbeResult], frozen=True, kw_only=True, tag="probe"):
    """Build the model, make one plain step, and collect the facts.

    Attributes:
        libraries: Optional libraries to import, to see which are installed and work.
        tensor_degrees: Numbers of devices for which to find out what of each layer they can divide.
    """

    libraries: tuple[str, ...] = ()
    tensor_degrees: tuple[int, ...] = ()


class LookTrial(Trial[LookResult], frozen=True, kw_only=True, tag="look"):
    """Build the model, and say what it and its batches are.

    Attributes:
        on_meta: Build it without memory. The user's code may keep what has no values: the process builds no other.
    """

    on_meta: bool = False


class CountTrial(Trial[CountResult], frozen=True, kw_only=True, tag="count"):
    """Count the parameters of every size without allocating them."""


class PredictTrial(Trial[PredictResult], frozen=True, kw_only=True, tag="predict"):
    """Trace the applied policy without allocating: predicts its peak at every batch, best near the traced one.

    Attributes:
        stands_for: The CUDA device that ``device``, a CPU, stands for in the trace.
        allocator_limit_bytes: Also replay the allocations of a CUDA device, at the batch and up to this limit.
        counts_work: Also count the work of a step on the device itself.
        at_own_batch: Trace around the workload's ``BATCH_SIZE``, if it states one, instead of ``micro_batch``.
        identifies: Also tell what the model is.
        rank: The rank to trace, of those that train together: on a mesh they hold different parts of the model.
    """

    stands_for: CudaDevice | None = None
    allocator_limit_bytes: int | None = None
    counts_work: bool = False
    measures_rates: bool = False
    at_own_batch: bool = False
    identifies: bool = False
    rank: int = 0

    @property
    def ranks(self) -> int:
        """One process traces for all ranks."""
        return 1


class ComparedTrial(Trial[_Compared], frozen=True, kw_only=True):
    """A trial that may alternate with another training in a separate process.

    Attributes:
        beside: The baseline or a leader. Profiling runs alternate at equal batches, others at the batch of this policy.
        turn_seconds: How long alternating profiling steps may take.
        needs_all_memory: Whether the training that alternated with earlier trials must free its memory.
    """

    beside: Policy | None = None
    turn_seconds: Incidental[float] = 0.0
    needs_all_memory: Incidental[bool] = False


HOPELESS = 0.5
"""Speedup over ``beside`` below which a combination's profiling runs may end early."""


class SizeTrial(ComparedTrial[SizeResult], frozen=True, kw_only=True, tag="size"):
    """Profiling run at growing batches: memory against batch, starting at the policy's micro-batch.

    Attributes:
        fidelity_steps: Steps at the first batch, whose losses are compared between combinations.
        limit_of_timed_bytes: Memory limit of timed trials: batches predicted to need more are not tried.
        compare_at: Micro-batch at which to alternate, if above that of the last point.
        sample_seconds_beside: Expected seconds per sample of ``beside`` there; what needs far more is compared sooner.
    """

    fidelity_steps: int = 3
    largest_batch: Incidental[int | None] = None
    limit_of_timed_bytes: Incidental[int | None] = None
    compare_at: int | None = None
    sample_seconds_beside: Incidental[float | None] = None


class TimedTrial(ComparedTrial[_Timed], frozen=True, kw_only=True):
    """Warm up and measure full steps at one batch.

    Attributes:
        memory_limit_bytes: Part of the key here: the memory available decides how the training is timed.
        target_spread: Stop when the confidence interval's half-width is below this share of the median.
        outpaced_below_samples_per_second: Stop early when clearly slower than this, else ``None``.
        outpaced_below_speedup: The same, as a speedup over ``beside``.
        thread_rates: The probe's rates by number of threads: beside other processes, steps that are not timed take as
            many as these do not slow down. Empty where every step takes those of the policy.
    """

    memory_limit_bytes: int
    warmup_steps: int = 1
    min_timed_steps: int = 3
    max_timed_steps: int = 50
    target_spread: float = 0.02
    outpaced_below_samples_per_second: Incidental[float | None] = None
    outpaced_below_speedup: Incidental[float | None] = None
    thread_rates: Incidental[dict[int, float]] = {}


class TimeTrial(TimedTrial[TimeResult], frozen=True, kw_only=True, tag="time"):
    """Measure a policy, and other batches of the same methods after it in the same process.

    Attributes:
        ladder: The same methods at growing micro-batches, for as long as throughput grows.
        expected_gains: Expected throughput of each of them relative to the one before; empty if nothing is known.
        ladder_seconds: Seconds after the trial's beginning by which the ladder should end; ``None`` if that is open.
    """

    smaller: Policy | None = None
    ladder: tuple[Policy, ...] = ()
    expected_gains: Incidental[tuple[float, ...]] = ()
    ladder_seconds: Incidental[float | None] = None


class ConfirmTrial(TimedTrial[ConfirmResult], frozen=True, kw_only=True, tag="confirm"):
    """Measure a policy through an emitted wrapper, in a fresh process.

    Attributes:
        beside_size: The model size of the other training; ``None``: the same.
        wrapper_text: Its content, for machines that do not share the study's folder.
    """

    wrapper_path: Incidental[str]
    wrapper_text: Incidental[str] = ""
    beside_size: dict[str, int | float] | None = None


class PairTrial(Trial[PairResult], frozen=True, kw_only=True, tag="pair"):
    """Alternate the steps of two trainings in the same processes, on one device or several.

    Attributes:
        beside: The other policy, on as many devices.
        target_spread: Half-width of the ratio's interval that is enough.
    """

    beside: Policy
    target_spread: float = 0.01


class SplitTrial(Trial[SplitResult], frozen=True, kw_only=True, tag="split"):
    """Watch a few steps on several devices with a profiler: what of them is computing, what communication."""


class FidelityTrial(Trial[FidelityResult], frozen=True, kw_only=True, tag="fidelity"):
    """A few dozen small steps: the losses and the first gradient, to compare with the reference run's.

    Attributes:
        other_chance: Draw other numbers in every step and start one rounding error away: the reference run's own noise.
        write_gradient_to: File to write the first gradient to, for the reference run.
        reference_gradient: File of the reference run's first gradient, to compare this run's with.
        watched_state: Names of the model state that the reference run's first step changed.
        thread_rates: As for timed trials; nothing here is timed.
    """

    fidelity_steps: int = 3
    other_chance: bool = False
    thread_rates: Incidental[dict[int, float]] = {}
    write_gradient_to: Incidental[str | None] = None
    reference_gradient: Incidental[str | None] = None
    watched_state: Incidental[tuple[str, ...] | None] = None


class PlainLoopTrial(Trial[PlainLoopResult], frozen=True, kw_only=True, tag="plain loop"):
    """A few steps of a loop without momadvise: losses, first gradient, updates.

    Attributes:
        without_dropout: Disable dropout, where its masks differ from a wrapper's.
        other_chance: Use other random numbers in every step and start one rounding error away.
        same_bits: Whether buffers must match bit for bit.
        write_gradient_to: File for the first gradient; the updates are written next to it.
        reference_gradient: That file of an earlier loop, to compare this one with.
    """

    without_dropout: bool = False
    other_chance: bool = False
    same_bits: bool = False
    write_gradient_to: Incidental[str | None] = None
    reference_gradient: Incidental[str | None] = None


class VerifyTrial(Trial[VerifyResult], frozen=True, kw_only=True, tag="verify"):
    """The same steps through an emitted wrapper, compared with a plain loop's.

    Attributes:
        without_dropout: Disable dropout, where its masks differ from the plain loop's.
        same_bits: Whether buffers must match bit for bit.
    """

    wrapper_path: str
    without_dropout: bool = False
    same_bits: bool = False
    reference_gradient: Incidental[str]


ComparedSpec = SizeTrial | TimeTrial | ConfirmTrial
"""A trial that may alternate with another training."""

TrialSpec = (
    ProbeTrial
    | LookTrial
    | CountTrial
    | PredictTrial
    | SizeTrial
    | TimeTrial
    | ConfirmTrial
    | FidelityTrial
    | PairTrial
    | SplitTrial
    | PlainLoopTrial
    | VerifyTrial
)
"""Any trial."""
