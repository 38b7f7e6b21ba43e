"""Contexts of a forward pass, combined into one, that of an evaluation, and one that sets an attribute."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any

from torch import nn

__all__ = ["entered", "evaluation_mode", "temporarily"]

_Context = contextlib.AbstractContextManager[Any]
_NOTHING = contextlib.nullcontext()


def entered(contexts: Sequence[Callable[[], _Context]]) -> _Context:
    """All contexts as one; no stack for none or one, which would dominate the overhead of a small step."""
    if not contexts:
        return _NOTHING
    return contexts[0]() if len(contexts) == 1 else _stacked(contexts)


@contextlib.contextmanager
def _stacked(contexts: Sequence[Callable[[], _Context]]) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for context in contexts:
            stack.enter_context(context())
        yield


@contextlib.contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Set evaluation mode; afterwards restore the mode of every module."""
    was_training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in was_training:
            module.training = True


@contextlib.contextmanager
def temporarily(owner: Any, name: str, value: Any) -> Generator[None, None, None]:
    """Set an attribute of the object itself; what it had before returns at the end."""
    inherited, before = name not in vars(owner), getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        if inherited:
            delattr(owner, name)
        else:
            setattr(owner, name, before)
