"""The reference set: what a person who knows PyTorch would try, one line of code or two each."""

from __future__ import annotations

import msgspec

__all__ = ["ADVICE", "FIRST_EXECUTABLE_BATCH", "REFERENCE_SET", "UNTOUCHED", "Setting"]

FIRST_EXECUTABLE_BATCH = 128
"""Where ``find_executable_batch_size`` begins unless it is told otherwise; it only goes down from there."""


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """One way to train, written by hand.

    Attributes:
        name: What rows call it.
        factor: How many times the user's batch a step has.
        fused: The user's optimizer with ``fused=True``.
        channels_last: Model and images with their channels last in memory.
        compiled: ``torch.compile`` of the model.
        bf16: Forward pass under ``torch.autocast`` in bfloat16, where the device multiplies that natively.
        executable: At the batch that accelerate's ``find_executable_batch_size`` arrives at, whatever the factor.
    """

    name: str
    factor: int = 1
    fused: bool = False
    channels_last: bool = False
    compiled: bool = False
    bf16: bool = False
    executable: bool = False


UNTOUCHED = Setting(name="untouched")
"""The user's file as it is."""

ADVICE = "advice"
"""What rows call the training of the emitted wrapper."""

REFERENCE_SET = (
    Setting(name="fused at 2x the batch", factor=2, fused=True),
    Setting(name="fused at 4x the batch", factor=4, fused=True),
    Setting(name="channels last", factor=2, fused=True, channels_last=True),
    Setting(name="compile", factor=2, fused=True, compiled=True),
    Setting(name="bf16", factor=2, fused=True, bf16=True),
    Setting(name="accelerate's batch", executable=True),
)
