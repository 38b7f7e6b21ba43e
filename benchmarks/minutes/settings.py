"""The reference set: what a person who knows PyTorch would try, one or two lines of code each."""

from __future__ import annotations

import msgspec

__all__ = ["ADVICE", "FIRST_EXECUTABLE_BATCH", "REFERENCE_SET", "UNTOUCHED", "Setting"]

FIRST_EXECUTABLE_BATCH = 128
"""The default first batch of ``find_executable_batch_size``, which only goes down from there."""


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """One hand-written way to train.

    Attributes:
        name: Its name in the rows.
        factor: Samples per step relative to the user's batch.
        fused: The user's optimizer with ``fused=True``.
        channels_last: Model and images in channels-last memory format.
        compiled: ``torch.compile`` of the model.
        bf16: Forward pass under ``torch.autocast`` in bfloat16, if the device supports it natively.
        executable: Use the batch that accelerate's ``find_executable_batch_size`` finds, whatever the factor.
    """

    name: str
    factor: int = 1
    fused: bool = False
    channels_last: bool = False
    compiled: bool = False
    bf16: bool = False
    executable: bool = False


UNTOUCHED = Setting(name="untouched")
"""The user's file, unmodified."""

ADVICE = "advice"
"""The name of the training with the generated wrapper in the rows."""

REFERENCE_SET = (
    Setting(name="fused at 2x the batch", factor=2, fused=True),
    Setting(name="fused at 4x the batch", factor=4, fused=True),
    Setting(name="channels last", factor=2, fused=True, channels_last=True),
    Setting(name="compile", factor=2, fused=True, compiled=True),
    Setting(name="bf16", factor=2, fused=True, bf16=True),
    Setting(name="accelerate's batch", executable=True),
)
