"""Everything in a model that a forward pass may change besides gradients: buffers, tensors, numbers and collections."""

from __future__ import annotations

import collections
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import torch

from advisor.measure.state.outer_state import outer_places, outer_values
from advisor.training.contents import contents, copied, kept_in, numbers_in, refill

__all__ = ["ModelState", "state_changes", "state_values"]

_Key = TypeVar("_Key")

_COUNTS = (int, float, torch.Tensor)
"""What a module may count in, besides buffers."""

_COLLECTIONS = (list, dict, set, collections.deque)

_OWN = ("_parameters", "_buffers", "_modules")
"""Of every module, and put back otherwise."""

_MOST_FROZEN = 2**20
"""Elements of a frozen parameter that is watched: those of a large model that is tuned by adapters are not."""

_MOST_COPIED = 2**20
"""Elements of a tensor that is copied to be compared."""

_SUMMED = 1024
"""Elements of a larger one that are summed instead: few enough to see a small change of some of them."""

_OF_EVERY_MODULE = frozenset(vars(torch.nn.Module()))

_LEAST_CHANGE = 1e-6
"""Of a tensor's length: less is the order of sums."""


class ModelState:
    """The state of a model at one moment, to compare with and to go back to.

    It includes what a pass may change in the files of the user's ``functions``, and the learning rates in ``groups``
    of the optimizer, which a scheduler moves.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        functions: Sequence[Callable[..., Any]] = (),
        groups: Sequence[dict[str, Any]] = (),
    ) -> None:
        self._model = model
        self._groups = groups
        self._options = [
            {name: value for name, value in group.items() if isinstance(value, int | float)} for group in groups
        ]
        self._buffers = {name: buffer.detach().clone() for name, buffer in model.named_buffers()}
        self._all = {
            (name, one): value for name, module in model.named_modules() for one, value in vars(module).items()
        }
        self._others = {
            key: value if isinstance(value, torch.Tensor) and value.grad_fn is not None else _copy(value)
            for key, value in self._all.items()
            if isinstance(value, _COUNTS)
        }
        self._frozen = {
            f"{name}.{own}": parameter.detach().clone()
            for name, module in model.named_modules()
            for own, parameter in frozen_parameters(module)
        }
        owners = [*model.named_modules(), *((one.__name__, one) for one in functions if hasattr(one, "__name__"))]
        held = [container for _, owner in owners for _, container in kept_in(owner)]
        self._contents = [(one, copied(contents(one))) for one in {id(one): one for one in held}.values()]
        self._kept = {f"{name}.{own}": _copy(value) for name, owner in owners for own, value in numbers_in(owner)}
        self._kept |= {
            f"len({f'{name}.{own}'.lstrip('.')})": len(container)
            for name, owner in owners
            for own, container in kept_in(owner)
            if isinstance(container, _COLLECTIONS)
        }
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
            for name, module in self._model.named_modules():
                for own, parameter in frozen_parameters(module):
                    kept = self._frozen.get(f"{name}.{own}")
                    if kept is not None and kept.shape == parameter.shape:
                        parameter.copy_(kept)
        for group, options in zip(self._groups, self._options, strict=True):
            group.update(options)
        for container, held in self._contents:
            refill(container, copied(held))
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
        names = _differing(self._buffers, other._buffers)
        names += [".".join(filter(None, key)) for key in _differing(self._others, other._others)]
        names += [name.lstrip(".") for name in _differing(self._kept, other._kept)]
        for own, others in zip(self._options, other._options, strict=True):
            names += [f"the optimizer's {name}" for name in _differing(own, others)]
        # Nothing but an update writes to parameters: an average of others may move by less than sums differ.
        names += [
            name.lstrip(".")
            for name, value in self._frozen.items()
            if name in other._frozen and not torch.equal(value, other._frozen[name])
        ]
        return names + _differing(self._outer, other._outer)


def state_changes(
    before: Mapping[str, Any], after: Mapping[str, Any], names: Sequence[str] | None = None
) -> dict[str, float]:
    """By how much what :func:`state_values` held has changed: the norm of a tensor's change, the difference of numbers.

    ``names`` are included, changed or not; without them, whatever has changed.
    """
    changes = {}
    for name, value in after.items():
        if names is not None and name not in names:
            continue
        if name not in before and f"len({name.rpartition('.')[0]})" in after:
            continue  # of what a collection has got since, its length tells
        change = _change(before.get(name), value)
        if change or names is not None:
            changes[name] = change
    return changes


def state_values(modules: Mapping[str, torch.nn.Module]) -> dict[str, Any]:
    """What modules keep, by their names in the user's model: copies of tensors, numbers, the length of collections.

    Of a large tensor it is sums of some elements each: training may leave no memory for a copy.
    """
    values: dict[str, Any] = {}
    for name, module in modules.items():
        for attribute, value in (*module._buffers.items(), *vars(module).items()):
            place = f"{name}.{attribute}" if name else attribute
            if isinstance(value, torch.Tensor):
                if not value.requires_grad and value.layout == torch.strided:
                    values[place] = _copy_or_sums(value.detach())
            elif attribute not in _OF_EVERY_MODULE and not isinstance(value, bool):
                if isinstance(value, int | float):
                    values[place] = value
                elif isinstance(value, _COLLECTIONS):
                    values[f"len({place})"] = len(value)
        for attribute, value in (*frozen_parameters(module), *numbers_in(module)):
            values[f"{name}.{attribute}" if name else attribute] = _copy(value)
    return values


def frozen_parameters(module: torch.nn.Module) -> list[tuple[str, torch.Tensor]]:
    """Small parameters that no optimizer moves, but perhaps a pass, as an average of others is."""
    return [
        (name, parameter)
        for name, parameter in module.named_parameters(recurse=False)
        if not parameter.requires_grad and parameter.layout == torch.strided and parameter.numel() <= _MOST_FROZEN
    ]


def _copy(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, torch.Tensor) else value


def _copy_or_sums(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.numel() <= _MOST_COPIED:
        return tensor.clone()
    dtype = torch.complex128 if tensor.is_complex() else torch.float64
    if not tensor.is_contiguous():
        longest = max(range(tensor.dim()), key=tensor.size)
        return torch.stack([part.sum(dim=longest, dtype=dtype) for part in torch.split(tensor, _SUMMED, longest)])
    flat = tensor.view(-1)
    end = flat.numel() // _SUMMED * _SUMMED
    # In parts, because each is copied to be summed in more bits.
    sums = [part.view(-1, _SUMMED).sum(dim=1, dtype=dtype) for part in torch.split(flat[:end], _MOST_COPIED)]
    return torch.cat([*sums, flat[end:].sum(dtype=dtype).reshape(1)])


def _differing(own: Mapping[_Key, Any], others: Mapping[_Key, Any]) -> list[_Key]:
    return [key for key, value in own.items() if not _alike(value, others.get(key))]


def _change(before: Any, after: Any) -> float:
    if isinstance(after, torch.Tensor):
        if not isinstance(before, torch.Tensor) or before.shape != after.shape:
            return 0.0 if before is None else float(after.numel())  # made by the pass, or made anew for another batch
        first, then = _reals(before), _reals(after.detach())
        moved = then - first
        length = float(torch.linalg.vector_norm(moved))
        if not math.isfinite(length) or length <= _LEAST_CHANGE * float(torch.linalg.vector_norm(first)):
            return 0.0
        return float(moved) if moved.dim() == 0 else length
    change = float(after) - (float(before) if isinstance(before, int | float) else 0.0)
    return change if math.isfinite(change) else 0.0


def _reals(tensor: torch.Tensor) -> torch.Tensor:
    return (torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor).double()


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
