"""What an optimizer with torch's fused step needs to behave as the one of the user does without it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

__all__ = [
    "as_fused",
    "has_gaps",
    "hooks_of_the_user",
    "is_ours",
    "keep_as_plain",
    "keep_parts_as_plain",
    "lay_out",
]

_CHOICES = ("fused", "foreach")
"""Options of a group that choose how its step is computed, not what it does."""


def keep_as_plain(optimizer: torch.optim.Optimizer, plain: torch.optim.Optimizer) -> None:
    """Let a fused optimizer start momentum, save and load its state as ``plain``, from which it was made.

    - The fused step of SGD begins momentum with memory that holds anything, and writes it only if no gradient
      overflowed; and it knows no parameter whose first gradient comes later than those of others.
    - torch saves the choice of the step with the state: a plain optimizer that loads it would become fused, and one
      that loads a plain state would be fused no longer.
    """
    optimizer.register_state_dict_post_hook(_AsSaved(plain))
    optimizer.register_load_state_dict_pre_hook(_before_loading)
    optimizer.register_load_state_dict_post_hook(lay_out)
    if isinstance(optimizer, torch.optim.SGD):
        optimizer.register_step_pre_hook(_begin_momentum)


def keep_parts_as_plain(
    sharded: torch.optim.Optimizer, part: torch.optim.Optimizer, fused: torch.optim.Optimizer
) -> None:
    """Let an optimizer that several processes share do the same, if ``fused``, from which it was made, does.

    Args:
        sharded: The optimizer over all parameters, which loads by itself: see :func:`as_fused`.
        part: The one that steps on this process's part of them.
        fused: The optimizer before.
    """
    as_saved = _as_saved(fused)
    if as_saved is None:
        return
    for each in (sharded, part):
        each.register_state_dict_post_hook(as_saved)
    if isinstance(part, torch.optim.SGD):
        part.register_step_pre_hook(_begin_momentum)


def as_fused(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> dict[str, Any]:
    """The state of a plain optimizer as one loads it that is kept as plain; for any other, the state itself."""
    return state if _as_saved(optimizer) is None else _before_loading(optimizer, state)


class _AsSaved:
    """Gives a state the choices and the layout of the plain optimizer's."""

    def __init__(self, plain: torch.optim.Optimizer) -> None:
        self._chosen = [{name: group.get(name) for name in _CHOICES} for group in plain.param_groups]

    def __call__(self, optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> dict[str, Any]:
        groups = [group | own for group, own in zip(state["param_groups"], self._chosen, strict=False)]
        groups += state["param_groups"][len(groups) :]
        on_device = any(group.get("capturable") for group in groups)
        entries = {of: _usual(one, on_device=on_device) for of, one in state["state"].items()}
        return state | {"param_groups": groups, "state": entries}


def _as_saved(optimizer: torch.optim.Optimizer) -> _AsSaved | None:
    hooks = optimizer._optimizer_state_dict_post_hooks.values()
    return next((hook for hook in hooks if isinstance(hook, _AsSaved)), None)


def _before_loading(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> dict[str, Any]:
    fused = [group | {"fused": True, "foreach": False} for group in state["param_groups"]]
    return state | {"param_groups": fused}


def hooks_of_the_user(optimizer: torch.optim.Optimizer) -> list[Callable[..., Any]]:
    """The hooks that run before its step, but for our own."""
    return [hook for hook in optimizer._optimizer_step_pre_hooks.values() if not is_ours(hook)]


def is_ours(hook: Callable[..., Any]) -> bool:
    """Whether a hook of an optimizer's step is that of a fused one."""
    return hook is _begin_momentum


def lay_out(optimizer: torch.optim.Optimizer) -> None:
    """Give loaded state the memory layout of its parameters; optimizers outside torch.optim choose their own.

    torch keeps the layout of the training that the state comes from. With another one, fused optimizers silently update
    each element with the state of another on a CPU, and fail on a GPU.
    """
    if not type(optimizer).__module__.startswith("torch.optim"):
        return
    for parameter, entries in optimizer.state.items():
        for name, value in entries.items():
            if type(value) is torch.Tensor and value.shape == parameter.shape and value.stride() != parameter.stride():
                entries[name] = torch.empty_like(parameter, dtype=value.dtype, requires_grad=False).copy_(value)


def has_gaps(parameter: torch.Tensor) -> bool:
    """Whether a parameter's elements do not lie side by side: fused steps on a CPU take the next ones in memory."""
    reach = sum((size - 1) * stride for size, stride in zip(parameter.shape, parameter.stride(), strict=True))
    return parameter.numel() > 0 and reach + 1 != parameter.numel()


def _begin_momentum(optimizer: torch.optim.Optimizer, *_: Any) -> None:
    """Begin with zeros, which makes the first step what it is without momentum (there is no dampening)."""
    for group in optimizer.param_groups:
        for parameter in group["params"] if group["momentum"] else ():
            if parameter.grad is not None and optimizer.state[parameter].get("momentum_buffer") is None:
                optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter, requires_grad=False)


def _usual(entries: dict[str, Any], *, on_device: bool) -> dict[str, Any]:
    """State in the layout that a parameter has unless a method gave it another; the step is counted on the host."""
    return {
        name: (value.cpu() if name == "step" and not on_device else value.contiguous())
        if type(value) is torch.Tensor
        else value
        for name, value in entries.items()
    }
