"""Few-level approximations of the derivatives of smooth activation functions.

The derivative of an activation is replaced by the piecewise constant function with a given number of pieces that is
nearest to it in mean square when inputs are drawn from the standard normal distribution. Dynamic programming over a
grid finds it exactly (on that grid); Lloyd's iteration would end in a local optimum.

Source: Novikov et al. 2022, Few-Bit Backward: Quantized Gradients of Activation Functions for Memory Footprint
Reduction, section 3.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

__all__ = ["DerivativeLevels", "derivative_levels"]

_Values = npt.NDArray[np.float64]

_REACH = 6.0
"""Half the width of the grid, in standard deviations; nothing of weight lies beyond it."""

_CELLS = 800


class DerivativeLevels(msgspec.Struct, frozen=True):
    """A piecewise constant approximation of a derivative.

    Attributes:
        boundaries: Inputs at which the level changes, ascending; a boundary belongs to the piece below it.
        levels: The derivative in each piece, one more than boundaries.
        relative_error: Root of the mean square of what it is wrong by, for standard normal inputs, relative to that of
            the derivative itself: what an incoming gradient loses here.
    """

    boundaries: tuple[float, ...]
    levels: tuple[float, ...]
    relative_error: float


@functools.cache
def derivative_levels(formula: str, bits: int) -> DerivativeLevels:
    """The best ``2 ** bits`` levels for a formula.

    Args:
        formula: ``"gelu"``, ``"gelu_tanh"``, ``"quick_gelu"`` or ``"silu"``.
        bits: Number of bits that encode the piece of an input.
    """
    edges = np.linspace(-_REACH, _REACH, _CELLS + 1)
    middles = (edges[1:] + edges[:-1]) / 2
    weights = np.exp(-(middles**2) / 2)
    values = _DERIVATIVES[formula](middles)
    # Up to each edge: the weight, the weighted sum and the weighted sum of squares.
    weight, first, second = (
        np.concatenate(([0.0], np.cumsum(weights * power))) for power in (np.ones_like(values), values, values**2)
    )
    cuts = _cuts(weight, first, second, 2**bits)
    levels = [(first[high] - first[low]) / (weight[high] - weight[low]) for low, high in itertools.pairwise(cuts)]
    explained = sum(
        level**2 * (weight[high] - weight[low]) for level, low, high in zip(levels, cuts, cuts[1:], strict=False)
    )
    return DerivativeLevels(
        boundaries=tuple(float(edges[cut]) for cut in cuts[1:-1]),
        levels=tuple(map(float, levels)),
        relative_error=float(math.sqrt(max(0.0, 1 - explained / second[-1]))),
    )


def _cuts(weight: _Values, first: _Values, second: _Values, pieces: int) -> list[int]:
    """Edges between which one level each leaves the smallest sum of squares, the ends of the grid included."""
    count = len(weight)
    mass = weight[None, :] - weight[:, None]
    total = first[None, :] - first[:, None]
    forward = np.arange(count)[None, :] > np.arange(count)[:, None]
    # What one level leaves between edge i (row) and edge j (column).
    cost = np.where(forward, second[None, :] - second[:, None] - total**2 / np.where(forward, mass, 1.0), np.inf)
    best = cost[0]
    came_from = []
    for _ in range(pieces - 1):
        through = best[:, None] + cost
        came_from.append(through.argmin(0))
        best = through.min(0)
    cuts = [count - 1]
    for previous in reversed(came_from):
        cuts.append(int(previous[cuts[-1]]))
    return [0, *reversed(cuts)]


def _normal_cdf(x: _Values) -> _Values:
    return np.array([(1 + math.erf(value / math.sqrt(2))) / 2 for value in x])


def _gelu(x: _Values) -> _Values:
    return _normal_cdf(x) + x * np.exp(-(x**2) / 2) / math.sqrt(2 * math.pi)


def _gelu_tanh(x: _Values) -> _Values:
    scale, cubic = math.sqrt(2 / math.pi), 0.044715
    tanh = np.tanh(scale * (x + cubic * x**3))
    slope: _Values = scale * (1 + 3 * cubic * x**2)
    derivative: _Values = (1 + tanh + x * (1 - tanh**2) * slope) / 2
    return derivative


def _sigmoid_weighted(x: _Values, steepness: float) -> _Values:
    """Of ``x * sigmoid(steepness * x)``."""
    sigmoid = np.reciprocal(1 + np.exp(-steepness * x))
    slope: _Values = sigmoid * (1 + steepness * x * (1 - sigmoid))
    return slope


_DERIVATIVES: dict[str, Callable[[Any], _Values]] = {
    "gelu": _gelu,
    "gelu_tanh": _gelu_tanh,
    "quick_gelu": functools.partial(_sigmoid_weighted, steepness=1.702),
    "silu": functools.partial(_sigmoid_weighted, steepness=1.0),
}
