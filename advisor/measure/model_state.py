"""Everything in a model that a forward pass may change besides gradients: kept, put back, compared."""

from __future__ import annotations

import math
from typing import Any

import torch

__all__ = ["ModelState"]

_COUNTS = (int, float, torch.Tensor)
"""What a module may count in, besides buffers."""

_OWN = ("_parameters", "_buffers", "_modules")
"""Of every module, and put back otherwise."""


class ModelState:
    """Everything in a model that a forward pass may change besides gradients: buffers, tensors and numbers."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._model = model
        self._buffers = {name: buffer.detach().clone() for name, buffer in model.named_buffers()}
        self._others: dict[tuple[str, str], Any] = {}
        self._all = {
            (name, one): value for name, module in model.named_modules() for one, value in vars(module).items()
        }
        for name, module in model.named_modules():
            for attribute, value in vars(module).items():
                if isinstance(value, torch.Tensor) and value.grad_fn is None:
                    self._others[name, attribute] = value.detach().clone()
                elif isinstance(value, _COUNTS):
                    self._others[name, attribute] = value

    def restore(self) -> None:
        """Put everything back."""
        with torch.no_grad():
            for name, buffer in self._model.named_buffers():
                if name in self._buffers and buffer.shape == self._buffers[name].shape:
                    buffer.copy_(self._buffers[name])
        modules = dict(self._model.named_modules())
        for name, module in modules.items():
            for attribute in [one for one in vars(module) if (name, one) not in self._all]:
                delattr(module, attribute)  # it was the class's until a pass assigned it
        for (name, attribute), value in self._all.items():
            if vars(modules[name]).get(attribute) is not value and not attribute.startswith(_OWN):
                object.__setattr__(modules[name], attribute, value)  # None, say, until a pass made something
        for (name, attribute), value in self._others.items():
            module = modules[name]
            object.__setattr__(module, attribute, value.clone() if isinstance(value, torch.Tensor) else value)

    def difference(self, other: ModelState) -> list[str]:
        """What is not as in another state, by name."""
        names = [name for name, buffer in self._buffers.items() if not _alike(buffer, other._buffers.get(name))]
        names += [
            ".".join(filter(None, key))
            for key, value in self._others.items()
            if not _alike(value, other._others.get(key))
        ]
        return names


def _alike(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        if one.shape != other.shape:
            return False
        if not one.is_floating_point():
            return bool(torch.equal(one, other))
        return bool(torch.allclose(one.float(), other.float(), rtol=1e-3, atol=1e-6, equal_nan=True))
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=1e-3, abs_tol=1e-6) or (math.isnan(one) and math.isnan(other))
    return bool(one == other)
