"""The cost of an iteration in seconds, dollars and joules.

Dollars are the price of a device-hour x devices x seconds (Liu 2023, section 4.4: "directly proportional to the
number of GPUs employed and the time taken"). Energy is a second currency beside them, never added: a rented device's
price has its energy in it.
"""

from __future__ import annotations

from advisor.decide.candidate import Candidate, FrontierPoint
from advisor.goal import Goal
from advisor.policy.file import CostEvidence

__all__ = ["cost_evidence", "cost_of"]

_SECONDS_PER_HOUR = 3600
_JOULES_PER_KILOWATT_HOUR = 3.6e6


def cost_of(candidate: Candidate, goal: Goal) -> FrontierPoint:
    """The cost of one iteration of a measured candidate; the goal has a price."""
    price, energy_price = goal.price, goal.usd_per_kilowatt_hour
    assert price is not None, "the goal 'cheapest' has a price before anything starts"
    policy, seconds, joules = candidate.policy, candidate.measured.step_seconds, candidate.measured.joules_per_step
    return FrontierPoint(
        policy=policy,
        latency_seconds=seconds,
        cost_usd=price.usd_per_hour * policy.gpu_count * seconds / _SECONDS_PER_HOUR,
        joules=joules,
        energy_usd=None
        if joules is None or energy_price is None
        else joules / _JOULES_PER_KILOWATT_HOUR * energy_price,
    )


def cost_evidence(candidate: Candidate, goal: Goal) -> CostEvidence:
    """What the policy file says about the cost of its policy."""
    cost, price = cost_of(candidate, goal), goal.price
    assert price is not None
    return CostEvidence(
        latency_seconds=cost.latency_seconds,
        usd_per_iteration=cost.cost_usd,
        gpu_count=candidate.policy.gpu_count,
        usd_per_hour=price.usd_per_hour,
        price_source=price.source,
        price_date=price.date,
        joules_per_iteration=cost.joules,
    )
