"""The records of ``benchmarks.method_table``: a line of JSON per model and setting, written as soon as it is known."""

from __future__ import annotations

from pathlib import Path

import msgspec

from benchmarks import json_lines

__all__ = ["Row", "read"]


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One setting of one method on its own, on one model.

    Attributes:
        model: Name of the workload.
        setting: Label of the setting; ``"plain"`` for no method.
        method: Name of the method; empty for plain training.
        batch: Samples per optimizer step, in one micro-batch.
        outcome: How the trial ended, or ``"refused"``.
        reason: Why it was not measured.
        peak_bytes: Peak of the step: reserved bytes on CUDA, live tensor storage on a CPU.
        activation_bytes: Bytes saved for the backward pass at the end of the forward pass.
        step_seconds: Median time of full optimizer steps.
        spread: Half of its 95 % confidence interval, relative.
        peak_ratio: Peak relative to plain training of the same run.
        activation_ratio: Saved activations relative to plain training.
        time_ratio: Step time relative to plain training, measured right before and after it.
        loss_drift: Relative difference of its losses from plain training's; ``None`` if not compared.
        gradient_error: Relative error of the first gradient; ``None`` if not compared.
        notes: Notes of the method.
        device: Name of the device.
        versions: Package -> version.
        date: ISO date.
    """

    model: str
    setting: str
    method: str
    batch: int
    outcome: str
    reason: str = ""
    peak_bytes: int | None = None
    activation_bytes: int | None = None
    step_seconds: float | None = None
    spread: float | None = None
    peak_ratio: float | None = None
    activation_ratio: float | None = None
    time_ratio: float | None = None
    loss_drift: float | None = None
    gradient_error: float | None = None
    notes: tuple[str, ...] = ()
    device: str
    versions: dict[str, str]
    date: str


def read(path: Path) -> list[Row]:
    """The rows of a file in order; none if it does not exist."""
    return json_lines.read(path, msgspec.json.Decoder(Row))
