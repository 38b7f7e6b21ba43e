"""Whole numbers, rounded up."""

from __future__ import annotations

__all__ = ["ceil_div", "round_up"]


def ceil_div(number: int, divisor: int) -> int:
    """The quotient, rounded up."""
    return -(-number // divisor)


def round_up(number: int, multiple: int) -> int:
    """The least multiple that is not below a number."""
    return ceil_div(number, multiple) * multiple
