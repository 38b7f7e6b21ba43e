"""The sizes of a workload: every combination of the values in ``SIZES``, and which function takes which argument."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from advisor.errors import WorkloadError

__all__ = [
    "MOST_SIZES",
    "CountedSize",
    "SizeCounts",
    "accepted",
    "check_taken",
    "own_size",
    "size_parts",
    "size_words",
    "sizes_of",
]

MOST_SIZES = 256
"""Each is built once to count its parameters. A bisection of so many takes about eight runs; more values in between
would not find a much larger model."""


class CountedSize(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A size and its number of parameters.

    Attributes:
        parameter_count: Distinct parameters of the model at this size; ``None`` if it could not be built.
        error: Why it could not be built.
    """

    size: dict[str, int | float]
    parameter_count: int | None
    error: str = ""


class SizeCounts(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The result of a COUNT trial.

    Attributes:
        own: The size that ``build_model()`` builds without arguments: the defaults of the arguments in ``SIZES``, or no
            arguments if these are unknown.
        listed: Every combination of the values in ``SIZES``.
    """

    own: CountedSize
    listed: tuple[CountedSize, ...]


def sizes_of(sizes: Mapping[str, Sequence[int | float]]) -> list[dict[str, int | float]]:
    """Every combination of the listed values, the last argument varying fastest.

    Raises:
        WorkloadError: There are more than :data:`MOST_SIZES`.

    Example:
        >>> sizes_of({"layers": (12, 24), "pixels": (64,)})
        [{'layers': 12, 'pixels': 64}, {'layers': 24, 'pixels': 64}]
    """
    values = list(itertools.product(*sizes.values()))
    if len(values) > MOST_SIZES:
        raise WorkloadError(
            f"SIZES may make at most {MOST_SIZES} combinations, but {' x '.join(str(len(v)) for v in sizes.values())} "
            f"are {len(values)}. List fewer values of {' or '.join(sizes)}: steps of a factor of 1.5 are fine enough."
        )
    return [dict(zip(sizes, combination, strict=True)) for combination in values]


def accepted(function: Callable[..., Any], size: Mapping[str, int | float]) -> dict[str, int | float]:
    """The arguments of a size that a function takes: depth may belong to the model, image size to the batch."""
    if not size:
        return {}  # not every callable has a signature that can be read
    parameters = inspect.signature(function).parameters.values()
    if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters):
        return dict(size)
    names = {parameter.name for parameter in parameters if parameter.kind is not inspect.Parameter.POSITIONAL_ONLY}
    return {name: value for name, value in size.items() if name in names}


def check_taken(sizes: Mapping[str, Sequence[int | float]], *functions: Callable[..., Any]) -> None:
    """Check that each argument is one of ``build_model`` or ``make_batch``.

    Raises:
        WorkloadError: Neither takes it.
    """
    for name, values in sizes.items():
        if not any(accepted(function, {name: values[0]}) for function in functions):
            raise WorkloadError(
                f"SIZES must name arguments of build_model or make_batch, but neither takes {name!r}. "
                f"Write for example def build_model({name}={values[0]})."
            )


def own_size(sizes: Mapping[str, Sequence[int | float]], *functions: Callable[..., Any]) -> dict[str, int | float]:
    """The functions' defaults; empty if these are not all numbers."""
    own: dict[str, int | float] = {}
    for name in sizes:
        found = (inspect.signature(function).parameters.get(name) for function in functions)
        defaults = [parameter.default for parameter in found if parameter is not None]
        if not defaults or isinstance(defaults[0], bool) or not isinstance(defaults[0], int | float):
            return {}
        own[name] = defaults[0]
    return own


def size_words(size: Mapping[str, int | float]) -> str:
    """A size as people read it: ``"layers=24, pixels=96"``; ``"own size"`` without arguments."""
    return ", ".join(size_parts(size)) or "own size"


def size_parts(size: Mapping[str, int | float]) -> list[str]:
    """The arguments of a size with every digit, so that different sizes never look alike."""
    return [f"{name}={value}" for name, value in size.items()]
