"""What blocks return besides hidden states, where a block is in another stage.

Only hidden states travel. Many blocks return more (attention weights, a cache, ``None``), which mostly nobody reads. So
in its place the model gets something of which every use is an error that says so.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from advisor.errors import MethodRefusedError

__all__ = ["Form", "Unread", "as_form", "form_of", "hidden_of"]

Form = tuple[bool, ...] | None
"""How a block returns hidden states: alone, or in a tuple, for each of whose further values it says if it is any."""


class Unread(torch.Tensor):
    """In the place of a value of a block of another stage; a tensor of which every use is an error."""

    number: int

    @classmethod
    def of(cls, number: int) -> Unread:
        """What block ``number`` would have returned."""
        with _disable_current_modes():
            made = torch.Tensor._make_subclass(cls, torch.empty(0))
        made.number = number
        unread: Unread = made
        return unread

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Refuse.

        Raises:
            MethodRefusedError: Always.
        """
        leaves = torch.utils._pytree.tree_leaves((args, kwargs))
        number = next((leaf.number for leaf in leaves if isinstance(leaf, cls)), 0)
        raise MethodRefusedError(
            "between stages of a pipeline only hidden states travel, but the model also uses another value that block "
            f"{number} returns, which is in another stage ({getattr(func, '__name__', func)}); use fsdp or tensor "
            "parallelism for this model, or let its blocks return hidden states only"
        )


def hidden_of(output: Any) -> torch.Tensor | None:
    """The hidden states among what a block returns: a tensor, or the first value of a tuple."""
    if type(output) is tuple and output:
        output = output[0]
    return output if isinstance(output, torch.Tensor) else None


def form_of(output: Any) -> Form:
    """The form of what a block returned."""
    return tuple(value is not None for value in output[1:]) if type(output) is tuple else None


def as_form(hidden: torch.Tensor, form: Form, number: int) -> Any:
    """Hidden states in the form in which block ``number`` returns them, which is not here."""
    if form is None:
        return hidden
    return (hidden, *(Unread.of(number) if is_any else None for is_any in form))
