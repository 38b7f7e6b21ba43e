"""What the parent asks of a worker, and what the worker answers: plain frozen records, JSON between processes."""

from __future__ import annotations

import enum
import hashlib

import msgspec

from advisor.hardware.rates import DeviceRates
from advisor.measure.fidelity import FidelityRecord
from advisor.measure.in_turn import Speedup
from advisor.measure.measurement import Measurement, Sizing
from advisor.measure.step_record import StepRecord
from advisor.policy.policy import Policy
from advisor.predict.prediction import CudaDevice, MemoryPrediction
from advisor.predict.step_work import StepWork
from advisor.text.records import AboveZero
from advisor.trial.outcome import Outcome
from advisor.workload.batch_layout import BatchLayout
from advisor.workload.facts import Facts
from advisor.workload.identity import ModelIdentity
from advisor.workload.reads import Reads
from advisor.workload.sizes import SizeCounts
from advisor.workload.workload import WorkloadSource

__all__ = ["Pace", "Rung", "TrialKind", "TrialResult", "TrialSpec"]


class TrialKind(enum.Enum):
    """The kinds of work a worker does."""

    PROBE = "probe"
    """Build, one plain step, and learn the facts."""
    LOOK = "look"
    """Build, and see whether the model and its batches are what they were."""
    COUNT = "count"
    """Count the parameters of every size, without memory for them."""
    PREDICT = "predict"
    """Trace the applied policy without memory: its peak at every batch."""
    SIZE = "size"
    """Short steps at growing batches: memory against batch."""
    TIME = "time"
    """Warm up and measure full steps at one batch."""
    CONFIRM = "confirm"
    """As TIME, but through an emitted wrapper, in a fresh process."""
    FIDELITY = "fidelity"
    """Some tens of small steps: the losses and the first gradient, to be held against the exact run's."""
    VERIFY = "verify"
    """A few steps of a plain loop, or of a wrapper held against them: losses, first gradient, updates."""


class TrialSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One trial. Equal specs on equal fingerprints are the same trial, and are run once.

    Attributes:
        kind: What to do.
        workload: Where the user's functions are.
        policy: What to apply. For SIZE, ``micro_batch`` is the first batch tried; for PREDICT, about the largest
            batch that is of interest. Its ``gpu_count`` is the number of ranks, one process each (see :attr:`ranks`).
        model_size: Arguments of ``build_model`` and ``make_batch`` (the workload's ``SIZES``); empty for the model as
            it is.
        device: torch's device name.
        memory_limit_bytes: Bytes that make the trial end as OUT_OF_MEMORY when passed.
        seed: Seed of the model's initialization, the batches and dropout.
        layout: Where batches have their samples, as the probe found it; a trial without it finds it itself.
        libraries: PROBE: optional libraries to import, to see which of them are there and work.
        fidelity_steps: SIZE: steps at the first batch, whose losses are compared between combinations. FIDELITY: most
            steps.
        write_gradient_to: FIDELITY, VERIFY: file for the first gradient; the exact run's.
        exact_gradient: FIDELITY, VERIFY: file of the exact run's first gradient, which this run's is compared with.
        watched_state: FIDELITY: what the exact run's first step changed in the model: by how much this run's does.
        other_chance: FIDELITY, VERIFY: draw other random numbers in every step, and begin one rounding off: how far
            the exact run is from itself.
        without_dropout: VERIFY: let no dropout draw, where its masks are others than the plain loop's.
        same_bits: VERIFY: whether buffers are asked for the same bits.
        largest_batch: SIZE: do not try micro-batches above this one.
        limit_of_timed_bytes: SIZE: what a timed trial may take: no batch is tried that is foretold to need more.
        beside: SIZE, TIME and CONFIRM: what to take turns with, in a process of its own. In SIZE both have the same
            batch; else it has that of this policy: the baseline, or a leader.
        needs_all_memory: Whether what took turns with earlier trials must give back what it holds.
        smaller: TIME: the same methods at a smaller micro-batch, to time in the same process after the policy itself.
        ladder: TIME: the same methods at growing micro-batches, to time in the same process after the policy itself for
            as long as throughput grows.
        compare_at: SIZE: micro-batch at which to take turns with ``beside``, if it is above that of the last point.
        warmup_steps: TIME: fewest untimed steps.
        min_timed_steps: TIME: fewest timed steps.
        max_timed_steps: TIME: most timed steps.
        target_spread: TIME: stop when the confidence interval's half-width is below this share of the median.
        measure_seconds: Soft limit: stop adding steps or batches after this many seconds of stepping.
        turn_seconds: How long short steps in turn may take.
        time_limit_seconds: Hard limit of the whole trial, kept by the parent.
        outpaced_below_samples_per_second: TIME: stop early when clearly slower than this, else ``None``.
        outpaced_below_speedup: TIME: the same, as a speedup over ``beside``.
        wrapper_path: CONFIRM, VERIFY: the emitted wrapper; without one, VERIFY runs the plain loop.
        wrapper_text: CONFIRM: what is in it, for machines that do not share the study's folder.
        stands_for: PREDICT: the CUDA device that ``device``, a CPU, stands for in the trace.
        with_allocator: PREDICT: replay the allocations of a CUDA device as well, at the batch and up to the limit.
        counts_work: PREDICT: count the work of a step of the device itself as well.
        measures_rates: PREDICT: measure what the device can do as well.
        at_own_batch: PREDICT: around the workload's ``BATCH_SIZE``, if it states one, instead of ``micro_batch``.
        repeat: Tells apart deliberate repetitions of the same trial.
    """

    kind: TrialKind
    workload: WorkloadSource
    policy: Policy
    model_size: dict[str, int | float] = {}
    device: str
    memory_limit_bytes: int
    seed: int = 0
    layout: BatchLayout | None = None
    libraries: tuple[str, ...] = ()
    fidelity_steps: int = 3
    write_gradient_to: str | None = None
    exact_gradient: str | None = None
    watched_state: tuple[str, ...] | None = None
    other_chance: bool = False
    without_dropout: bool = False
    same_bits: bool = False
    largest_batch: int | None = None
    limit_of_timed_bytes: int | None = None
    beside: Policy | None = None
    needs_all_memory: bool = False
    smaller: Policy | None = None
    ladder: tuple[Policy, ...] = ()
    compare_at: int | None = None
    warmup_steps: int = 1
    min_timed_steps: int = 3
    max_timed_steps: int = 50
    target_spread: float = 0.02
    measure_seconds: float
    turn_seconds: float = 0.0
    time_limit_seconds: float
    outpaced_below_samples_per_second: float | None = None
    outpaced_below_speedup: float | None = None
    wrapper_path: str | None = None
    wrapper_text: str = ""
    stands_for: CudaDevice | None = None
    with_allocator: bool = False
    counts_work: bool = False
    measures_rates: bool = False
    at_own_batch: bool = False
    repeat: int = 0

    @property
    def ranks(self) -> int:
        """Processes that run it: one for each device, but a trace is made by one that stands for all."""
        return 1 if self.kind is TrialKind.PREDICT else self.policy.gpu_count

    @property
    def key(self) -> str:
        """Identity of the trial: what is run, not how long we are ready to wait for it.

        Limits of time and the pace of the best so far depend on the moment a search asks; a finished trial answers
        for all of them.
        """
        identity: tuple[object, ...] = (
            self.kind,
            self.workload.fingerprint,
            self.policy,
            self.device,
            # A short run measures what it needs, below or above the limit: its figures hold for every limit.
            self.memory_limit_bytes if self.kind in (TrialKind.TIME, TrialKind.CONFIRM) else None,
            self.seed,
            self.fidelity_steps,
            self.repeat,
            self.model_size,
            self.other_chance,
            self.libraries,
        )
        if self.kind is TrialKind.VERIFY:
            identity = (*identity, self.wrapper_path, self.without_dropout, self.same_bits)
        if self.smaller is not None:
            identity = (*identity, self.smaller)
        if self.beside is not None:
            identity = (*identity, "beside", self.beside, self.compare_at)
        if self.ladder:
            identity = (*identity, "ladder", self.ladder)
        if self.kind is TrialKind.PREDICT:
            limit = self.memory_limit_bytes if self.with_allocator else None
            identity = (*identity, self.at_own_batch, self.stands_for, limit, self.counts_work, self.measures_rates)
        digest = hashlib.sha256(msgspec.json.encode(identity, order="deterministic")).hexdigest()[:12]
        return f"{self.kind.value}-{digest}"


class Rung(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What was found of one batch of a ladder.

    Attributes:
        measurement: Its figures.
        speedup: Over what the trial takes turns with; ``None`` where nobody took turns with it.
        gain: Over the best batch before it in the ladder, in turn with that one; ``None`` at the first one.
    """

    measurement: Measurement
    speedup: Speedup | None = None
    gain: Speedup | None = None


class Pace(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How fast the training was that a trial took turns with.

    Attributes:
        policy: What it trained with.
        samples_per_second: Over its turns.
    """

    policy: Policy
    samples_per_second: AboveZero


class TrialResult(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a trial ended and what it learned.

    Attributes:
        key: The spec's key.
        outcome: How it ended.
        reason: One line for people when the outcome is not OK, or a policy cannot be traced.
        traceback_text: The user's (or a method's) traceback for FAILED, frames of the worker removed.
        facts: PROBE: what was learned.
        reads: PROBE and PREDICT: what the user's code has read.
        identity: PROBE and LOOK: what the model and its batches are.
        counts: COUNT: parameters of every size.
        prediction: PREDICT: the memory; ``None`` where the policy cannot be traced, for the reason given. SIZE: what
            its points foretell, where they do.
        work: PREDICT: the work of a step, where it could be counted: on request, and for a device that is not there.
        device_rates: PREDICT: what the device can do, where that was to be measured.
        sizing: SIZE: the points.
        measurement: TIME and CONFIRM: the figures.
        smaller: TIME: the figures of the smaller micro-batch, where one was asked for and it went well.
        speedup: TIME and CONFIRM: samples per second over those of ``beside``, in turn with it; ``None`` where there
            was none.
        smaller_speedup: TIME: the same of the smaller micro-batch.
        ladder: TIME: the batches of the spec's ladder that were timed.
        most_samples: The most that ``make_batch`` makes, where the trial saw it make fewer than it was asked for.
        paces: How fast what it took turns with was, for each time that it did.
        fidelity: FIDELITY: the losses, and how far the first gradient is from the exact run's.
        steps: VERIFY: what the steps did, and how far they are from the plain loop's.
        notes: What a method or the worker wants the user to know.
        wall_seconds: Time from the request to the answer, as the parent saw it.
        warm: Whether an already running worker served it.
    """

    key: str
    outcome: Outcome
    reason: str = ""
    traceback_text: str | None = None
    facts: Facts | None = None
    reads: Reads | None = None
    identity: ModelIdentity | None = None
    counts: SizeCounts | None = None
    prediction: MemoryPrediction | None = None
    work: StepWork | None = None
    device_rates: DeviceRates | None = None
    sizing: Sizing | None = None
    measurement: Measurement | None = None
    smaller: Measurement | None = None
    speedup: Speedup | None = None
    smaller_speedup: Speedup | None = None
    ladder: tuple[Rung, ...] = ()
    most_samples: int | None = None
    paces: tuple[Pace, ...] = ()
    fidelity: FidelityRecord | None = None
    steps: StepRecord | None = None
    notes: tuple[str, ...] = ()
    wall_seconds: float = 0.0
    warm: bool = False
