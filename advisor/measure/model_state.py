"""Everything in a model that a forward pass may change besides gradients: buffers, tensors, numbers and collections."""

from __future__ import annotations

import collections
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from advisor.measure.outer_state import outer_places, outer_values

__all__ = ["ModelState", "state_changes", "state_values"]

_COUNTS = (int, float, torch.Tensor)
"""What a module may count in, besides buffers."""

_COLLECTIONS = (list, dict, set, collections.deque)

_OWN = ("_parameters", "_buffers", "_modules")
"""Of every module, and put back otherwise."""

_OF_EVERY_MODULE = frozenset(vars(torch.nn.Module()))

_LEAST_CHANGE = 1e-6
"""Of a tensor's length: less is the order of sums."""


class ModelState:
    """The state of a model at one moment, to compare with and to go back to.

    Args:
        model: The model.
        functions: The user's own, in whose files there may be more that a pass changes.
    """

    def __init__(self, model: torch.nn.Module, functions: Sequence[Callable[..., Any]] = ()) -> None:
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
        self._places = outer_places(model.modules(), functions)
        self._outer = outer_values(self._places)
        self._outer_numbers = [
            (holder, name, value)
            for _, holder in self._places
            for name, value in vars(holder).items()
            if isinstance(value, int | float) and not name.startswith("__")
        ]

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
        for holder, attribute, value in self._outer_numbers:
            if vars(holder).get(attribute) is not value:
                setattr(holder, attribute, value)

    def difference(self, other: ModelState) -> list[str]:
        """What is not as in another state, by name."""
        names = [name for name, buffer in self._buffers.items() if not _alike(buffer, other._buffers.get(name))]
        names += [
            ".".join(filter(None, key))
            for key, value in self._others.items()
            if not _alike(value, other._others.get(key))
        ]
        return names + [name for name, value in self._outer.items() if not _alike(value, other._outer.get(name))]


def state_changes(
    before: Mapping[str, Any], after: Mapping[str, Any], names: Sequence[str] | None = None
) -> dict[str, float]:
    """By how much what is kept has changed: numbers, the length of collections, the norm of a tensor's change.

    Args:
        before: What :func:`state_values` held.
        after: What it holds now.
        names: What to tell, changed or not; ``None`` for whatever has changed.
    """
    changes = {}
    for name, value in after.items():
        if names is not None and name not in names:
            continue
        change = _change(before.get(name), value)
        if change or names is not None:
            changes[name] = change
    return changes


def state_values(modules: Mapping[str, torch.nn.Module]) -> dict[str, Any]:
    """What modules keep: a copy of tensors, numbers, the length of collections.

    Args:
        modules: By their names in the user's model, whatever has been wrapped around them since.
    """
    values: dict[str, Any] = {}
    for name, module in modules.items():
        for attribute, value in (*module._buffers.items(), *vars(module).items()):
            place = f"{name}.{attribute}" if name else attribute
            if isinstance(value, torch.Tensor):
                if not value.requires_grad and value.layout == torch.strided:
                    values[place] = value.detach().clone()
            elif attribute in _OF_EVERY_MODULE or isinstance(value, bool):
                continue
            elif isinstance(value, int | float):
                values[place] = value
            elif isinstance(value, _COLLECTIONS):
                values[f"len({place})"] = len(value)
    return values


def _change(before: Any, after: Any) -> float:
    if isinstance(after, torch.Tensor):
        if not isinstance(before, torch.Tensor) or before.shape != after.shape:
            return 0.0 if before is None else float(after.numel())  # made by the pass, or made anew for another batch
        moved = after.detach().double() - before.double()
        length = float(torch.linalg.vector_norm(moved))
        if not math.isfinite(length) or length <= _LEAST_CHANGE * float(torch.linalg.vector_norm(before.double())):
            return 0.0
        return float(moved) if moved.dim() == 0 else length
    change = float(after) - (float(before) if isinstance(before, int | float) else 0.0)
    return change if math.isfinite(change) else 0.0


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
