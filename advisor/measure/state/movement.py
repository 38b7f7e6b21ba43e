"""How far steps move the parameters of a model: kept step by step in a file, and held against another training's.

Everything is computed on the host in float64, which holds the values of every shorter format as they are. Of a very
large model every n-th element is kept.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from advisor.files import write_whole
from advisor.measure.fidelity import NOT_FINITE

__all__ = ["Movement"]

_MOST_ELEMENTS = 2**22
"""Elements that are kept of each step at most: 32 MiB."""

_ALIKE = 1e-3
"""Relative difference up to which a buffer counts as equal where not the same bits are asked for."""

_Values = dict[str, npt.NDArray[np.float64]]


class Movement:
    """The parameters before the first step and after each, and the buffers after the last.

    Args:
        parameters: Names of the parameters that are trained, as a plain model has them.
        buffers: Names of its buffers.
        stride: Keep every n-th element.
    """

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
        total = sum(parameter.numel() for parameter in trained.values())
        buffers = [name for name, _ in model.named_buffers()]
        return cls(trained, buffers, max(1, math.ceil(total / _MOST_ELEMENTS)))

    @classmethod
    def like(cls, path: Path) -> Movement:
        """Of what the plain model has whose movement was saved in a file."""
        stored = torch.load(path, weights_only=True)
        return cls(stored["steps"][0], stored["buffers"], stored["stride"])

    def look(self, state: Mapping[str, Any]) -> None:
        """Keep the values as they are now.

        Args:
            state: Name -> tensor, such as a plain model's ``state_dict()``.
        """
        self._steps.append(self._those(self._names, state))
        self._buffers = self._those(self._buffer_names, state)

    def save(self, path: Path) -> None:
        """Write it: the old file or a whole new one is there at every moment."""
        path.parent.mkdir(parents=True, exist_ok=True)
        content = {
            "stride": self._stride,
            "steps": [_tensors(step) for step in self._steps],
            "buffers": _tensors(self._buffers),
        }
        write_whole(path, functools.partial(torch.save, content))

    def compare(self, path: Path) -> tuple[tuple[float, ...], str]:
        """Hold it against a file that :meth:`save` wrote.

        Returns:
            After each step the norm of the difference of the two movements, relative to that of the file's; or why
            there is none.
        """
        steps: list[dict[str, torch.Tensor]] = torch.load(path, weights_only=True)["steps"]
        plain, own = [_arrays(step) for step in steps], self._steps
        odd = [name for name, values in plain[0].items() if name not in own[0] or own[0][name].shape != values.shape]
        if odd:
            return (), f"its state does not have the parameters of the plain model ({odd[0]})"
        pairs = zip(_movements(own), _movements(plain), strict=True)
        return tuple(_relative(ours, theirs) for ours, theirs in pairs), ""

    def other_buffers(self, path: Path, *, exact: bool) -> tuple[str, ...]:
        """Names of the buffers that ended otherwise than those of a file.

        Args:
            path: What :meth:`save` wrote.
            exact: Whether the same bits are asked for.
        """
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
        return {name: self._values(state[name]) for name in names if isinstance(state.get(name), torch.Tensor)}

    def _values(self, tensor: torch.Tensor) -> npt.NDArray[np.float64]:
        plain = tensor.detach()
        if plain.is_complex():
            plain = torch.view_as_real(plain.resolve_conj())
        # A copy in numpy's memory: on a CPU a meter may be counting torch's.
        return np.array(plain.flatten()[:: self._stride].double().cpu().numpy())


def _tensors(values: _Values) -> dict[str, torch.Tensor]:
    return {name: torch.from_numpy(value) for name, value in values.items()}


def _arrays(values: dict[str, torch.Tensor]) -> _Values:
    return {name: value.numpy() for name, value in values.items()}


def _movements(steps: list[_Values]) -> list[npt.NDArray[np.float64]]:
    first = steps[0]
    return [np.concatenate([step[name] - first[name] for name in sorted(first)]) for step in steps[1:]]


def _relative(own: npt.NDArray[np.float64], plain: npt.NDArray[np.float64]) -> float:
    size = float(np.linalg.norm(plain))
    difference = float(np.linalg.norm(own - plain))
    if not math.isfinite(size) or not math.isfinite(difference):
        return NOT_FINITE
    if size == 0:
        return 0.0 if difference == 0 else NOT_FINITE
    return min(difference / size, NOT_FINITE)
