"""Formatting and parsing of bytes, durations and rates, as the command and the reports use them.

The functions live in :mod:`advisor.problem.units`, because error messages of lower rooms need them too.
"""

from __future__ import annotations

from advisor.problem.units import (
    format_bytes,
    format_count,
    format_duration,
    format_percent,
    format_rate,
    format_seconds,
    format_spread,
    parse_bytes,
    parse_duration,
)

__all__ = [
    "format_bytes",
    "format_count",
    "format_duration",
    "format_percent",
    "format_rate",
    "format_seconds",
    "format_spread",
    "parse_bytes",
    "parse_duration",
]
