"""torchao's Adam with a quantized state, made to take part in a training like any other optimizer of torch."""

from __future__ import annotations

import contextlib
import types
from collections.abc import Mapping
from typing import Any

import torch
from torch._guards import detect_fake_mode
from torch._subclasses.fake_tensor import unset_fake_temporarily

from advisor.errors import MethodRefusedError
from advisor.methods.applying import load
from advisor.methods.optimizers.adam import group_without
from advisor.methods.optimizers.traits import TORCHAO
from advisor.training.compiler import why_not_compiled

__all__ = ["build", "kernels_are_compiled", "refuse_if_not_compiled"]

_CLASSES = {"8bit": "8bit", "4bit": "4bit", "fp8": "Fp8"}
_TAKEN = frozenset({"amsgrad", "betas", "eps", "lr", "weight_decay"})


def kernels_are_compiled() -> bool:
    """Whether steps go through ``torch.compile``: not for fake tensors, for which there is no kernel."""
    return detect_fake_mode() is None


def refuse_if_not_compiled(device: torch.device) -> None:
    """Raise :class:`MethodRefusedError` where there is no compiler for the kernels."""
    if kernels_are_compiled() and (reason := why_not_compiled(device)):
        raise MethodRefusedError(reason)


def build(plain: torch.optim.Optimizer, state: str, *, decays_apart: bool) -> torch.optim.Optimizer:
    """Torchao's optimizer for a state ``"8bit"``, ``"4bit"`` or ``"fp8"``, over the groups and options of torch's.

    Raises:
        MethodRefusedError: torchao cannot be imported, or has no such optimizer.
    """
    made = load(f"torchao.optim:Adam{'W' if decays_apart else ''}{_CLASSES[state]}")
    optimizer: torch.optim.Optimizer = made([_translate(group) for group in plain.param_groups])
    with unset_fake_temporarily():  # The tables are computed once in a process, from values.
        block = TORCHAO[state].block
        for signed in (True, False):
            kind = type(made._subclass_zeros(torch.empty(block), signed, block))
    _let_copy(kind)
    # On the object and not in a subclass: torch runs the hooks around ``step`` once for each class that has its own.
    optimizer.step = types.MethodType(_step, optimizer)  # type: ignore[method-assign]
    return optimizer


def _step(self: torch.optim.Optimizer, closure: Any = None) -> Any:
    """A step that also takes learning rates that are numbers: torchao's takes only tensors."""
    for group in self.param_groups:
        group["lr"] = _as_tensor(group["lr"])  # The user may have assigned it, or loaded it from another optimizer.
    eager = contextlib.nullcontext() if kernels_are_compiled() else torch.compiler.set_stance("force_eager")
    with eager:
        return type(self).step(self, closure)


def _let_copy(kind: Any) -> None:
    """Teach a class of quantized tensors to be cloned, as ``copy.deepcopy`` of an optimizer's state needs."""

    def clone(function: Any, types: Any, arguments: Any, keywords: Any) -> Any:
        names, context = arguments[0].__tensor_flatten__()
        parts = {name: getattr(arguments[0], name).clone() for name in names}
        return kind.__tensor_unflatten__(parts, context)

    kind.implements(torch.ops.aten.clone.default)(clone)


def _translate(group: Mapping[str, Any]) -> dict[str, Any]:
    return group_without(group, taken=_TAKEN) | {"lr": _as_tensor(group["lr"])}


def _as_tensor(rate: Any) -> torch.Tensor:
    """A learning rate; one that is a tensor stays: its owner may write to it."""
    return rate if isinstance(rate, torch.Tensor) else torch.tensor(float(rate), dtype=torch.float32)
