"""What a few steps of a policy's wrapper did, beside the same steps of a plain loop. Imports no torch."""

from __future__ import annotations

import msgspec

from advisor.measure.fidelity import GradientError

__all__ = ["COMPARED_STEPS", "StepRecord"]

COMPARED_STEPS = 3
"""The first makes the optimizer's state, the second uses it, the third shows whether a difference grows."""


class StepRecord(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one run of the steps recorded; the figures against the plain loop are absent in that loop's own record.

    Attributes:
        losses: Of every step.
        gradient: The first gradient against the plain loop's, before clipping; ``None`` with a reason.
        gradient_reason: Why the gradients were not compared.
        update_errors: After each step: how far the parameters have moved from where they began against how far the
            plain loop's have, as the relative L2 norm of the difference.
        update_reason: Why the updates were not compared.
        other_buffers: Buffers that ended otherwise than the plain loop's, by name.
    """

    losses: tuple[float, ...]
    gradient: GradientError | None = None
    gradient_reason: str = ""
    update_errors: tuple[float, ...] = ()
    update_reason: str = ""
    other_buffers: tuple[str, ...] = ()
