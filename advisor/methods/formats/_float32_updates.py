"""Updates of 16-bit parameters that are computed in float32, a bounded part of them at a time.

The optimizer is the user's own object: its groups, schedulers and hooks stay. It steps on float32 copies of some
parameters, their gradients and their state, which are then rounded.
"""

from __future__ import annotations

import math
import types
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from advisor.errors import MethodRefusedError
from advisor.methods.applying import require
from advisor.methods.formats._rounding import Rounding
from advisor.methods.formats._short_state import ShortState
from advisor.methods.formats.short_training import judge_optimizer
from advisor.methods.optimizers.optimizer_class import class_name_of, narrowed, traits_of
from advisor.training.optimizer.fused_step import lay_out

__all__ = ["update_in_float32"]

_AT_ONCE = 2**22
"""Elements that exist in float32 at a time, unless one parameter has more: 16 MiB for each of parameter, gradient
and moment, and enough of the small parameters to be worth a fused step."""

_SHARE_AT_ONCE = 1 / 4
"""And no more than this share of all: a small model, all in float32 at once, would take more than plain training."""


def update_in_float32(
    optimizer: torch.optim.Optimizer,
    held: ShortState,
    *,
    rounding: Rounding,
    state_rounding: Rounding,
    gradient_factor: Callable[[], torch.Tensor] | None = None,
) -> None:
    """Change an optimizer in place so that it steps in float32, whatever the format of its parameters.

    Its step hooks run once per step, and see the parameters themselves.

    Args:
        optimizer: An optimizer that has not stepped.
        held: How state is held between steps, unless the optimizer has a format of its own for it.
        rounding: How updated parameters are rounded to their format.
        state_rounding: How state is.
        gradient_factor: Returns the factor from gradients to their true values, applied in float32.

    Raises:
        MethodRefusedError: The optimizer looks at all parameters at once, or has stepped already.
    """
    traits = traits_of(optimizer)
    require(judge_optimizer(class_name_of(optimizer), traits))
    if any(float(entries.get("step", 1.0)) for entries in optimizer.state.values()):
        raise MethodRefusedError("the optimizer has already stepped; apply the policy before training starts")
    if traits.itemsize is not None or traits.quantized is not None:
        held = ShortState()  # It has a state format of its own.
    # Adagrad makes its state at once, in the format of the parameters.
    nearest = Rounding(stochastic=False)
    for parameter, entries in optimizer.state.items():
        long = {name: value.float() if isinstance(value, torch.Tensor) else value for name, value in entries.items()}
        optimizer.state[parameter] = held.pack(long, nearest)
    short = _ShortUpdates(optimizer, held, rounding, state_rounding, gradient_factor)
    plain: Any = optimizer
    scheduled = getattr(optimizer.step, "_wrapped_by_lr_sched", False)
    hooked = torch.optim.Optimizer.profile_hook_step(short.step)
    if scheduled:  # or that scheduler would warn of a step that is not the one it has seen
        hooked._wrapped_by_lr_sched = True  # type: ignore[attr-defined]
        plain._opt_called = True
    plain.step = types.MethodType(hooked, optimizer)
    plain.state_dict = short.state_dict
    plain.load_state_dict = short.load_state_dict
    # Fused optimizers divide by a loss scale themselves; here that is done before they see a gradient.
    plain._step_supports_amp_scaling = False


@dataclass(eq=False)
class _ShortUpdates:
    """Replaces an optimizer's ``step``, ``state_dict`` and ``load_state_dict``."""

    optimizer: torch.optim.Optimizer
    held: ShortState
    rounding: Rounding
    state_rounding: Rounding
    gradient_factor: Callable[[], torch.Tensor] | None

    def __post_init__(self) -> None:
        self._plain_step = self.optimizer.step
        self._plain_state_dict = self.optimizer.state_dict
        self._plain_load = self.optimizer.load_state_dict

    def step(self, optimizer: torch.optim.Optimizer, closure: Callable[[], float] | None = None) -> None:
        if closure is not None:
            raise MethodRefusedError("an optimizer whose updates are computed part by part takes no closure")
        assert optimizer is self.optimizer
        factor = None if self.gradient_factor is None else self.gradient_factor()
        groups = [(group, [p for p in group["params"] if p.grad is not None]) for group in optimizer.param_groups]
        total = sum(parameter.numel() for _, parameters in groups for parameter in parameters)
        at_once = min(_AT_ONCE, math.ceil(_SHARE_AT_ONCE * total))
        with torch.no_grad():
            for group, parameters in groups:
                for part in _parts(parameters, at_once):
                    self._update(group, part, factor)

    def state_dict(self) -> dict[str, Any]:
        state = self._plain_state_dict()
        return {**state, "state": {index: self.held.plain(entries) for index, entries in state["state"].items()}}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Load what :meth:`state_dict` or the unchanged optimizer gave."""
        self._plain_load(dict(state_dict))
        # torch casts state to the format of the parameter, in which much of it is zero: take it as it was given.
        parameters = [p for group in self.optimizer.param_groups for p in group["params"]]
        # What was saved is rounded already: rounding again must change nothing and draw no random number.
        nearest = Rounding(stochastic=False)
        order = [index for group in state_dict["param_groups"] for index in group["params"]]
        for index, parameter in zip(order, parameters, strict=True):
            if index in state_dict["state"]:
                loaded, given = self.optimizer.state[parameter], state_dict["state"][index]
                taken = {name: _as_given(value, given.get(name)) for name, value in loaded.items()}
                self.optimizer.state[parameter] = self.held.pack(taken, nearest)
        lay_out(self.optimizer)

    def _update(self, group: dict[str, Any], part: list[torch.nn.Parameter], factor: torch.Tensor | None) -> None:
        """Step on float32 copies of some parameters of a group; those that are float32 are their own copies."""
        optimizer, state = self.optimizer, self.optimizer.state
        copies = []
        for parameter in part:
            assert parameter.grad is not None
            copy = parameter.detach().float()
            gradient = parameter.grad.float()
            copy.grad = gradient if factor is None else gradient * factor.to(gradient.device)
            if parameter in state:
                state[copy] = self.held.unpack(state.pop(parameter))
            copies.append(copy)
        try:
            with narrowed(optimizer, group, copies, "_optimizer_step_pre_hooks", "_optimizer_step_post_hooks"):
                self._plain_step()
        finally:
            for parameter, copy in zip(part, copies, strict=True):
                if copy in state:
                    state[parameter] = self.held.pack(state.pop(copy), self.state_rounding)
        for parameter, copy in zip(part, copies, strict=True):
            if parameter.dtype != torch.float32:
                parameter.copy_(self.rounding.round(copy, parameter.dtype))


def _parts(parameters: list[torch.nn.Parameter], at_once: int) -> Generator[list[torch.nn.Parameter], None, None]:
    """The parameters in order, in parts of at most so many elements or of one parameter."""
    part: list[torch.nn.Parameter] = []
    size = 0
    for parameter in parameters:
        if part and size + parameter.numel() > at_once:
            yield part
            part, size = [], 0
        part.append(parameter)
        size += parameter.numel()
    if part:
        yield part


def _as_given(loaded: Any, given: Any) -> Any:
    if not (isinstance(loaded, torch.Tensor) and isinstance(given, torch.Tensor) and given.is_floating_point()):
        return loaded
    if is_traceable_wrapper_subclass(given):
        return loaded  # A library's own format, in which the one that it stands for changes nothing.
    dtype = torch.float32 if given.dtype in (torch.bfloat16, torch.float16) else given.dtype
    return given.detach().to(device=loaded.device, dtype=dtype, copy=True)
