"""Values of options as a request has them, from what the user types or passes."""

from __future__ import annotations

import enum
import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from advisor.errors import OptionError
from advisor.goal import Fidelity, GoalKind, Price
from advisor.goal_text import parse_floor, parse_gpu_counts
from advisor.options import Option
from advisor.policy.baseline import baseline_of
from advisor.search.propose.proposal import SamplerName
from advisor.text.paths import path_of
from advisor.text.printable import quoted
from advisor.text.ranges import MOST, check_above_zero, whole
from advisor.text.units import MOST_BYTES, parse_bytes, parse_duration

__all__ = ["text_of", "value_of"]

_ENUMS: dict[str, type[enum.Enum]] = {"goal": GoalKind, "fidelity": Fidelity, "sampler": SamplerName}


def value_of(value: Any, option: Option) -> Any:
    """The value that was given for an option, as the request has it."""
    kind, flag = option.kind, option.flag
    if option.choices:
        return _choice(value, option)
    if kind == "count":
        return whole(value, flag, most=option.most or MOST)
    if kind == "price":
        return Price(usd_per_hour=check_above_zero(value, flag), source=flag, date="as given")
    return _READERS[kind](value, flag)


def _choice(value: object, option: Option) -> object:
    try:
        return _ENUMS[option.keyword](value)
    except (KeyError, ValueError):
        valid = ", ".join(repr(choice) for choice in option.choices)
        raise OptionError(f"{option.flag} must be one of {valid}, but got {quoted(value)}.") from None


def _names(methods: str | Iterable[str], option: str) -> tuple[str, ...]:
    if not isinstance(methods, Iterable):
        raise OptionError(f"{option} must be names of methods, but got {quoted(methods)}.")
    texts = [text_of(one, option) for one in (methods.split(",") if isinstance(methods, str) else methods)]
    names = tuple(dict.fromkeys(text.strip() for text in texts if text.strip()))
    if not names:
        raise OptionError(
            f"{option} must name at least one method, but got {quoted(methods)}. `momadvise methods` lists them."
        )
    return names


def text_of(value: object, option: str) -> str:
    """A text, or the path of something that has one."""
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    if not isinstance(value, str):
        raise OptionError(f"{option} must be a text, but got {quoted(value)} of type {type(value).__name__}.")
    return value


def _bytes(limit: str | int, option: str) -> int:
    return parse_bytes(limit, option=option) if isinstance(limit, str) else whole(limit, option, most=MOST_BYTES)


def _duration(value: str | float, option: str) -> float:
    return parse_duration(value, option=option) if isinstance(value, str) else check_above_zero(value, option)


_READERS: dict[str, Callable[[Any, str], Any]] = {
    "text": text_of,
    "path": lambda value, option: path_of(value, option, OptionError),
    "policy": lambda value, option: baseline_of(value if isinstance(value, Mapping) else text_of(value, option)),
    "names": _names,
    "number": check_above_zero,
    "bytes": _bytes,
    "duration": _duration,
    "devices": lambda value, _: parse_gpu_counts(value),
    "throughput": lambda value, _: parse_floor(value),
}
