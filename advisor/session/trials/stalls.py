"""Keep what other processes do to plain training out of the trials, where the probe saw that they do.

Threads of an operator wait for each other. Where another process runs on one of their cores, a plain step may take ten
or a hundred times as long as with fewer threads, and all the time would go to plain steps.
"""

from __future__ import annotations

import math

from advisor.measure.in_turn import Speedup
from advisor.measure.measurement import Measurement
from advisor.methods.catalogue import get_method
from advisor.methods.setting import MethodSetting
from advisor.search.space.build_space import GAINS_BELOW
from advisor.search.space.space import Combination, ResolvedSpace
from advisor.workload.facts import Facts

__all__ = ["around_stalls", "settings_around_stalls", "speedup_between"]


def settings_around_stalls(space: ResolvedSpace, facts: Facts) -> tuple[MethodSetting, ...]:
    """The settings of a space that get around what else runs on this machine now; empty if nothing slows it down."""
    found = []
    for axis in space.axes:
        method = get_method(axis.method)
        if not method.rests_on:
            continue
        ratios = [method.measured_time_ratio(setting.parameters, facts) or 1.0 for setting in axis.settings]
        least = min(ratios)
        if least < GAINS_BELOW:
            found.append(axis.settings[ratios.index(least)])
    return tuple(found)


def around_stalls(combination: Combination, settings: tuple[MethodSetting, ...]) -> Combination:
    """The combination with these settings, but for those whose method it has already."""
    has = {one.name for one in combination.settings}
    added = (*combination.settings, *(one for one in settings if one.name not in has))
    return Combination(tuple(sorted(added, key=lambda one: one.name)), combination.gpu_count, combination.mesh)


def speedup_between(one: Measurement, other: Measurement) -> Speedup:
    """The speedup that two measurements at different times amount to."""
    value = one.samples_per_second / other.samples_per_second
    factor = 1 + math.hypot(one.relative_spread, other.relative_spread)
    return Speedup(value=value, low=value / factor, high=value * factor, rounds=1)
