"""Validate numbers from the user or a launcher, within bounds that are safe for later arithmetic."""

from __future__ import annotations

import operator
import re
from collections.abc import Mapping
from typing import Any

from advisor.errors import OptionError
from advisor.text.printable import quoted

__all__ = ["MOST", "check_above_zero", "digits", "whole", "whole_variable"]

MOST = 10**9
"""Limit for anything that is counted: policies, samples of a batch, seconds."""

_LARGEST = 1e12
_SMALLEST = 1e-12
"""Products and quotients of a few of these stay finite."""

_DIGITS = re.compile(r"[0-9]{1,18}", re.ASCII)


def digits(text: str) -> int | None:
    """The number in a text of digits; ``None`` for any other text, or if it exceeds a machine word."""
    return int(text) if _DIGITS.fullmatch(text) else None


def whole(value: Any, name: str, *, least: int = 1, most: int = MOST, fix: str = "") -> int:
    """Check a whole number.

    Args:
        value: The given value; a library's integer type is accepted.
        name: Of the option, for the message.
        least: The smallest valid number.
        most: The largest.
        fix: What to do about it, as a sentence.

    Raises:
        OptionError: It is none, or outside its bounds.
    """
    try:
        number = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = None
    if number is None:
        rule, got = "a whole number", quoted(value)
    elif least <= number <= most:
        return number
    else:
        rule, got = f"at least {least}" if number < least else f"at most {most}", quoted(number)
    raise OptionError(f"{name} must be {rule}, but got {got}.{f' {fix}' if fix else ''}")


def check_above_zero(value: Any, name: str) -> float:
    """Check a number such as a price, and return it.

    Raises:
        OptionError: It is none, not above zero, or not finite.
    """
    try:
        number = float("nan") if isinstance(value, str | bytes | bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = float("nan")
    if not _SMALLEST <= number <= _LARGEST:  # NaN is not
        got = f"{number:g}" if number == number else quoted(value)
        raise OptionError(
            f"{name} must be a finite number above zero, but got {got}. Give one from {_SMALLEST:g} to {_LARGEST:g}."
        )
    return number


def whole_variable(environment: Mapping[str, str], name: str, *, default: int, least: int) -> int:
    """The whole number in a variable of a launcher, or the default where it is not set, or empty.

    Raises:
        OptionError: It is no whole number from ``least``.
    """
    text = environment.get(name, "").strip()
    number = digits(text) if text else default
    if number is None or number < least:
        raise OptionError(
            f"The environment variable {name} must be a whole number from {least}, as torchrun sets it, but got "
            f"{quoted(text)}. Unset it, or start with torchrun."
        )
    return number
