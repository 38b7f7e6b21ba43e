"""The cost of an iteration in seconds, dollars and joules.

Dollars are the price of a device-hour x devices x seconds (Liu 2023, section 4.4: "directly proportional to the
number of GPUs employed and the time taken"). Energy is a second currency beside them, never added: a rented device's
price has its energy in it.
"""

from __future__ import annotations

import msgspec

from advisor.decide.candidate import Candidate
from advisor.goal import Goal
from advisor.policy.file import CostEvidence

__all__ = ["Cost", "cost_evidence", "cost_of"]

_SECONDS_PER_HOUR = 3600
_JOULES_PER_KILOWATT_HOUR = 3.6e6


class Cost(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The cost of a number of iterations.

    Attributes:
        latency_seconds: Time.
        usd: Price of the devices for that time, in US dollars.
        joules: Energy of all devices, where it was measured.
        energy_usd: Price of the energy in US dollars, if it was measured and has a price.
    """

    latency_seconds: float
    usd: float
    joules: float | None = None
    energy_usd: float | None = None

    def times(self, iterations: int) -> Cost:
        """The cost of ``iterations`` times as many."""
        return Cost(
            latency_seconds=self.latency_seconds * iterations,
            usd=self.usd * iterations,
            joules=None if self.joules is None else self.joules * iterations,
            energy_usd=None if self.energy_usd is None else self.energy_usd * iterations,
        )


def cost_of(candidate: Candidate, goal: Goal) -> Cost:
    """The cost of one iteration of a measured candidate.

    Args:
        candidate: A measured candidate.
        goal: The goal, with a price.
    """
    measurement, price = candidate.measurement, goal.price
    assert measurement is not None, "only what was measured has a cost"
    assert price is not None, "the goal 'cheapest' has a price before anything starts"
    seconds, joules = measurement.step_seconds, measurement.joules_per_step
    kilowatt_hours = None if joules is None else joules / _JOULES_PER_KILOWATT_HOUR
    energy_price = goal.usd_per_kilowatt_hour
    return Cost(
        latency_seconds=seconds,
        usd=price.usd_per_hour * candidate.policy.gpu_count * seconds / _SECONDS_PER_HOUR,
        joules=joules,
        energy_usd=None if kilowatt_hours is None or energy_price is None else kilowatt_hours * energy_price,
    )


def cost_evidence(candidate: Candidate, goal: Goal) -> CostEvidence:
    """What the policy file says about the cost of its policy."""
    cost, price = cost_of(candidate, goal), goal.price
    assert price is not None
    return CostEvidence(
        latency_seconds=cost.latency_seconds,
        usd_per_iteration=cost.usd,
        gpu_count=candidate.policy.gpu_count,
        usd_per_hour=price.usd_per_hour,
        price_source=price.source,
        price_date=price.date,
        joules_per_iteration=cost.joules,
    )
