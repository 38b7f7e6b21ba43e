"""Few-level approximations of the derivatives of smooth activation functions.

The derivative is replaced by the piecewise constant function of a given number of pieces that is nearest in mean
square for standard normal inputs. Dynamic programming finds it exactly on a grid; Lloyd's iteration would end in a
local optimum.

Source: Novikov et al. 2022, Few-Bit Backward: Quantized Gradients of Activation Functions for Memory Footprint
Reduction, section 3.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import expit, ndtr

__all__ = ["derivative_levels"]

_Values = npt.NDArray[np.float64]

_REACH = 6.0
"""Half the width of the grid, in standard deviations; what lies beyond has no weight."""

_CELLS = 800


@functools.cache
def derivative_levels(formula: str, bits: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """The best ``2 ** bits`` levels for ``"gelu"``, ``"gelu_tanh"``, ``"quick_gelu"`` or ``"silu"``.

    Returns:
        The inputs at which the level changes, ascending (a boundary belongs to the piece below it), and the derivative
        in each piece, one more than boundaries.
    """
    edges = np.linspace(-_REACH, _REACH, _CELLS + 1)
    middles = (edges[1:] + edges[:-1]) / 2
    weights = np.exp(-(middles**2) / 2)
    values = _DERIVATIVES[formula](middles)
    # Up to each edge: the weight, the weighted sum and the weighted sum of squares.
    weight, first, second = (np.concatenate(([0.0], np.cumsum(weights * values**power))) for power in range(3))
    cuts = _cuts(weight, first, second, 2**bits)
    levels = ((first[high] - first[low]) / (weight[high] - weight[low]) for low, high in itertools.pairwise(cuts))
    return tuple(float(edges[cut]) for cut in cuts[1:-1]), tuple(map(float, levels))


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


def _gelu(x: _Values) -> _Values:
    slope: _Values = ndtr(x) + x * np.exp(-(x**2) / 2) / math.sqrt(2 * math.pi)
    return slope


def _gelu_tanh(x: _Values) -> _Values:
    scale, cubic = math.sqrt(2 / math.pi), 0.044715
    tanh = np.tanh(scale * (x + cubic * x**3))
    slope: _Values = (1 + tanh + x * (1 - tanh**2) * scale * (1 + 3 * cubic * x**2)) / 2
    return slope


def _sigmoid_weighted(x: _Values, steepness: float) -> _Values:
    """The slope of ``x * sigmoid(steepness * x)``."""
    sigmoid = expit(steepness * x)
    slope: _Values = sigmoid * (1 + steepness * x * (1 - sigmoid))
    return slope


_DERIVATIVES: dict[str, Callable[[Any], _Values]] = {
    "gelu": _gelu,
    "gelu_tanh": _gelu_tanh,
    "quick_gelu": functools.partial(_sigmoid_weighted, steepness=1.702),
    "silu": functools.partial(_sigmoid_weighted, steepness=1.0),
}
