"""Passes that only show what a stage needs leave no trace in what its modules keep."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterator
from typing import Any

import torch
from torch import nn

from advisor.training.contents import alike, contents, copied, kept_in, refill

__all__ = ["undisturbed"]

_MOST_FROZEN = 2**20
"""Elements of a parameter that is not trained, but that a pass may move; those of a large frozen model are not."""


@contextlib.contextmanager
def undisturbed(model: nn.Module, device: torch.device) -> Generator[None, None, None]:
    """Context after which buffers, counters in attributes and containers, and random numbers are as before."""
    slots = [(module, dict(module._buffers), _counters(module)) for module in model.modules()]
    tensors = {id(tensor): (tensor, tensor.detach().clone()) for tensor in _tensors(model)}
    held = {id(container): container for module in model.modules() for _, container in kept_in(module)}
    containers = [(container, copied(contents(container))) for container in held.values()]
    indices = [device] if device.type == "cuda" else []
    try:
        with torch.random.fork_rng(devices=indices):
            yield
    finally:
        for module, buffers, counters in slots:
            _put_back(module, buffers, counters)
        with torch.no_grad():
            for tensor, before in tensors.values():
                if tensor.layout != torch.strided or not torch.equal(tensor, before):
                    tensor.copy_(before)
        for container, earlier in containers:
            if not alike(contents(container), earlier):
                refill(container, earlier)


def _tensors(model: nn.Module) -> Iterator[torch.Tensor]:
    """What a pass may write to: buffers, tensors in plain attributes, and small parameters that are not trained."""
    yield from model.buffers()
    for module in model.modules():
        yield from (value for value in _counters(module).values() if isinstance(value, torch.Tensor))
    for parameter in model.parameters():
        if type(parameter) is nn.Parameter and not parameter.requires_grad and parameter.numel() <= _MOST_FROZEN:
            yield parameter


def _counters(module: nn.Module) -> dict[str, Any]:
    """What a module may count in besides buffers; nothing yet is something to count in, too."""
    return {
        name: value
        for name, value in vars(module).items()
        if value is None
        or isinstance(value, int | float)
        or (isinstance(value, torch.Tensor) and not value.requires_grad and value.layout == torch.strided)
    }


def _put_back(module: nn.Module, buffers: dict[str, Any], counters: dict[str, Any]) -> None:
    module._buffers.clear()
    module._buffers.update(buffers)
    for name in _counters(module).keys() - counters.keys():
        delattr(module, name)  # It was the class's, or there was none.
    for name, value in counters.items():
        if name not in vars(module) or vars(module)[name] is not value:
            object.__setattr__(module, name, value)
