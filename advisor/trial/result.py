"""Results of trials: one record per kind of trial, distinguished in JSON by ``kind``."""

from __future__ import annotations

import msgspec

from advisor.hardware.rates import DeviceRates
from advisor.measure.fidelity import FidelityRecord
from advisor.measure.in_turn import Speedup
from advisor.measure.measurement import Measurement, Sizing
from advisor.measure.step_record import StepRecord
from advisor.measure.step_split import StepSplit
from advisor.policy.policy import Policy
from advisor.predict.prediction import MemoryPrediction
from advisor.predict.step_timeline import StepTimeline
from advisor.predict.step_work import StepWork
from advisor.text.records import AboveZero
from advisor.trial.outcome import Outcome
from advisor.workload.facts import Facts
from advisor.workload.identity import ModelIdentity
from advisor.workload.reads import Reads
from advisor.workload.sizes import SizeCounts

__all__ = [
    "ComparedResult",
    "ConfirmResult",
    "CountResult",
    "FidelityResult",
    "LookResult",
    "Pace",
    "PlainLoopResult",
    "PredictResult",
    "ProbeResult",
    "Result",
    "Rung",
    "SizeResult",
    "SplitResult",
    "TimeResult",
    "TimedResult",
    "TrialResult",
    "VerifyResult",
]


class Rung(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Measurements of one batch of a ladder.

    Attributes:
        speedup: Over the training that the trial alternates with; ``None`` without one.
        gain: Speedup over the best earlier batch of the ladder, alternating with it; ``None`` for the first batch.
        over: The micro-batch of that one; it is larger where a batch was left out at first.
    """

    measurement: Measurement
    speedup: Speedup | None = None
    gain: Speedup | None = None
    over: int | None = None


class Pace(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How fast the training was that a trial alternated with.

    Attributes:
        page_faults: Pages that a step of it took from the system, in the median turn; ``None`` where not counted.
    """

    policy: Policy
    samples_per_second: AboveZero
    page_faults: float | None = None


class Result(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind"):
    """The fields of every result. Findings are ``None`` unless the trial got that far.

    Attributes:
        reason: One line for people when the outcome is not OK, or a policy cannot be traced.
        traceback_text: The user's (or a method's) traceback for FAILED, frames of the worker removed.
        most_samples: The most that ``make_batch`` returns, if the trial saw it return fewer than requested.
        failed_at: The micro-batch at which it failed, where that is not the trial's own.
        notes: Notes for the user, from methods or the worker.
        wall_seconds: Time from the request to the answer, measured by the parent.
        ended_at: When the parent had it, in seconds since 1970; 0 where that was not recorded.
        warm: Whether an already running worker served it.
    """

    key: str
    outcome: Outcome
    reason: str = ""
    traceback_text: str | None = None
    most_samples: int | None = None
    failed_at: int | None = None
    notes: tuple[str, ...] = ()
    wall_seconds: float = 0.0
    ended_at: float = 0.0
    warm: bool = False


class ProbeResult(Result, frozen=True, kw_only=True, tag="probe"):
    """The facts that a study is based on."""

    facts: Facts | None = None
    reads: Reads | None = None
    identity: ModelIdentity | None = None


class LookResult(Result, frozen=True, kw_only=True, tag="look"):
    """The model's current identity; without it and without a failure, the model cannot be built without memory."""

    identity: ModelIdentity | None = None


class CountResult(Result, frozen=True, kw_only=True, tag="count"):
    """The model's parameter count at every size."""

    counts: SizeCounts | None = None


class PredictResult(Result, frozen=True, kw_only=True, tag="predict"):
    """Predictions from a trace.

    Attributes:
        prediction: The memory; ``None`` if the policy cannot be traced (see ``reason``).
        work: The work of a step, if it could be counted: on request, and for an absent device.
        timeline: Memory over the step, where the work was asked for.
        identity: What the model is, if that was asked for and it can be built without memory.
    """

    prediction: MemoryPrediction | None = None
    work: StepWork | None = None
    timeline: StepTimeline | None = None
    device_rates: DeviceRates | None = None
    reads: Reads | None = None
    identity: ModelIdentity | None = None


class ComparedResult(Result, frozen=True, kw_only=True):
    """Result of a trial that may have alternated with another training.

    Attributes:
        paces: How fast that training was, for each comparison.
    """

    paces: tuple[Pace, ...] = ()


class SizeResult(ComparedResult, frozen=True, kw_only=True, tag="size"):
    """Memory and time of growing batches.

    Attributes:
        prediction: Memory at every batch predicted from these points, if they allow it.
    """

    sizing: Sizing | None = None
    prediction: MemoryPrediction | None = None


class TimedResult(ComparedResult, frozen=True, kw_only=True):
    """Measurements of a training at one batch.

    Attributes:
        speedup: Throughput relative to the training it alternated with; ``None`` without one.
    """

    measurement: Measurement | None = None
    speedup: Speedup | None = None


class TimeResult(TimedResult, frozen=True, kw_only=True, tag="time"):
    """Measurements of a policy, and of other batches with the same methods.

    Attributes:
        smaller: Measurements of the smaller micro-batch, if one was requested and succeeded.
        ladder: The batches of the spec's ladder that were timed.
    """

    smaller: Measurement | None = None
    smaller_speedup: Speedup | None = None
    ladder: tuple[Rung, ...] = ()


class ConfirmResult(TimedResult, frozen=True, kw_only=True, tag="confirm"):
    """Measurements of an emitted wrapper."""


class FidelityResult(Result, frozen=True, kw_only=True, tag="fidelity"):
    """Losses and gradients of a fidelity run.

    Attributes:
        fidelity: The losses, and how far the first gradient is from the reference run's.
    """

    fidelity: FidelityRecord | None = None


class PairResult(Result, frozen=True, kw_only=True, tag="pair"):
    """The ratio of two trainings.

    Attributes:
        speedup: Throughput of the first relative to the other; ``None`` if their settings exclude each other.
    """

    speedup: Speedup | None = None


class SplitResult(Result, frozen=True, kw_only=True, tag="split"):
    """Where the time of a step on several devices goes.

    Attributes:
        split: On the first of them; ``None`` if no communication was seen.
    """

    split: StepSplit | None = None


class PlainLoopResult(Result, frozen=True, kw_only=True, tag="plain loop"):
    """Steps of a plain loop.

    Attributes:
        steps: The recorded steps, and their distance from an earlier plain loop's, if there was one.
    """

    steps: StepRecord | None = None


class VerifyResult(Result, frozen=True, kw_only=True, tag="verify"):
    """Steps through a wrapper.

    Attributes:
        steps: The recorded steps, and their distance from the plain loop's.
    """

    steps: StepRecord | None = None


TrialResult = (
    ProbeResult
    | LookResult
    | CountResult
    | PredictResult
    | SizeResult
    | TimeResult
    | ConfirmResult
    | FidelityResult
    | PairResult
    | SplitResult
    | PlainLoopResult
    | VerifyResult
)
"""The result of any trial."""
