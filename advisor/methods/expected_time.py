"""What the methods declare about the time of a step, as a ratio for one setting on one device."""

from __future__ import annotations

import math

from advisor.methods.base import Method
from advisor.methods.use import MethodUse
from advisor.problem.hardware import DeviceKind, Hardware

__all__ = ["expected_time_ratio"]


def expected_time_ratio(method: Method, setting: MethodUse, hardware: Hardware) -> float:
    """Expected time of a step with a setting over that without it, at the same batch.

    What is computed twice is so on any device. What is gained is gained by a GPU's tensor cores, launches and caches:
    on a CPU nothing is expected of it.
    """
    ratio = method.time_ratio * math.prod(
        parameter.time_ratio.get(setting.parameters[parameter.name], 1.0) for parameter in method.parameters
    )
    return ratio if hardware.kind is DeviceKind.CUDA else max(1.0, ratio)
