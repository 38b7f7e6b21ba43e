"""A context in which modules have the names that they had before methods wrapped blocks."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterator
from typing import Any

from torch import nn

from advisor.training.contexts import temporarily
from advisor.training.processes.distribution import plain_names

__all__ = ["plain_module_names"]


@contextlib.contextmanager
def plain_module_names(model: nn.Module) -> Generator[None, None, None]:
    """Have modules and parameters named plainly, by the model and by modules in it, as others look them up."""
    wrapped = [name for name, _ in model.named_modules() if name not in plain_names({name: None})]
    above = {name[:end] for name in wrapped for end, one in enumerate(name) if one == "."} | (
        {""} if wrapped else set()
    )
    with contextlib.ExitStack() as stack:
        for name in above:
            module = model.get_submodule(name)
            stack.enter_context(temporarily(module, "named_modules", _named(module.named_modules)))
        yield


def _named(usual: Callable[..., Iterator[tuple[str, nn.Module]]]) -> Callable[..., Iterator[tuple[str, nn.Module]]]:
    def named_modules(*arguments: Any, **keywords: Any) -> Iterator[tuple[str, nn.Module]]:
        for name, module in usual(*arguments, **keywords):
            yield next(iter(plain_names({name: None}))), module

    return named_modules
