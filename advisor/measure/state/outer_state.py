"""State that a model keeps outside of its modules: in attributes of its classes, and in globals of the user's files."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from advisor.workload.reads import is_users

__all__ = ["Place", "outer_places", "outer_values"]

_MOST_ELEMENTS = 2**16
"""Of a tensor that is copied to see whether it changes; of a larger one, such as a data set, the writes are counted."""
_MOST_NUMBERS = 64
"""Of a list that is looked into."""

Place = tuple[str, Any]
"""Words before a name, and the class or module that has it."""


def outer_places(modules: Iterable[torch.nn.Module], functions: Iterable[Callable[..., Any]] = ()) -> list[Place]:
    """The user's classes among a model's modules, and their own functions, such as the loss, with the files of both."""
    kinds = {kind for module in modules for kind in type(module).__mro__ if _is_of_user(kind)}
    own = [one for one in functions if _is_of_user(one)]
    files = {thing.__module__ for thing in (*kinds, *own)}
    places: list[Place] = [(f"{one.__qualname__}.", one) for one in sorted(kinds, key=lambda kind: kind.__qualname__)]
    places += [(f"{one.__name__}.", one) for one in own if getattr(one, "__dict__", None)]
    return places + [("the global ", sys.modules[name]) for name in sorted(files)]


def outer_values(places: Iterable[Place]) -> dict[str, Any]:
    """What is kept there: numbers, small tensors, the length of collections and the sum of a few numbers."""
    values: dict[str, Any] = {}
    for words, holder in places:
        for name, value in _kept(holder):
            place = f"{words}{name}"
            if isinstance(value, torch.Tensor):
                small = value.numel() <= _MOST_ELEMENTS
                values[place if small else f"writes to {place}"] = value.detach().clone() if small else value._version
            elif isinstance(value, int | float):
                values[place] = value
            else:
                values[f"len({place})"] = len(value)
                numbers = value.values() if isinstance(value, dict) else value
                if 0 < len(value) <= _MOST_NUMBERS and all(isinstance(one, int | float) for one in numbers):
                    values[f"sum({place})"] = sum(numbers)
    return values


def _kept(holder: Any) -> Iterator[tuple[str, Any]]:
    for name, value in list(vars(holder).items()):
        if name.startswith("__") or isinstance(value, bool):
            continue
        if isinstance(value, torch.Tensor):
            if not value.requires_grad and value.layout == torch.strided and value.device.type != "meta":
                yield name, value
        elif isinstance(value, int | float) or type(value) in (list, dict, set):
            yield name, value


def _is_of_user(thing: Any) -> bool:
    module = sys.modules.get(getattr(thing, "__module__", None) or "")
    file = getattr(module, "__file__", None)
    return isinstance(file, str) and is_users(file)
