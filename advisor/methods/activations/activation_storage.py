"""What methods that store activations elsewhere or otherwise share in their declarations. Imports no torch."""

from __future__ import annotations

from advisor.hardware.hardware import DeviceKind, Hardware
from advisor.methods.base import Verdict

__all__ = ["ACTIVATION_FORMAT", "ACTIVATION_PLACE", "HOST_SHARE", "LEFT_EXACT", "judge_host"]

ACTIVATION_FORMAT = "the format in which saved activations are stored"
"""What such a method decides: a tensor has one format."""

ACTIVATION_PLACE = "which saved activations move to the host, and when"
"""What such a method decides: a tensor is moved once."""

LEFT_EXACT = (
    "masks, statistics, divisors, and what logarithms, roots, norms, fused attention, compiled regions and functions "
    "of other libraries save"
)
"""What no such method stores in another format, in words."""

HOST_SHARE = 0.6
"""Share of the free host memory that copies may take; the rest is for data loading and everything else."""


def judge_host(hardware: Hardware) -> Verdict:
    """Moving to the host makes sense only where the host's memory is not the device's."""
    if hardware.kind is DeviceKind.CPU:
        return Verdict.no("the device is a CPU, whose memory is the host's: swapping would only copy")
    return Verdict.yes()
