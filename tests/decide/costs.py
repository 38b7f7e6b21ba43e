"""Candidates of one global batch on several devices, made up; 3.60 USD per device-hour is 0.001 USD per second."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from advisor.decide.candidate import Candidate, Recommendation, Role
from advisor.decide.choose import choose
from advisor.goal import Fidelity, Goal, GoalKind, Preference, Price
from advisor.measure.measurement import StopReason
from advisor.methods.setting import MethodSetting

from .examples import GIB, LIMIT, measured

GLOBAL_BATCH = 32
PRICE = Price(
    usd_per_hour=3.6, source="profiles/a100_80gb.yaml: https://example.com/prices", date="retrieved 2026-11-21"
)


def cheapest(
    preference: Preference = Preference(),  # noqa: B008
    *,
    fidelity: Fidelity = Fidelity.LOSSY,
    price: Price | None = PRICE,
    usd_per_kilowatt_hour: float | None = None,
) -> Goal:
    return Goal(
        kind=GoalKind.CHEAPEST,
        global_batch=GLOBAL_BATCH,
        fidelity=fidelity,
        memory_limit_bytes=LIMIT,
        gpu_counts=(1, 2, 4),
        price=price,
        usd_per_kilowatt_hour=usd_per_kilowatt_hour,
        preference=preference,
    )


def timed(
    seconds: float,
    *settings: MethodSetting,
    gpu_count: int = 1,
    accumulation_steps: int = 1,
    role: Role = Role.SEARCHED,
    fidelity: Fidelity = Fidelity.EXACT,
    drift: float | None = 0.0,
    spread: float = 0.005,
    peak: int = 4 * GIB,
    joules: float | None = None,
    stop_reason: StopReason = StopReason.STEADY,
) -> Candidate:
    """A candidate that takes so many seconds per iteration."""
    micro_batch = GLOBAL_BATCH // gpu_count // accumulation_steps
    one = measured(
        micro_batch * accumulation_steps / seconds,
        *settings,
        micro_batch=micro_batch,
        accumulation_steps=accumulation_steps,
        role=role,
        fidelity=fidelity,
        drift=drift,
        spread=spread,
        peak=peak,
        stop_reason=stop_reason,
    )
    assert one.measurement is not None
    return msgspec.structs.replace(
        one,
        policy=msgspec.structs.replace(one.policy, gpu_count=gpu_count),
        measurement=msgspec.structs.replace(
            one.measurement, step_seconds=seconds, samples_per_second=GLOBAL_BATCH / seconds, joules_per_step=joules
        ),
    )


def decide(candidates: Sequence[Candidate], aim: Goal | None = None) -> Recommendation:
    return choose(candidates, aim or cheapest(), refused_settings={}, untried=3, stopped_because="time is up")
