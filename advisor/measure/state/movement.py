"""How far steps move the parameters of a model: kept step by step in a file, and held against another training's.

Everything is computed on the host in float64, which holds the values of every shorter format. Of a very large model
every n-th element is kept.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from advisor.measure.fidelity import NOT_FINITE
from advisor.measure.state.first_gradient import every_nth, save_whole, stride_of

__all__ = ["Movement"]

_MOST_ELEMENTS = 2**22
"""Elements that are kept of each step at most: 32 MiB."""

_ALIKE = 1e-3
"""Relative difference up to which a buffer counts as equal where not the same bits are asked for."""

_Values = dict[str, npt.NDArray[np.float64]]


class Movement:
    """The trained parameters before the first step and after each, and the buffers after the last, all by name."""

    def __init__(self, parameters: Iterable[str], buffers: Iterable[str], stride: int = 1) -> None:
        self._names = list(parameters)
        self._buffer_names = list(buffers)
        self._stride = stride
        self._steps: list[_Values] = []
        self._buffers: _Values = {}

    @classmethod
    def of(cls, model: torch.nn.Module) -> Movement:
        """Of a plain model."""
        trained = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
        buffers = [name for name, _ in model.named_buffers()]
        return cls(trained, buffers, stride_of(trained.values(), _MOST_ELEMENTS))

    @classmethod
    def like(cls, path: Path) -> Movement:
        """Of what the plain model has whose movement was saved in a file."""
        stored = torch.load(path, weights_only=True)
        return cls(stored["steps"][0], stored["buffers"], stored["stride"])

    def look(self, state: Mapping[str, Any]) -> None:
        """Keep the values as they are now, of tensors by name, such as a plain model's ``state_dict()``."""
        self._steps.append(self._those(self._names, state))
        self._buffers = self._those(self._buffer_names, state)

    def save(self, path: Path) -> None:
        """Write it."""
        steps = [_tensors(step) for step in self._steps]
        save_whole(path, {"stride": self._stride, "steps": steps, "buffers": _tensors(self._buffers)})

    def compare(self, path: Path) -> tuple[tuple[float, ...], str]:
        """Compare with a file that :meth:`save` wrote.

        Returns:
            After each step the norm of the difference of the two movements, relative to that of the file's; or why not.
        """
        steps: list[dict[str, torch.Tensor]] = torch.load(path, weights_only=True)["steps"]
        plain, own = [_arrays(step) for step in steps], self._steps
        odd = [name for name, values in plain[0].items() if name not in own[0] or own[0][name].shape != values.shape]
        if odd:
            return (), f"its state does not have the parameters of the plain model ({odd[0]})"
        pairs = zip(_movements(own), _movements(plain), strict=True)
        return tuple(_relative(ours, theirs) for ours, theirs in pairs), ""

    def other_buffers(self, path: Path, *, exact: bool) -> tuple[str, ...]:
        """Names of the buffers that ended otherwise than those of a file, to the bit if ``exact``."""
        plain = _arrays(torch.load(path, weights_only=True)["buffers"])
        tolerance = 0.0 if exact else _ALIKE
        return tuple(
            name
            for name, value in plain.items()
            if name not in self._buffers
            or self._buffers[name].shape != value.shape
            or not np.allclose(self._buffers[name], value, rtol=tolerance, atol=tolerance * 1e-3, equal_nan=True)
        )

    def _those(self, names: Iterable[str], state: Mapping[str, Any]) -> _Values:
        tensors = {name: state[name] for name in names if isinstance(state.get(name), torch.Tensor)}
        return {name: every_nth(one, self._stride).astype(np.float64) for name, one in tensors.items()}


def _tensors(values: _Values) -> dict[str, torch.Tensor]:
    return {name: torch.from_numpy(value) for name, value in values.items()}


def _arrays(values: dict[str, torch.Tensor]) -> _Values:
    return {name: value.numpy() for name, value in values.items()}


def _movements(steps: list[_Values]) -> list[npt.NDArray[np.float64]]:
    first = steps[0]
    return [np.concatenate([step[name] - first[name] for name in sorted(first)]) for step in steps[1:]]


def _relative(own: npt.NDArray[np.float64], plain: npt.NDArray[np.float64]) -> float:
    size, difference = float(np.linalg.norm(plain)), float(np.linalg.norm(own - plain))
    if size == difference == 0:
        return 0.0
    return min(difference / size, NOT_FINITE) if math.isfinite(difference) and 0 < size < math.inf else NOT_FINITE
