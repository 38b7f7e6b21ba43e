"""What the methods declare about the time of a step, as a ratio for one setting on one device."""

from __future__ import annotations

import math

from advisor.hardware.hardware import DeviceKind, Hardware
from advisor.methods.base import Method
from advisor.methods.number_formats import format_of, relative_rate
from advisor.methods.use import MethodUse
from advisor.workload.facts import Facts

__all__ = ["expected_time_ratio"]

_MATMUL_SHARE = 0.75
"""Share of matrix products in the time of a step: of transformers and convolutional networks most of it."""

_SHORT_SHARE = 0.5
"""What is left of the rest of a step in a format of 16 bits: its bytes halve."""


def expected_time_ratio(method: Method, setting: MethodUse, hardware: Hardware, facts: Facts | None = None) -> float:
    """Expected time of a step with a setting over that without it, at the same batch.

    What is computed twice is so on any device. What is gained is gained by a GPU's tensor cores, launches and caches:
    on a CPU nothing is expected of it, except where the method says what a CPU gains. What a number format is worth
    follows from its rate, where that was measured.

    Args:
        method: The method.
        setting: One setting of it.
        hardware: The device.
        facts: What the probe measured, if there was one.
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
        # What is declared is what the best device gains.
        return max(ratio, _MATMUL_SHARE / relative + (1 - _MATMUL_SHARE) * _SHORT_SHARE)
    return ratio if on_cuda or known is not None else max(1.0, ratio)
