"""The declared effect of a setting on the step time of one device, as a ratio."""

from __future__ import annotations

import math

from advisor.hardware.hardware import DeviceKind, Hardware
from advisor.methods.base import Method
from advisor.methods.number_formats import format_of, relative_rate
from advisor.methods.setting import MethodSetting
from advisor.workload.facts import Facts

__all__ = ["expected_time_ratio"]

_MATMUL_SHARE = 0.75
"""Share of matrix products in the step time: most of it for transformers and convolutional networks."""

_SHORT_SHARE = 0.5
"""Factor on the rest of a step in a 16-bit format, whose bytes halve."""


def expected_time_ratio(
    method: Method, setting: MethodSetting, hardware: Hardware, facts: Facts | None = None
) -> float:
    """Expected step time with a setting relative to that without it, at the same batch.

    Recomputation costs the same on any device. Gains come from a GPU's tensor cores, launches and caches: on a CPU none
    is expected unless the method declares it. The effect of a number format follows from its rate, if the probe
    measured it.
    """
    measured = None if facts is None else method.measured_time_ratio(setting.parameters, facts)
    if measured is not None:
        return measured
    on_cuda = hardware.kind is DeviceKind.CUDA
    known = None if on_cuda else method.cpu_time_ratio
    ratio = (method.time_ratio if known is None else known) * math.prod(
        parameter.time_ratio.get(setting.parameters[parameter.name], 1.0) for parameter in method.parameters
    )
    number_format = format_of(method, setting)
    relative = relative_rate(number_format, facts) if number_format and facts is not None else None
    if relative is not None:
        # The declared gain is that of the best device.
        return max(ratio, _MATMUL_SHARE / relative + (1 - _MATMUL_SHARE) * _SHORT_SHARE)
    return ratio if on_cuda or known is not None else max(1.0, ratio)
