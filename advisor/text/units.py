"""Read and format bytes, durations and rates.

One GiB is 2**30 bytes and one GB is 10**9 bytes; what we print is always binary (GiB, MiB), and says so.
"""

from __future__ import annotations

import decimal
import enum
import math
import re

from advisor.errors import OptionError
from advisor.text.printable import quoted
from advisor.text.ranges import MOST

__all__ = [
    "MOST_BYTES",
    "Rounding",
    "format_bytes",
    "format_count",
    "format_duration",
    "format_joules",
    "format_many",
    "format_percent",
    "format_rate",
    "format_seconds",
    "format_spread",
    "format_times",
    "format_times_spread",
    "format_usd",
    "parse_bytes",
    "parse_duration",
]

MOST_BYTES = 2**60
"""More than any device has, and small enough for every file and message."""

_BYTE_UNITS = {"": 1, "b": 1}
for _power, _prefix in enumerate("kmgt", 1):
    _BYTE_UNITS |= {f"{_prefix}b": 1000**_power, f"{_prefix}ib": 1024**_power}
_BYTES = re.compile(r"\s*(\d+(?:\.\d+)?|\.\d+)\s*([a-z]*)\s*", re.IGNORECASE)
_DURATION_UNITS = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3}
_DURATION = re.compile("".join(rf"(?:(?P<{unit}>\d+(?:\.\d+)?)\s*{unit}\s*)?" for unit in _DURATION_UNITS))
"""Each unit at most once, from the largest."""


class Rounding(enum.Enum):
    """The direction in which to round a shown value: a suggested limit must not be too tight."""

    NEAREST = "nearest"
    UP = decimal.ROUND_CEILING
    DOWN = decimal.ROUND_FLOOR


def parse_bytes(text: str, *, option: str = "--memory-limit") -> int:
    """Read an amount of memory such as ``"8GiB"``, ``"8GB"``, ``"512MiB"`` or a plain number of bytes.

    Raises:
        OptionError: It is not a positive amount with a known unit.

    Example:
        >>> parse_bytes("8GiB"), parse_bytes("8GB"), parse_bytes("1.5 MiB")
        (8589934592, 8000000000, 1572864)
    """
    match = _BYTES.fullmatch(text)
    factor = _BYTE_UNITS.get(match[2].lower()) if match else None
    if match is None or factor is None:
        rule = "a number with a unit (GiB, MiB, GB, MB)"
    elif 1 <= (amount := float(match[1]) * factor) <= MOST_BYTES:
        return math.floor(amount)
    else:
        rule = "above zero" if amount < 1 else f"at most {MOST_BYTES} bytes"
    raise OptionError(f"{option} must be {rule}, but got {quoted(text)}. Write for example 8GiB.")


def parse_duration(text: str, *, option: str = "--time-limit") -> float:
    """Read a duration such as ``"5m"``, ``"90s"``, ``"1h30m"`` or ``"200ms"``, in seconds like a plain number.

    Raises:
        OptionError: It is not a positive duration.

    Example:
        >>> parse_duration("5m"), parse_duration("1h30m"), parse_duration("90"), parse_duration("200ms")
        (300.0, 5400.0, 90.0, 0.2)
    """
    compact = text.strip().lower()
    if re.fullmatch(r"\d+(?:\.\d+)?", compact):
        compact += "s"
    match = _DURATION.fullmatch(compact)
    numbers = match.groupdict("0") if match else {}
    seconds = sum(float(number) * _DURATION_UNITS[unit] for unit, number in numbers.items())
    if not match or not compact:
        rule = "hours, minutes and seconds"
    elif 0 < seconds <= MOST:
        return seconds
    else:
        rule = f"at most {MOST} seconds" if seconds else "longer than zero"
    raise OptionError(f"{option} must be {rule}, but got {quoted(text)}. Write for example 90s, 5m, 1h30m or 200ms.")


def format_bytes(count: int | float, rounding: Rounding = Rounding.NEAREST) -> str:
    """Three significant digits in binary units.

    Example:
        >>> format_bytes(8 * 2**30), format_bytes(13_400_000), format_bytes(900)
        ('8.00 GiB', '12.8 MiB', '900 B')
        >>> format_bytes(8 * 2**30 + 1, Rounding.UP)
        '8.01 GiB'
    """
    sign = "-" if count < 0 else ""
    amount = float(abs(count))
    if amount < 1024:
        return f"{sign}{amount:.0f} B"
    for unit in ("KiB", "MiB", "GiB", "TiB"):
        amount /= 1024
        if amount < 999.5 or unit == "TiB":  # from there on it would be printed as 1000
            break
    return f"{sign}{_three_digits(amount, rounding)} {unit}"


def format_rate(per_second: float, rounding: Rounding = Rounding.NEAREST) -> str:
    """A rate without its unit, three significant digits, never in powers of ten.

    Example:
        >>> format_rate(1234.5), format_rate(12.345), format_rate(0.0123)
        ('1,234', '12.3', '0.0123')
        >>> format_rate(19.96, Rounding.DOWN), format_rate(19.91, Rounding.UP)
        ('19.9', '20.0')
    """
    if per_second >= 999.5:
        return f"{_rounded(per_second, 0, rounding):,.0f}"
    if per_second < 0.1 and per_second > 0:
        decimals = 2 - math.floor(math.log10(per_second))
        return f"{_rounded(per_second, decimals, rounding):.{decimals}f}"
    return _three_digits(per_second, rounding)


def format_seconds(seconds: float, rounding: Rounding = Rounding.NEAREST) -> str:
    """A time: three significant digits in s, ms, µs or ns; a sample's share of a step may be that short.

    Example:
        >>> format_seconds(1.5), format_seconds(0.0123), format_seconds(125.0), format_seconds(1.2e-9)
        ('1.50 s', '12.3 ms', '125 s', '1.20 ns')
    """
    units = ((1, "s"), (1e3, "ms"), (1e6, "µs"))
    factor, unit = next((each for each in units if seconds * each[0] >= 0.9995), (1e9, "ns") if seconds else units[-1])
    return f"{_three_digits(seconds * factor, rounding)} {unit}"


def format_usd(amount: float, rounding: Rounding = Rounding.NEAREST) -> str:
    """US dollars, three significant digits, never in powers of ten.

    Example:
        >>> format_usd(1234.5), format_usd(12.345), format_usd(0.0123)
        ('$1,234', '$12.3', '$0.0123')
    """
    return f"${format_rate(amount, rounding)}"


def format_joules(joules: float) -> str:
    """An amount of energy: three significant digits in J, kJ, MJ or GJ.

    Example:
        >>> format_joules(310.4), format_joules(12_340), format_joules(3.6e6)
        ('310 J', '12.3 kJ', '3.60 MJ')
    """
    for unit in ("J", "kJ", "MJ"):
        if joules < 999.5:
            return f"{format_rate(joules)} {unit}"
        joules /= 1000
    return f"{format_rate(joules)} GJ"


def format_duration(seconds: float, rounding: Rounding = Rounding.NEAREST) -> str:
    """A duration in whole seconds.

    Example:
        >>> format_duration(42), format_duration(125), format_duration(5400)
        ('42s', '2m05s', '1h30m')
        >>> format_duration(124.1, Rounding.UP), format_duration(5401, Rounding.UP)
        ('2m05s', '1h31m')
    """
    whole = max(0, int(_rounded(seconds, 0, rounding)))
    if whole >= 3600 and rounding is Rounding.UP:
        whole = -(-whole // 60) * 60  # hours are shown without seconds
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    return f"{whole // 3600}h{whole % 3600 // 60:02d}m"


def format_percent(share: float) -> str:
    """A share as a percentage with its significant digits.

    Example:
        >>> format_percent(0.314), format_percent(0.0123), format_percent(0.00004), format_percent(0.0)
        ('31%', '1.2%', '0.004%', '0%')
        >>> format_percent(1482.5)
        '148,250%'
    """
    percent = share * 100
    size = abs(percent)
    if not size:
        return "0%"
    if size < 0.0005:
        return "<0.001%"
    decimals = 0 if size >= 9.95 else 1 if size >= 0.1 else 3
    return f"{percent:,.{decimals}f}%"


def format_spread(share: float) -> str:
    """Half the width of an interval, relative to its median.

    Example:
        >>> format_spread(0.021)
        '±2.1%'
    """
    return f"±{format_percent(share)}"


def format_times(value: float) -> str:
    """A speedup in words.

    Example:
        >>> format_times(1.666), format_times(1083.1), format_times(0.0034)
        ('1.67 times', '1,083 times', '<0.01 times')
    """
    if 0 < value < 0.005:
        return "<0.01 times"
    return f"{value:.2f} times" if value < 100 else f"{value:,.0f} times"


_UNEVEN = 1.7
"""Ratio of the two sides of an interval from which one half-width does not tell both: more than logarithms explain."""
_FINE = 0.03


def format_times_spread(low: float, high: float, value: float) -> str:
    """The interval of a speedup: its half-width, or both ends if it is too wide, or reaches further to one side.

    Example:
        >>> format_times_spread(1.8, 2.2, 2.0)
        '±10%'
        >>> format_times_spread(2.1, 40.0, 9.2)
        'between 2.10 and 40.00'
        >>> format_times_spread(1.1, 2.4, 2.2)
        'between 1.10 and 2.40'
    """
    share = (high - low) / (2 * value)
    sides = sorted((1 - low / value, high / value - 1))
    is_even = sides[1] < _UNEVEN * sides[0] + _FINE
    # As in format_times: "at least 1.27 times" stands beside it, and "between 1.3 and 8" would not say the same.
    ends = [format_times(end).removesuffix(" times") for end in (low, high)]
    return format_spread(share) if share <= 0.5 and is_even else f"between {ends[0]} and {ends[1]}"


def format_count(count: int, noun: str, plural: str | None = None) -> str:
    """A number with its noun.

    Example:
        >>> format_count(1, "policy", "policies"), format_count(2300, "combination")
        ('1 policy', '2,300 combinations')
    """
    word = noun if count == 1 else (plural or f"{noun}s")
    return f"{count:,} {word}"


def format_many(count: int, noun: str, *, at_least: bool = False) -> str:
    """A number that may be very large, with its noun.

    Args:
        count: The number.
        noun: In the singular.
        at_least: Whether the number is only a lower bound.

    Example:
        >>> format_many(2300, "combination"), format_many(1_265_424_838_144, "combination")
        ('2,300 combinations', 'about 1.3 trillion combinations')
        >>> format_many(1_265_424_838_144, "combination", at_least=True), format_many(2 * 4**35, "combination")
        ('more than 1.2 trillion combinations', 'about 2.4e21 combinations')
    """
    if count < 10**6:
        return f"more than {max(0, count - 1):,} {noun}s" if at_least else format_count(count, noun)
    size = len(str(count)) - 2
    digits = count // 10**size if at_least else round(count / 10**size)
    rounded = digits * 10**size
    words = f"{rounded:.2g}".replace("e+", "e")
    for power, name in ((12, "trillion"), (9, "billion"), (6, "million")):
        if 10**power <= rounded < 10**15:
            words = f"{rounded / 10**power:.3g} {name}"
            break
    return f"{'more than' if at_least else 'about'} {words} {noun}s"


def _three_digits(amount: float, rounding: Rounding = Rounding.NEAREST) -> str:
    decimals = 0 if amount >= 99.95 else 1 if amount >= 9.995 else 2
    return f"{_rounded(amount, decimals, rounding):.{decimals}f}"


def _rounded(amount: float, decimals: int, rounding: Rounding) -> float:
    if rounding is Rounding.NEAREST:
        return round(amount, decimals)
    # By its decimal digits: in binary even 0.002 x 1000 may be more than 2.
    return float(decimal.Decimal(repr(amount)).quantize(decimal.Decimal(1).scaleb(-decimals), rounding=rounding.value))
