"""What methods that recompute activations share in their declarations."""

from __future__ import annotations

__all__ = ["WHAT_BLOCKS_KEEP"]

WHAT_BLOCKS_KEEP = "what the blocks keep for the backward pass"
"""What such a method decides: no two of them can decide it for the same blocks."""
