"""How a trial ended, and what it found: one record per kind of trial, told apart in JSON by ``kind``."""

from __future__ import annotations

import msgspec

from advisor.hardware.rates import DeviceRates
from advisor.measure.fidelity import FidelityRecord
from advisor.measure.in_turn import Speedup
from advisor.measure.measurement import Measurement, Sizing
from advisor.measure.step_record import StepRecord
from advisor.policy.policy import Policy
from advisor.predict.prediction import MemoryPrediction
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
    "TimeResult",
    "TimedResult",
    "TrialResult",
    "VerifyResult",
]


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


class Result(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind"):
    """What every trial's result has. What a trial found is ``None`` unless it came that far.

    Attributes:
        key: The spec's key.
        outcome: How it ended.
        reason: One line for people when the outcome is not OK, or a policy cannot be traced.
        traceback_text: The user's (or a method's) traceback for FAILED, frames of the worker removed.
        most_samples: The most that ``make_batch`` makes, where the trial saw it make fewer than it was asked for.
        notes: What a method or the worker wants the user to know.
        wall_seconds: Time from the request to the answer, as the parent saw it.
        warm: Whether an already running worker served it.
    """

    key: str
    outcome: Outcome
    reason: str = ""
    traceback_text: str | None = None
    most_samples: int | None = None
    notes: tuple[str, ...] = ()
    wall_seconds: float = 0.0
    warm: bool = False


class ProbeResult(Result, frozen=True, kw_only=True, tag="probe"):
    """What a study rests on.

    Attributes:
        facts: What was learned of the model.
        reads: What the user's code has read.
        identity: What the model and its batches are.
    """

    facts: Facts | None = None
    reads: Reads | None = None
    identity: ModelIdentity | None = None


class LookResult(Result, frozen=True, kw_only=True, tag="look"):
    """What the model is now.

    Attributes:
        identity: What the model and its batches are.
    """

    identity: ModelIdentity | None = None


class CountResult(Result, frozen=True, kw_only=True, tag="count"):
    """How large the model is at every size.

    Attributes:
        counts: Parameters of every size.
    """

    counts: SizeCounts | None = None


class PredictResult(Result, frozen=True, kw_only=True, tag="predict"):
    """What a trace says.

    Attributes:
        prediction: The memory; ``None`` where the policy cannot be traced, for the reason given.
        work: The work of a step, where it could be counted: on request, and for a device that is not there.
        device_rates: What the device can do, where that was to be measured.
        reads: What the user's code has read.
    """

    prediction: MemoryPrediction | None = None
    work: StepWork | None = None
    device_rates: DeviceRates | None = None
    reads: Reads | None = None


class ComparedResult(Result, frozen=True, kw_only=True):
    """Of a trial that may have taken turns with another training.

    Attributes:
        paces: How fast that training was, for each time that it did.
    """

    paces: tuple[Pace, ...] = ()


class SizeResult(ComparedResult, frozen=True, kw_only=True, tag="size"):
    """Memory and time of growing batches.

    Attributes:
        sizing: The points.
        prediction: What its points predict for every batch, where they do.
    """

    sizing: Sizing | None = None
    prediction: MemoryPrediction | None = None


class TimedResult(ComparedResult, frozen=True, kw_only=True):
    """The figures of a training at one batch.

    Attributes:
        measurement: The figures.
        speedup: Samples per second over those of what it took turns with; ``None`` where there was nothing.
    """

    measurement: Measurement | None = None
    speedup: Speedup | None = None


class TimeResult(TimedResult, frozen=True, kw_only=True, tag="time"):
    """The figures of a policy, and of other batches of the same methods.

    Attributes:
        smaller: The figures of the smaller micro-batch, where one was asked for and it went well.
        smaller_speedup: Its speedup.
        ladder: The batches of the spec's ladder that were timed.
    """

    smaller: Measurement | None = None
    smaller_speedup: Speedup | None = None
    ladder: tuple[Rung, ...] = ()


class ConfirmResult(TimedResult, frozen=True, kw_only=True, tag="confirm"):
    """The figures of an emitted wrapper."""


class FidelityResult(Result, frozen=True, kw_only=True, tag="fidelity"):
    """What a training does to the losses.

    Attributes:
        fidelity: The losses, and how far the first gradient is from the reference run's.
    """

    fidelity: FidelityRecord | None = None


class PlainLoopResult(Result, frozen=True, kw_only=True, tag="plain loop"):
    """What a plain loop does.

    Attributes:
        steps: What the steps did; and how far they are from those of another plain loop, if there was one before.
    """

    steps: StepRecord | None = None


class VerifyResult(Result, frozen=True, kw_only=True, tag="verify"):
    """What a wrapper does.

    Attributes:
        steps: What the steps did, and how far they are from the plain loop's.
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
    | PlainLoopResult
    | VerifyResult
)
"""The result of any trial."""
