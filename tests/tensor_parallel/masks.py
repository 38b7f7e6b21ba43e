"""Whether masks of dropout know anything of each other."""

from __future__ import annotations

import torch


def independent(mask: torch.Tensor, other: torch.Tensor, share: float = 0.3) -> None:
    """Both drop their share, and they agree as often as two that know nothing of each other; within five deviations."""
    count = mask.numel()
    assert count > 1000
    agree = share**2 + (1 - share) ** 2
    for found, expected in ((mask, share), (other, share), (mask == other, agree)):
        deviation = (expected * (1 - expected) / count) ** 0.5
        assert abs(float(found.double().mean()) - expected) < 5 * deviation
