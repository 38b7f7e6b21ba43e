"""Compare the results of a verification with what the policy promises."""

from __future__ import annotations

import enum

import msgspec

from advisor.decide.drift import CHANCES, drift_tolerance, loss_drift
from advisor.decide.guard import gradient_tolerance
from advisor.goal import Fidelity
from advisor.measure.in_turn import Speedup
from advisor.measure.measurement import Measurement
from advisor.measure.step_record import StepRecord
from advisor.methods.catalogue import get_method
from advisor.policy.file import Evidence
from advisor.policy.policy import Policy
from advisor.text.units import format_bytes, format_percent, format_rate, format_times
from advisor.trial.outcome import Outcome

__all__ = ["Check", "Kept", "Verification", "memory_check", "speed_check", "step_checks"]

_UPDATE_TOLERANCES = {Fidelity.EXACT: 0.0, Fidelity.ROUNDING: 0.05, Fidelity.PRECISION: 0.5}
"""Tolerated relative error of the parameter updates. Adam divides by a gradient's size, so small gradients, which are
the least exact, count in full. A method may declare a larger one; classes not listed here have none."""

_APART = 0.1
"""Relative difference between peaks of two runs of one policy, from how the allocator cuts its segments."""


class Kept(enum.Enum):
    """Whether a promise is kept."""

    YES = "kept"
    NO = "not kept"
    NOT_JUDGED = "not judged"


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """One check of a verification: what the policy promises and what was found, in words.

    Attributes:
        name: ``"losses"``, ``"first gradient"``, ``"updates"``, ``"buffers"``, ``"peak memory"``, ``"speed"``, or
            ``"run"`` if the wrapper's steps did not finish.
    """

    name: str
    promised: str
    found: str
    kept: Kept


class Verification(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a verification.

    Attributes:
        fidelity: The class that its methods promise together.
        samples: Samples per compared step; the policy's own unless plain training does not fit there.
        outcome: How the wrapper's runs ended: OK, or the first failure.
        reason: Why, if not OK.
        plain: The plain loop's steps.
        wrapper: The wrapper's steps; ``None`` if they did not finish.
        measurement: The wrapper's measurement; ``None`` if it was not measured.
        plain_measurement: Plain training's at the baseline's batch, if it was measured.
    """

    workload: str
    device: str
    policy: Policy
    fidelity: Fidelity
    samples: int
    outcome: Outcome
    reason: str = ""
    checks: tuple[Check, ...]
    plain: StepRecord
    wrapper: StepRecord | None = None
    measurement: Measurement | None = None
    plain_measurement: Measurement | None = None
    notes: tuple[str, ...] = ()

    @property
    def kept(self) -> bool:
        """Whether every judged check is within the promise."""
        return all(check.kept is not Kept.NO for check in self.checks)


def step_checks(
    policy: Policy, fidelity: Fidelity, plain: StepRecord, own: StepRecord, chance: StepRecord | None = None
) -> list[Check]:
    """Compare the steps of the wrapper with those of the plain loop.

    A policy that promises the same bits must have them. Other classes have the search's tolerances; updates of methods
    that lose information or change the model are shown but not judged. ``chance`` is a second run of the plain loop:
    twice its distance from the first is excused.
    """
    exact = fidelity is Fidelity.EXACT
    drift = loss_drift(own.losses, plain.losses) or 0.0
    drift_by_chance = 0.0 if chance is None else loss_drift(chance.losses, plain.losses) or 0.0
    allowed = None if fidelity is Fidelity.MODEL else 0.0 if exact else drift_tolerance(fidelity)
    checks = [_judged("losses", drift, allowed, drift_by_chance)]
    allowed = 0.0 if exact else gradient_tolerance(fidelity)
    if own.gradient is None:
        checks.append(_not_compared("first gradient", own.gradient_reason))
    else:
        by_chance = 0.0 if chance is None or chance.gradient is None else chance.gradient.error
        checks.append(_judged("first gradient", own.gradient.error, allowed, by_chance))
    if not own.update_errors:
        checks.append(_not_compared("updates", own.update_reason))
    else:
        by_chance = 0.0 if chance is None else max(chance.update_errors, default=0.0)
        checks.append(_judged("updates", max(own.update_errors), _update_tolerance(policy, fidelity), by_chance))
    # Each micro-batch updates running statistics, which is declared as another training; the rest of a class is free.
    others = set(own.other_buffers) - set(() if chance is None else chance.other_buffers)
    if others:
        names = ", ".join(sorted(others)[:3]) + (" ..." if len(others) > 3 else "")
        judged = exact or fidelity is Fidelity.ROUNDING
        kept = Kept.NO if judged else Kept.NOT_JUDGED
        checks.append(Check(name="buffers", promised="the plain loop's", found=f"{names} differ", kept=kept))
    return checks


def memory_check(evidence: Evidence | None, peak_bytes: int, plain: str, *, same_device: bool) -> Check:
    """Compare the wrapper's peak with the promised one, which may be for another device.

    ``plain`` is plain training's peak, in words; it may be empty.
    """
    found = format_bytes(peak_bytes) + (f" ({plain})" if plain else "")
    promised = None if evidence is None else max(evidence.peak_bytes, evidence.confirmed_peak_bytes or 0)
    words = "nothing stated" if promised is None else format_bytes(promised) + ("" if same_device else " elsewhere")
    kept = Kept.NOT_JUDGED
    if promised is not None and same_device:
        kept = Kept.YES if peak_bytes <= (1 + _APART) * promised else Kept.NO
    return Check(name="peak memory", promised=words, found=found, kept=kept)


def speed_check(
    evidence: Evidence | None,
    samples_per_second: float,
    speedup: Speedup | None,
    beside: str = "plain training",
    *,
    same_device: bool,
) -> Check:
    """Compare the wrapper's speed with the promised one, as a speedup over alternating steps of the baseline.

    A promise is broken only if even the upper end of the measured interval is below its lower end. There is no speedup
    if the steps did not alternate.
    """
    found = f"{format_rate(samples_per_second)} samples/s"
    if speedup is not None:
        found = f"{format_times(speedup.value)} {beside} {_ends(speedup.low, speedup.high)}, {found}"
    kept = Kept.NOT_JUDGED
    if evidence is None:
        words = "nothing stated"
    elif evidence.speedup_over_baseline is None:
        rate = evidence.confirmed_samples_per_second or evidence.samples_per_second
        words = f"no ratio; measured then: {format_rate(rate)} samples/s"
    else:
        value, low, high = evidence.speedup_over_baseline
        words = f"{format_times(value)} {_ends(low, high)}" + ("" if same_device else " elsewhere")
        if same_device and speedup is not None:
            kept = Kept.NO if speedup.high < low else Kept.YES
    return Check(name="speed", promised=words, found=found, kept=kept)


def _ends(low: float, high: float) -> str:
    return f"({format_times(low).removesuffix(' times')} to {format_times(high).removesuffix(' times')})"


def _update_tolerance(policy: Policy, fidelity: Fidelity) -> float | None:
    if fidelity not in _UPDATE_TOLERANCES:
        return None
    declared = (get_method(setting.name).update_tolerance for setting in policy.methods)
    own = sum(tolerance for tolerance in declared if tolerance is not None)
    return max(_UPDATE_TOLERANCES[fidelity], own)


def _judged(name: str, error: float, tolerance: float | None, by_chance: float) -> Check:
    found = "the same bits" if error == 0 else f"{format_percent(error)} off"
    if by_chance:
        found += f"; the plain loop is {format_percent(by_chance)} off itself"
    if tolerance is None:
        return Check(name=name, promised="may differ", found=found, kept=Kept.NOT_JUDGED)
    promised = "the same bits" if tolerance == 0 else f"within {format_percent(tolerance)}"
    kept = Kept.YES if error <= max(tolerance, CHANCES * by_chance) else Kept.NO
    return Check(name=name, promised=promised, found=found, kept=kept)


def _not_compared(name: str, reason: str) -> Check:
    return Check(name=name, promised="", found=f"not compared: {reason}", kept=Kept.NOT_JUDGED)
