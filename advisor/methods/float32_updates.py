"""Updates of short parameters that are computed in float32, a bounded part of them at a time.

The optimizer is the user's own object: its groups, schedulers and hooks stay. While it steps, it is shown float32
copies of some parameters, of their gradients and of their state; what it made of them is then rounded.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Generator, Mapping
from typing import Any

import torch

from advisor.errors import MethodRefusedError
from advisor.methods.rounding import Rounding
from advisor.methods.short_state import ShortState
from advisor.methods.short_training import judge_optimizer

__all__ = ["update_in_float32"]

_AT_ONCE = 2**22
"""Elements that exist in float32 at a time, unless one parameter has more: 16 MiB for each of parameter, gradient
and moment, and enough of the small parameters to be worth a fused step."""


def update_in_float32(
    optimizer: torch.optim.Optimizer,
    rounding: Rounding,
    held: ShortState,
    gradient_factor: Callable[[], torch.Tensor] | None = None,
) -> None:
    """Change an optimizer in place so that it steps in float32, whatever the format of its parameters.

    Its step hooks run once per step, and see the parameters themselves.

    Args:
        optimizer: An optimizer that has not stepped.
        rounding: How updated parameters are rounded to their format.
        held: How the state of optimizers of torch.optim is held between steps; others decide that themselves.
        gradient_factor: Gives what gradients are multiplied by, in float32, to get their true values.

    Raises:
        MethodRefusedError: The optimizer looks at all parameters at once, or has stepped already.
    """
    kind = f"{type(optimizer).__module__}.{type(optimizer).__qualname__}"
    if reason := judge_optimizer(kind):
        raise MethodRefusedError(reason)
    if optimizer.state:
        raise MethodRefusedError("the optimizer has already stepped; apply the policy before training starts")
    short = _ShortUpdates(optimizer, rounding, held if kind.startswith("torch.optim.") else ShortState())
    short.gradient_factor = gradient_factor
    plain: Any = optimizer
    hooked = torch.optim.Optimizer.profile_hook_step(short.step)
    plain.step = types.MethodType(hooked, optimizer)
    plain.state_dict = short.state_dict
    plain.load_state_dict = short.load_state_dict
    # Fused optimizers divide by a loss scale themselves; here that is done before they see a gradient.
    plain._step_supports_amp_scaling = False


class _ShortUpdates:
    """What takes the place of an optimizer's ``step``, ``state_dict`` and ``load_state_dict``."""

    def __init__(self, optimizer: torch.optim.Optimizer, rounding: Rounding, held: ShortState) -> None:
        self._optimizer = optimizer
        self._rounding = rounding
        self._held = held
        self.gradient_factor: Callable[[], torch.Tensor] | None = None
        # Without the hooks, which would run for every part of a step: torch wraps a class's step exactly once.
        self._plain_step: Callable[..., Any] = type(optimizer).step.__wrapped__  # type: ignore[attr-defined]
        self._plain_state_dict = optimizer.state_dict
        self._plain_load = optimizer.load_state_dict

    def step(self, optimizer: torch.optim.Optimizer, closure: Callable[[], float] | None = None) -> None:
        """Update every parameter that has a gradient."""
        if closure is not None:
            raise MethodRefusedError("an optimizer whose updates are computed part by part takes no closure")
        assert optimizer is self._optimizer
        factor = None if self.gradient_factor is None else self.gradient_factor()
        with torch.no_grad():
            for group in optimizer.param_groups:
                for part in _parts([p for p in group["params"] if p.grad is not None]):
                    self._update(group, part, factor)

    def state_dict(self) -> dict[str, Any]:
        """The state as the optimizer has it without this change."""
        state = self._plain_state_dict()
        return {**state, "state": {index: self._held.plain(entries) for index, entries in state["state"].items()}}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Load what :meth:`state_dict` or the unchanged optimizer gave."""
        self._plain_load(dict(state_dict))
        if type(self._held) is ShortState:
            return
        # torch casts state to the format of the parameter, in which much of it is zero: take it as it was given.
        parameters = [p for group in self._optimizer.param_groups for p in group["params"]]
        order = [index for group in state_dict["param_groups"] for index in group["params"]]
        for index, parameter in zip(order, parameters, strict=True):
            if index in state_dict["state"]:
                loaded, given = self._optimizer.state[parameter], state_dict["state"][index]
                taken = {name: _as_given(value, given.get(name)) for name, value in loaded.items()}
                self._optimizer.state[parameter] = self._held.pack(taken)

    def _update(self, group: dict[str, Any], part: list[torch.nn.Parameter], factor: torch.Tensor | None) -> None:
        """Step on float32 copies of some parameters of a group; those that are float32 are their own copies."""
        optimizer, state = self._optimizer, self._optimizer.state
        copies = []
        for parameter in part:
            assert parameter.grad is not None
            copy = parameter.detach().float()
            gradient = parameter.grad.float()
            copy.grad = gradient if factor is None else gradient * factor
            if parameter in state:
                state[copy] = self._held.unpack(state.pop(parameter))  # type: ignore[index]
            copies.append(copy)
        groups, members = optimizer.param_groups, group["params"]
        optimizer.param_groups, group["params"] = [group], copies
        try:
            self._plain_step(optimizer)
        finally:
            optimizer.param_groups, group["params"] = groups, members
            for parameter, copy in zip(part, copies, strict=True):
                if copy in state:
                    state[parameter] = self._held.pack(state.pop(copy))  # type: ignore[index]
        for parameter, copy in zip(part, copies, strict=True):
            if parameter.dtype != torch.float32:
                parameter.copy_(self._rounding.round(copy, parameter.dtype))


def _parts(parameters: list[torch.nn.Parameter]) -> Generator[list[torch.nn.Parameter], None, None]:
    """The parameters in order, cut so that each part has at most :data:`_AT_ONCE` elements or is one parameter."""
    part: list[torch.nn.Parameter] = []
    size = 0
    for parameter in parameters:
        if part and size + parameter.numel() > _AT_ONCE:
            yield part
            part, size = [], 0
        part.append(parameter)
        size += parameter.numel()
    if part:
        yield part


def _as_given(loaded: Any, given: Any) -> Any:
    if not (isinstance(loaded, torch.Tensor) and isinstance(given, torch.Tensor) and given.is_floating_point()):
        return loaded
    return given.detach().to(device=loaded.device, copy=True)
