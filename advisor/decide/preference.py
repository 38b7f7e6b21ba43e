"""Pick a point of the frontier by what the user prefers.

Without a limit it is the knee, the least cost x latency: a step along the frontier is worth it while it saves a larger
share of one than it adds of the other; doubling the devices is worth it from 1.41 times the speed on.
The same figure of merit, energy x delay, weighs the two for processors (Gonzalez and Horowitz, "Energy dissipation in
general purpose microprocessors", 1996). Unlike the point farthest below the chord between the ends (Satopaa et al.,
"Finding a 'kneedle' in a haystack", 2011), it exists for two points, and does not move when a far-away one is added.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from advisor.decide.candidate import FrontierPoint
from advisor.decide.frontier import Placed
from advisor.errors import PreferenceNotMetError
from advisor.goal import Preference
from advisor.text.units import Rounding, format_count, format_duration, format_seconds, format_usd

__all__ = ["Limit", "beyond_limit", "knee_of", "limit_of", "pick_of", "within_limit"]


class Limit(NamedTuple):
    """A limit on the points of the frontier.

    Attributes:
        option: The option that sets it.
        verb: What it limits: what a point must ``"take"`` or ``"cost"`` at most.
        most: In seconds or US dollars.
        value: The same of a point.
        show: Formats both.
        span: What they are for, in words.
    """

    option: str
    verb: str
    most: float
    value: Callable[[FrontierPoint], float]
    show: Callable[[float, Rounding], str]
    span: str

    @property
    def words(self) -> str:
        """``"at most 200 ms per iteration"``."""
        return f"at most {self.show(self.most, Rounding.NEAREST)} {self.span}"


def limit_of(preference: Preference) -> Limit | None:
    """The user's limit, if there is one."""
    iterations = preference.iterations or 1
    span = f"for {'an iteration' if iterations == 1 else format_count(iterations, 'iteration')}"
    if preference.max_latency_seconds is not None:
        most = preference.max_latency_seconds
        return Limit("--max-latency", "take", most, lambda one: one.latency_seconds, format_seconds, "per iteration")
    if preference.max_cost_usd is not None:
        most = preference.max_cost_usd
        return Limit("--max-cost", "cost", most, lambda one: one.cost_usd * iterations, format_usd, span)
    if preference.deadline_seconds is not None:
        assert preference.iterations is not None, "a deadline comes with the iterations to do by then"
        most = preference.deadline_seconds
        return Limit("--deadline", "take", most, lambda one: one.latency_seconds * iterations, format_duration, span)
    return None


def within_limit(one: Placed, preference: Preference) -> bool:
    """Whether a point is within the user's limit, if there is one."""
    limit = limit_of(preference)
    return limit is None or limit.value(one.point) <= limit.most


def beyond_limit(one: Placed, preference: Preference) -> str | None:
    """How far a point is beyond the user's limit, in a few words; ``None`` if it is within."""
    limit = limit_of(preference)
    if limit is None or within_limit(one, preference):
        return None
    value, most = limit.show(limit.value(one.point), Rounding.UP), limit.show(limit.most, Rounding.DOWN)
    return f"{value} {limit.span}, above the {most} of {limit.option}"


def knee_of(frontier: Sequence[Placed]) -> int:
    """Position of the point with the least cost x latency; the cheaper of equals."""
    return min(range(len(frontier)), key=lambda position: (frontier[position].product, position))


def pick_of(frontier: Sequence[Placed], preference: Preference) -> int:
    """Position of the point that the user prefers: the knee without a limit.

    Raises:
        PreferenceNotMetError: No point is within the limit.
    """
    limit = limit_of(preference)
    if limit is None:
        return knee_of(frontier)
    positions = [position for position, one in enumerate(frontier) if within_limit(one, preference)]
    if not positions:
        best, name, more = (0, "cheapest", "methods") if limit.verb == "cost" else (-1, "fastest", "--gpus")
        point = frontier[best].point
        raise PreferenceNotMetError(
            f"Some policy must {limit.verb} {limit.words} ({limit.option}), but the {name} {limit.verb}s "
            f"{limit.show(limit.value(point), Rounding.UP)}: {point.policy.words}"
            f"{point.policy.axes.on_devices(point.policy.gpu_count) or ' on 1 device'}. Raise {limit.option} to that, "
            f"or allow more {more}."
        )
    return positions[-1 if limit.verb == "cost" else 0]
