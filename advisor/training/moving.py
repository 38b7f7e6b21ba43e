"""Moving a model to its device, in a known order and with listeners."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterator
from contextvars import ContextVar

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor

from advisor.training.structure import require_built

__all__ = ["listening_to_moves", "moved_tensors", "on_device", "replace_tensors"]

_LISTENER: ContextVar[Callable[[nn.Module], None] | None] = ContextVar("listener", default=None)


def on_device(model: nn.Module, device: torch.device) -> nn.Module:
    """The model with all parameters and buffers on a device; unmodified if they are already there.

    Fake parameters are replaced: ``Module.to`` swaps their contents instead, which fails if a weak reference to one
    exists, as the fake mode sometimes creates.

    Raises:
        WorkloadError: Some parameters are made when the model is first called.
    """
    require_built(model)
    tensors = (*model.parameters(), *model.buffers())
    devices = {tensor.device for tensor in tensors}
    if any(one.type != device.type or device.index not in (None, one.index) for one in devices):
        if any(isinstance(tensor, FakeTensor) for tensor in tensors):
            replace_tensors(model, lambda tensor: tensor.detach().to(device))
        else:
            model = model.to(device)
    if (listener := _LISTENER.get()) is not None:
        listener(model)
    return model


@contextlib.contextmanager
def listening_to_moves(listener: Callable[[nn.Module], None]) -> Generator[None, None, None]:
    """Call a function with every model that was moved to its device, before anything else changes it."""
    token = _LISTENER.set(listener)
    try:
        yield
    finally:
        _LISTENER.reset(token)


def moved_tensors(model: nn.Module) -> list[torch.Tensor]:
    """Parameters and buffers in the order in which ``Module.to`` moves them."""
    return [tensor for tensors in _in_order(model) for tensor in tensors.values() if tensor is not None]


def replace_tensors(model: nn.Module, changed: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Replace a model's parameters and buffers, in that order, by what ``changed`` returns; shared ones stay shared."""
    known: dict[int, torch.Tensor] = {}

    def new(tensor: torch.Tensor) -> torch.Tensor:
        if id(tensor) not in known:
            made = changed(tensor)
            if isinstance(tensor, nn.Parameter):
                made = nn.Parameter(made, requires_grad=tensor.requires_grad)
            known[id(tensor)] = made
        return known[id(tensor)]

    for tensors in _in_order(model):
        for name, tensor in tensors.items():
            if tensor is not None:
                tensors[name] = new(tensor)


def _in_order(model: nn.Module) -> Iterator[dict[str, torch.Tensor | None]]:
    """The tensors of each module; children come first. Source: ``Module._apply`` in ``torch/nn/modules/module.py``."""
    seen: set[nn.Module] = set()

    def of(module: nn.Module) -> Iterator[dict[str, torch.Tensor | None]]:
        seen.add(module)
        for child in module.children():
            if child not in seen:
                yield from of(child)
        yield module._parameters  # type: ignore[misc]
        yield module._buffers

    return of(model)
