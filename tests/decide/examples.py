"""Candidates with figures, made up."""

from __future__ import annotations

import msgspec

from advisor.decide.candidate import Candidate, Comparison, Role
from advisor.goal import Fidelity, Goal, GoalKind
from advisor.measure.in_turn import Speedup
from advisor.measure.measurement import Measurement, MemoryBreakdown, MemoryMeasurement, StopReason
from advisor.methods.setting import MethodSetting
from advisor.policy.policy import Policy
from advisor.trial.outcome import Outcome

GIB = 2**30
LIMIT = 8 * GIB


def goal(
    *, fidelity: Fidelity = Fidelity.LOSSY, global_batch: int | None = None, kind: GoalKind = GoalKind.FASTER
) -> Goal:
    return Goal(kind=kind, global_batch=global_batch, fidelity=fidelity, memory_limit_bytes=LIMIT)


def memory(peak: int = 4 * GIB, *, activations: int = GIB, gradients: int = GIB // 4) -> MemoryMeasurement:
    return MemoryMeasurement(
        peak_bytes=peak,
        peak_allocated_bytes=peak,
        peak_reserved_bytes=None,
        device_used_bytes=None,
        allocation_retries=None,
        forward_peak_bytes=peak - GIB // 8,
        backward_peak_bytes=peak,
        optimizer_peak_bytes=peak // 2,
        breakdown=MemoryBreakdown(
            parameters=GIB // 4,
            buffers=0,
            gradients=gradients,
            optimizer_state=GIB // 2,
            activations=activations,
        ),
    )


def measurement(
    rate: float,
    *,
    spread: float = 0.01,
    micro_batch: int = 8,
    accumulation_steps: int = 1,
    peak: int = 4 * GIB,
    stop_reason: StopReason = StopReason.STEADY,
) -> Measurement:
    seconds = micro_batch * accumulation_steps / rate
    return Measurement(
        micro_batch=micro_batch,
        accumulation_steps=accumulation_steps,
        step_seconds=seconds,
        step_seconds_low=seconds * (1 - spread),
        step_seconds_high=seconds * (1 + spread),
        timed_steps=10,
        stop_reason=stop_reason,
        samples_per_second=rate,
        tokens_per_second=None,
        memory=memory(peak),
        joules_per_step=None,
        loss_trace=(4.0, 3.5, 3.2),
    )


def in_short_steps(one: Candidate, other: Candidate, speedup: Speedup, *, micro_batch: int) -> Candidate:
    """One's methods, compared with another's by short steps in turn."""
    comparison = Comparison(
        speedup=speedup,
        beside=other.policy.label,
        micro_batch=micro_batch,
        at_batch=one.policy.micro_batch,
        expected_samples_per_second=100,
        expected_error=0.05,
    )
    return Candidate(
        policy=one.policy,
        role=Role.SEARCHED,
        outcome=Outcome.COMPARED,
        fidelity=one.fidelity,
        comparison=comparison,
    )


def policy(*settings: MethodSetting, micro_batch: int = 8, accumulation_steps: int = 1) -> Policy:
    return Policy(
        methods=tuple(sorted(settings, key=lambda one: one.name)),
        micro_batch=micro_batch,
        accumulation_steps=accumulation_steps,
    )


def measured(
    rate: float,
    *settings: MethodSetting,
    micro_batch: int = 8,
    accumulation_steps: int = 1,
    role: Role = Role.SEARCHED,
    fidelity: Fidelity = Fidelity.EXACT,
    drift: float | None = 0.0,
    spread: float = 0.01,
    peak: int = 4 * GIB,
    stop_reason: StopReason = StopReason.STEADY,
) -> Candidate:
    return Candidate(
        policy=policy(*settings, micro_batch=micro_batch, accumulation_steps=accumulation_steps),
        role=role,
        outcome=Outcome.OK,
        measurement=measurement(
            rate,
            spread=spread,
            micro_batch=micro_batch,
            accumulation_steps=accumulation_steps,
            peak=peak,
            stop_reason=stop_reason,
        ),
        fidelity=fidelity,
        loss_drift=drift,
    )


def on(gpu_count: int, candidate: Candidate) -> Candidate:
    """The same on so many devices."""
    return msgspec.structs.replace(candidate, policy=msgspec.structs.replace(candidate.policy, gpu_count=gpu_count))


def baseline(rate: float, *, micro_batch: int = 8, spread: float = 0.01) -> Candidate:
    return measured(rate, micro_batch=micro_batch, role=Role.BASELINE, spread=spread)


def lost(
    outcome: Outcome,
    *settings: MethodSetting,
    reason: str = "",
    predicted: int | None = None,
    micro_batch: int = 1,
    role: Role = Role.SEARCHED,
) -> Candidate:
    return Candidate(
        policy=policy(*settings, micro_batch=micro_batch),
        role=role,
        outcome=outcome,
        reason=reason,
        predicted_peak_bytes=predicted,
        fidelity=Fidelity.EXACT,
    )
