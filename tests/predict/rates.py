"""Rates of devices that do not exist: round numbers, so that times can be worked out by hand."""

from __future__ import annotations

from typing import Any

from advisor.hardware.rates import Bandwidth, DeviceRates
from advisor.phase import Phase
from advisor.predict.prediction import Affine
from advisor.predict.step_work import Kind, StepWork, Work

BATCHES = (2, 4)


def rates(**changes: Any) -> DeviceRates:
    known: dict[str, Any] = {
        "matmul_flops_per_second": {"float32": 100.0, "bfloat16": 400.0},
        "convolution_flops_per_second": {"float32": 50.0},
        "bandwidth": Bandwidth.constant(10.0),
        "fresh_bandwidth": Bandwidth.constant(5.0),
        "to_device_bytes_per_second": 2.0,
        "to_host_bytes_per_second": 1.0,
        "launch_seconds": 0.5,
        "measured": True,
    }
    return DeviceRates(**(known | changes))


def group(phase: Phase = Phase.FORWARD, kind: Kind = Kind.MATRIX, **amounts: Any) -> tuple[Work, Work]:
    """A group whose amounts are numbers, for those that do not grow, or pairs of a constant and a slope."""
    fields = {"number_format": amounts.pop("number_format", "float32"), "operator": "an operator"}
    known = dict.fromkeys(("launches", "flops", "read_bytes", "written_bytes", "fresh_bytes"), 0.0) | amounts
    lines = {name: Affine(*value) if isinstance(value, tuple) else Affine(value, 0.0) for name, value in known.items()}
    small, large = (
        Work(phase=phase, kind=kind, **fields, **{name: line.at(batch) for name, line in lines.items()})
        for batch in BATCHES
    )
    return small, large


def work_of(*groups: tuple[Work, Work]) -> StepWork:
    return StepWork(groups=groups, batches=BATCHES)
