"""Read what people type for a goal: numbers of devices, a throughput to keep."""

from __future__ import annotations

from collections.abc import Iterable

from advisor.errors import OptionError
from advisor.goal import Floor
from advisor.text.printable import quoted, shown
from advisor.text.ranges import digits

__all__ = ["parse_floor", "parse_gpu_counts"]


def parse_gpu_counts(value: int | str | Iterable[int]) -> tuple[int, ...]:
    """Numbers of devices such as ``2``, ``(1, 2)`` or ``"1,2,4"``, ascending and each once.

    Raises:
        OptionError: Not whole numbers from 1.

    Example:
        >>> parse_gpu_counts("4,1,2")
        (1, 2, 4)
    """
    rule = "--gpus must be whole numbers from 1, such as 2 or 1,2,4"
    parts = value.split(",") if isinstance(value, str) else value if isinstance(value, Iterable) else [value]
    counts = {0 if isinstance(part, bool) else digits(shown(part).strip()) or 0 for part in parts}
    if not counts or 0 in counts:
        raise OptionError(f"{rule}, but got {quoted(value)}.")
    return tuple(sorted(counts))


def parse_floor(value: str | float) -> Floor:
    """A throughput to keep: samples per second such as ``20``, or ``"0.5x"`` of the baseline's.

    Raises:
        OptionError: Neither.

    Example:
        >>> parse_floor("0.5x").share_of_baseline
        0.5
    """
    text = value.strip() if isinstance(value, str) else shown(value)
    share = text.removesuffix("x")
    try:
        number = float(share)
    except ValueError:
        number = 0.0
    if isinstance(value, bool) or not 1e-12 <= number <= 1e12:
        raise OptionError(
            "--min-throughput must be samples per second above zero such as 20, or a share such as 0.5x, "
            f"but got {quoted(text)}."
        )
    return Floor(samples_per_second=number) if share == text else Floor(share_of_baseline=number)
