"""What a verification of a policy found: the runs, and everything that was looked at."""

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
    """What was found.

    Attributes:
        workload: Its name.
        device: The device's name.
        policy: The policy.
        fidelity: What its methods promise together.
        samples: Samples per step that were compared; the policy's own unless plain training does not fit there.
        outcome: How the wrapper's runs ended: OK, or the first that did not.
        reason: Why, if not OK.
        checks: What was looked at, in order.
        plain: The plain loop's steps.
        wrapper: The wrapper's; ``None`` if they did not come to their end.
        measurement: Of the wrapper; ``None`` if it was not measured.
        plain_measurement: Of plain training at the baseline's batch, if it was measured.
        notes: What the user should know.
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
        """Whether nothing that was judged is outside the promise."""
        return all(check.kept is not Kept.NO for check in self.checks)
