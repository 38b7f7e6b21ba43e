"""How the blocks of a model are called: with one hidden state, and further arguments that all blocks share."""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from advisor.errors import MethodRefusedError
from advisor.training.structure import unwrapped

__all__ = ["NO_CHAIN", "BlockCall", "as_returned", "remembered", "returned"]

NO_CHAIN = "blocks must take one tensor and return one, each called on what the one before it returned"
"""The rule broken by blocks that cannot be run as one."""

_PLAIN = (bool, int, float, str, torch.device)


@dataclass(eq=False)
class BlockCall:
    """One call of a block, without its hidden state, which is not kept alive.

    Attributes:
        place: Where the hidden state belongs: ``None`` for the first positional argument, else its keyword.
        args: The other positional arguments.
        kwargs: The other keyword arguments.
        values: How many values blocks return as a tuple, of which the first is their hidden state and the others are
            ``None``; 0 if they return it alone. Known once :meth:`run` ran one.
    """

    place: str | None
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    values: int = 0

    @classmethod
    def read(
        cls, block: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[torch.Tensor, BlockCall] | None:
        """The hidden state (the first argument, by position or keyword) and the rest; ``None`` if it is no tensor."""
        if args:
            return (args[0], cls(None, args[1:], dict(kwargs))) if isinstance(args[0], torch.Tensor) else None
        place = _first_parameter(block)
        if place is None or not isinstance(kwargs.get(place), torch.Tensor):
            return None
        return kwargs[place], cls(place, (), {name: value for name, value in kwargs.items() if name != place})

    def run(self, block: Callable[..., Any], hidden: torch.Tensor) -> torch.Tensor:
        """Call a block on a hidden state, with this call's other arguments.

        Raises:
            MethodRefusedError: The block returns anything but one tensor.
        """
        output = self.output(block, hidden)
        tensor = returned(output)
        if tensor is None:
            raise MethodRefusedError(f"{NO_CHAIN}, but {type(block).__name__} returns {_described(output)}")
        self.values = len(output) if isinstance(output, tuple) else 0
        return tensor

    def output(self, block: Callable[..., Any], hidden: torch.Tensor) -> Any:
        """What a block returns for a hidden state, with this call's other arguments."""
        if self.place is None:
            return block(hidden, *self.args, **self.kwargs)
        return block(*self.args, **{self.place: hidden}, **self.kwargs)

    def rest(self) -> tuple[Any, ...]:
        """Everything but the hidden state, for comparison with another call."""
        return (self.place, self.args, self.kwargs)

    def tensors(self) -> list[torch.Tensor]:
        """The tensors among the further arguments; those that require a gradient must get one."""
        leaves = torch.utils._pytree.tree_leaves((self.args, self.kwargs))
        return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]


def returned(output: Any) -> torch.Tensor | None:
    """The tensor that a block returns, alone or as a tuple whose other values are ``None``."""
    if isinstance(output, tuple) and output and all(each is None for each in output[1:]):
        output = output[0]
    return output if isinstance(output, torch.Tensor) else None


def as_returned(hidden: torch.Tensor, values: int) -> Any:
    """A hidden state in the form in which blocks return it (:attr:`BlockCall.values`)."""
    return (hidden, *(None for _ in range(values - 1))) if values else hidden


def remembered(value: Any) -> Callable[[Any], bool]:
    """Tells whether a later value is the same: identical objects, or equal plain values, also inside containers.

    A tensor that was written to since is not the same. Keeps no tensor alive.
    """
    if isinstance(value, _PLAIN) or value is None:
        return lambda other: type(other) is type(value) and bool(other == value)
    if isinstance(value, tuple | list):
        members = [remembered(member) for member in value]
        return lambda other: (
            isinstance(other, tuple | list)
            and len(other) == len(members)
            and all(same(member) for same, member in zip(members, other, strict=True))
        )
    if isinstance(value, dict):
        named = {name: remembered(member) for name, member in value.items()}
        return lambda other: (
            isinstance(other, dict)
            and other.keys() == named.keys()
            and all(same(other[name]) for name, same in named.items())
        )
    try:
        reference = weakref.ref(value)
    except TypeError:  # A few built-in types take no weak references; none of them holds a tensor.
        return lambda other: other is value
    version = _version(value)
    return lambda other: other is not None and other is reference() and _version(other) == version


def _version(value: Any) -> int | None:
    """How often a tensor was written to; ``None`` if that is not counted."""
    return None if not isinstance(value, torch.Tensor) or value.is_inference() else value._version


def _first_parameter(block: nn.Module) -> str | None:
    parameters = inspect.signature(unwrapped(block).forward).parameters.values()
    named = (one.name for one in parameters if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY))
    return next(named, None)


def _described(output: Any) -> str:
    return f"{len(output)} values" if isinstance(output, tuple | list) else type(output).__name__
