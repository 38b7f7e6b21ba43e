"""Pick a point of the frontier by what the user prefers.

Without a limit it is the knee, the least cost x latency: a step along the frontier is worth it while it saves a larger
share of one than it adds of the other; doubling the devices is worth it from 1.41 times the speed on.
The same figure of merit, energy x delay, weighs the two for processors (Gonzalez and Horowitz, "Energy dissipation in
general purpose microprocessors", 1996). It depends on no unit, has an answer for one point and for two, and does not
move when a far-away point is added. The usual knee of a curve, the point farthest below the chord between its ends
(Satopaa et al., "Finding a 'kneedle' in a haystack", 2011), has neither property: of two points it has none, and
its ends set its scale.
"""

from __future__ import annotations

from collections.abc import Sequence

from advisor.decide.frontier import Placed
from advisor.errors import PreferenceNotMetError
from advisor.goal import Preference
from advisor.policy.policy import Policy
from advisor.text.units import Rounding, format_count, format_duration, format_seconds, format_usd

__all__ = ["beyond_limit", "knee_of", "pick_of", "within_limit"]


def within_limit(one: Placed, preference: Preference) -> bool:
    """Whether a point is within the user's limit, if there is one."""
    point = one.point
    if preference.max_latency_seconds is not None:
        return point.latency_seconds <= preference.max_latency_seconds
    if preference.max_cost_usd is not None:
        return point.cost_usd * (preference.iterations or 1) <= preference.max_cost_usd
    if preference.deadline_seconds is not None:
        assert preference.iterations is not None, "a deadline comes with the iterations to do by then"
        return point.latency_seconds * preference.iterations <= preference.deadline_seconds
    return True


def beyond_limit(one: Placed, preference: Preference) -> str | None:
    """How far a point is beyond the user's limit, in a few words; ``None`` if it is within."""
    point, iterations = one.point, preference.iterations or 1
    if within_limit(one, preference):
        return None
    if preference.max_latency_seconds is not None:
        limit = format_seconds(preference.max_latency_seconds, Rounding.DOWN)
        return f"{format_seconds(point.latency_seconds, Rounding.UP)} per iteration, above the {limit} of --max-latency"
    if preference.max_cost_usd is not None:
        limit = format_usd(preference.max_cost_usd, Rounding.DOWN)
        cost = format_usd(point.cost_usd * iterations, Rounding.UP)
        return f"{cost} for {format_count(iterations, 'iteration')}, above the {limit} of --max-cost"
    assert preference.deadline_seconds is not None
    limit = format_duration(preference.deadline_seconds, Rounding.DOWN)
    time = format_duration(point.latency_seconds * iterations, Rounding.UP)
    return f"{time} for {format_count(iterations, 'iteration')}, longer than the {limit} of --deadline"


def knee_of(frontier: Sequence[Placed]) -> int:
    """Position of the point with the least cost x latency; the cheaper of equals."""
    return min(range(len(frontier)), key=lambda position: (frontier[position].product, position))


def pick_of(frontier: Sequence[Placed], preference: Preference) -> int:
    """Position of the point that the user prefers.

    Args:
        frontier: The points, the cheapest first.
        preference: At most one limit; without one the knee is picked.

    Raises:
        PreferenceNotMetError: No point is within the limit.
    """
    positions = [position for position, one in enumerate(frontier) if within_limit(one, preference)]
    if not positions:
        raise PreferenceNotMetError(_not_met(frontier, preference))
    if preference.max_cost_usd is not None:
        return positions[-1]
    if preference.max_latency_seconds is not None or preference.deadline_seconds is not None:
        return positions[0]
    return knee_of(frontier)


def _not_met(frontier: Sequence[Placed], preference: Preference) -> str:
    cheapest, fastest = frontier[0], frontier[-1]
    iterations = preference.iterations or 1
    if preference.max_cost_usd is not None:
        what = "an iteration" if iterations == 1 else format_count(iterations, "iteration")
        best = format_usd(cheapest.point.cost_usd * iterations, Rounding.UP)
        return (
            f"Some policy must cost at most {format_usd(preference.max_cost_usd)} for {what} (--max-cost), but the "
            f"cheapest costs {best}: {_policy(cheapest.point.policy)}. Raise --max-cost to that, or allow more methods."
        )
    if preference.deadline_seconds is not None:
        best = format_duration(fastest.point.latency_seconds * iterations, Rounding.UP)
        return (
            f"Some policy must finish {format_count(iterations, 'iteration')} within "
            f"{format_duration(preference.deadline_seconds)} (--deadline), but the fastest takes {best}: "
            f"{_policy(fastest.point.policy)}. Extend --deadline to that, or allow more --gpus."
        )
    assert preference.max_latency_seconds is not None
    return (
        f"Some policy must take at most {format_seconds(preference.max_latency_seconds)} per iteration "
        f"(--max-latency), but the fastest takes {format_seconds(fastest.point.latency_seconds, Rounding.UP)}: "
        f"{_policy(fastest.point.policy)}. Raise --max-latency to that, or allow more --gpus."
    )


def _policy(policy: Policy) -> str:
    return policy.label + (policy.axes.on_devices(policy.gpu_count) or " on 1 device")
