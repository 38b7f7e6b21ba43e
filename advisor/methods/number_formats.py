"""Whether a device computes in a number format, and in which formats a model may come."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from advisor.errors import MethodRefusedError
from advisor.hardware.hardware import DeviceKind, Hardware
from advisor.methods.base import Method, Verdict
from advisor.methods.setting import MethodSetting
from advisor.workload.facts import Facts

if TYPE_CHECKING:
    import torch

__all__ = ["FLOAT_FORMAT", "format_of", "judge_format", "refuse_device", "relative_rate", "why_slower"]

FLOAT_FORMAT = "the float format of parameters and activations"
"""Decided by methods that bring all of a training into another format."""

_LEAST_CAPABILITY = {"bf16": ((8, 0), "Ampere"), "tf32": ((8, 0), "Ampere"), "float8": ((8, 9), "Ada, Hopper")}
_TORCH_NAMES = {"bf16": "bfloat16", "fp16": "float16"}
_EMULATED_BELOW = 0.25
"""Share of the float32 rate below which a format counts as emulated: shorter numbers cannot make up for it."""

_SLOWER_BELOW = 0.85
"""Share of the float32 rate below which nobody chooses a format for its speed: if matrix products are three quarters of
a step and all else takes half the time, nothing is gained at 6/7."""


def judge_format(name: str, facts: Facts | None, hardware: Hardware) -> Verdict:
    """Whether the device has arithmetic in ``"bf16"``, ``"fp16"``, ``"tf32"`` or ``"float8"``."""
    if hardware.kind is DeviceKind.CPU and name not in _TORCH_NAMES:
        return Verdict.no(f"{name} is a format of NVIDIA GPUs, but the device is a CPU")
    emulated = None if facts is None else _emulated(_TORCH_NAMES.get(name, name), facts.matmul_flops_per_second)
    if emulated is not None:
        return Verdict.no(emulated)
    capability = hardware.compute_capability
    if capability is not None and (missing := _missing(name, capability)):
        fix = "; use fp16" if name == "bf16" else ""
        return Verdict.no(f"{missing}, but {hardware.name} has {capability[0]}.{capability[1]}{fix}")
    if facts is None and hardware.kind is DeviceKind.CPU:
        return Verdict.yes("the first step of a tuning measures whether this CPU only emulates it")
    return Verdict.yes()


def format_of(method: Method, setting: MethodSetting) -> str:
    """The number format that a setting computes matrix products in; empty if it leaves that alone."""
    chosen = (parameter.computes_in.get(setting.parameters[parameter.name]) for parameter in method.parameters)
    return next((name for name in chosen if name), method.computes_in)


def relative_rate(name: str, facts: Facts) -> float | None:
    """The rate of matrix products in a format over that in float32, as the probe measured both; ``None`` if not."""
    rate = facts.matmul_flops_per_second.get(_TORCH_NAMES.get(name, name))
    full = facts.matmul_flops_per_second.get("float32")
    return None if rate is None or not full else rate / full


def why_slower(name: str, facts: Facts) -> str:
    """Why nobody chooses a format for its speed on this device; empty if it is fast, or was not measured."""
    relative = relative_rate(name, facts)
    if relative is None or relative >= _SLOWER_BELOW:
        return ""
    rates, torch_name = facts.matmul_flops_per_second, _TORCH_NAMES.get(name, name)
    return (
        f"this device multiplies matrices more slowly in {torch_name}: {rates[torch_name] / 1e9:.3g} GFLOP/s, against "
        f"{rates['float32'] / 1e9:.3g} in float32"
    )


def refuse_device(name: str, device: torch.device) -> None:
    """Refuse a GPU without arithmetic in a format, where nobody asked :func:`judge_format`; a CPU emulates them all.

    Raises:
        MethodRefusedError: The GPU has no such arithmetic.
    """
    if device.type == "cuda":
        import torch

        if missing := _missing(name, torch.cuda.get_device_capability(device)):
            raise MethodRefusedError(missing)


def _missing(name: str, capability: tuple[int, int]) -> str:
    least, generation = _LEAST_CAPABILITY.get(name, ((0, 0), ""))
    return f"{name} needs compute capability {least[0]}.{least[1]} ({generation})" if capability < least else ""


def _emulated(name: str, rates: Mapping[str, float]) -> str | None:
    """Why a format is useless on this device, from the rates of matrix products that the probe measured."""
    rate, full = rates.get(name), rates.get("float32")
    if rate is None or full is None or rate >= _EMULATED_BELOW * full:
        return None
    return (
        f"this device only emulates {name}: its matrix products ran at {rate / 1e9:.3g} GFLOP/s, "
        f"against {full / 1e9:.3g} in float32"
    )
