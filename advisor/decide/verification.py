"""The result of verifying a policy: its runs and checks."""

from __future__ import annotations

import msgspec

from advisor.decide.verdict import Check, Kept
from advisor.goal import Fidelity
from advisor.measure.measurement import Measurement
from advisor.measure.step_record import StepRecord
from advisor.policy.policy import Policy
from advisor.trial.outcome import Outcome

__all__ = ["Verification"]


class Verification(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a verification.

    Attributes:
        workload: The workload's name.
        device: The device's name.
        policy: The policy.
        fidelity: The class that its methods promise together.
        samples: Samples per compared step; the policy's own unless plain training does not fit there.
        outcome: How the wrapper's runs ended: OK, or the first failure.
        reason: Why, if not OK.
        checks: The checks, in order.
        plain: The plain loop's steps.
        wrapper: The wrapper's steps; ``None`` if they did not finish.
        measurement: The wrapper's measurement; ``None`` if it was not measured.
        plain_measurement: Plain training's at the baseline's batch, if it was measured.
        notes: Notes for the user.
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
