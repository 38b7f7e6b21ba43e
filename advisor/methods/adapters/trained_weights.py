"""What methods that train only a part of the weights share in their declarations."""

from __future__ import annotations

__all__ = ["WHICH_WEIGHTS_TRAIN"]

WHICH_WEIGHTS_TRAIN = "which of the weights are trained"
"""What such a method decides: two of them would each freeze what the other trains."""
