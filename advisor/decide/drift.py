"""How far a combination's first losses are from plain training's, and how far they may be.

Memory and speed alone would recommend combinations that destroy the training (Rodriguez 2024: one ends at a loss of
15.2 instead of 4.05). A few steps with the same seed and batches prove no convergence, but they catch what is broken.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from advisor.goal import Fidelity
from advisor.measure.fidelity import NOT_FINITE

__all__ = [
    "CHANCES",
    "NOT_FINITE",
    "drift_tolerance",
    "loss_drift",
    "tolerance_beside_chance",
    "within_tolerance",
]

_TOLERANCES = {
    # Bit-equal gradients; a GPU's own atomic sums may still differ between two runs of the very same step.
    Fidelity.EXACT: 5e-4,
    # Float sums in another order, amplified by optimizer steps.
    Fidelity.ROUNDING: 5e-3,
    # bf16 has 8 bits of mantissa: 0.4 % per rounding, which averages out over a loss.
    Fidelity.PRECISION: 0.02,
    Fidelity.LOSSY: 0.05,
    # The longer comparison judges by where the loss ends. The first losses alone cannot show that.
    Fidelity.MODEL: 0.05,
}
"""One value for the first losses and for the loss curve of the longer comparison.

If no time is left for the comparison, the first losses decide alone, and must not refuse what it would allow.
"""

CHANCES = 2.0
"""A drift must exceed chance's by this factor, since a single pair of runs says little about its spread."""

_SMALL_SHARE = 0.01
"""Losses below this share of the largest are compared with that share: a loss near zero has no relative error."""


def loss_drift(trace: Sequence[float], reference: Sequence[float]) -> float | None:
    """The largest relative difference of first losses from plain training's, with the same seed, batches, micro-batch.

    Returns:
        A share (0.02 is 2 %); :data:`NOT_FINITE` if a loss of ``trace`` is not finite; ``None`` without a common
        step or without a finite reference.

    Example:
        >>> loss_drift([4.0, 3.75], [4.0, 3.0, 2.0])
        0.25
    """
    pairs = list(zip(trace, reference, strict=False))
    if not pairs or not all(math.isfinite(expected) for _, expected in pairs):
        return None
    if not all(math.isfinite(loss) for loss, _ in pairs):
        return NOT_FINITE
    largest = max(abs(expected) for _, expected in pairs)
    if largest == 0:
        return 0.0 if all(loss == 0 for loss, _ in pairs) else NOT_FINITE
    drift = max(abs(loss - expected) / max(abs(expected), _SMALL_SHARE * largest) for loss, expected in pairs)
    return min(drift, NOT_FINITE)


def drift_tolerance(fidelity: Fidelity) -> float:
    """The largest drift with which a combination of this class may win."""
    return _TOLERANCES[fidelity]


def within_tolerance(drift: float | None, fidelity: Fidelity, chance: float = 0.0) -> bool:
    """Whether a drift lets a candidate win, given how far two runs of plain training drift apart.

    An unmeasured one does, and the report says so.
    """
    return drift is None or drift <= tolerance_beside_chance(fidelity, chance)


def tolerance_beside_chance(fidelity: Fidelity, chance: float) -> float:
    """The largest drift of first losses that is worth a longer comparison.

    A drift no larger than that between two runs of plain training proves nothing, except for a candidate that promises
    the same bits.
    """
    excused = 0.0 if fidelity is Fidelity.EXACT else CHANCES * chance
    return max(drift_tolerance(fidelity), excused)
