"""Which parameters a step computes with, where each process holds a slice of every parameter.

torch packs the gradients of a block side by side and averages them by their place. A process that leaves a parameter
out (an expert to which none of its tokens went) must pack zeros for it; else the gradients of two parameters are
averaged into each other where the sizes fit, and processes wait for each other for ever where they do not. What no
process has used then has a gradient of zeros, where plain training has none: an optimizer would decay it, and move it
by its momentum.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch.distributed.fsdp import FSDPModule

from advisor.errors import MethodRefusedError
from advisor.training.processes.world import World

__all__ = ["UsedParameters"]


class UsedParameters:
    """Notes which parameters get a gradient, and drops the gradients of those that no process has used.

    Args:
        root: The module whose parameters, and those of the modules inside it, were sliced by ``fully_shard``.
        world: The processes.
        in_stages: Whether the model is in stages, of which each leaves out most of what is outside of the blocks: zeros
            for an embedding that another stage computes with would be sent in every pass.
    """

    def __init__(self, root: torch.nn.Module, world: World, *, in_stages: bool) -> None:
        self._world = world
        self._slices = [parameter for parameter in root.parameters() if parameter.requires_grad]
        sliced = [module for module in root.modules() if isinstance(module, FSDPModule)]
        self._unwatched = [one for module in sliced for one in _slices_of(module)]
        self._in_pass: set[int] = set()
        self._in_step: set[int] = set()
        self._is_complete = False
        packed: set[int] = set()
        for module in sliced:
            # Torch before 2.13 leaves out what this process has not used.
            if hasattr(module, "set_reduce_scatter_unused_params") and not (in_stages and module is root):
                module.set_reduce_scatter_unused_params(True, recurse=False)
                packed |= {id(one.sharded_param) for one in _slices_of(module)}
        self._left_out = [parameter for parameter in self._slices if id(parameter) not in packed]

    def watch(self) -> None:
        """Watch the whole parameters that were gathered for the first time; each stays the same object from then on."""
        waiting = []
        for one in self._unwatched:
            whole = getattr(one, "_unsharded_param", None)
            if whole is None:
                waiting.append(one)
            elif whole.requires_grad:
                # Of this object, a hook must hold nothing else: autograd holds the hook.
                whole.register_post_accumulate_grad_hook(functools.partial(_note, self._in_pass, id(one.sharded_param)))
        self._unwatched = waiting

    def after_backward(self) -> None:
        """A backward pass has ended.

        Raises:
            MethodRefusedError: Some processes left out parameters for which no zeros are packed.
        """
        if self._left_out:
            used = self._counts(self._left_out, self._in_pass)
            if partly := sum(0 < count < self._world.size for count in used):
                raise MethodRefusedError(
                    "parameters outside of the blocks of a pipeline, and before torch 2.13 all of them, must take part "
                    "in a step on every process or on none, because fsdp averages gradients by their place among those "
                    f"that there are, but {partly} took part on some processes only; use ddp, or add 0.0 * sum of the "
                    "parameters of what is left out to the loss"
                )
        self._in_step |= self._in_pass
        self._in_pass.clear()

    def complete(self) -> None:
        """Drop the gradients of what no process has used in this step; a second call does nothing."""
        if self._is_complete:
            return
        self._is_complete = True
        for parameter, count in zip(self._slices, self._counts(self._slices, self._in_step), strict=True):
            if count == 0:
                parameter.grad = None

    def begin_next(self) -> None:
        """The step has ended."""
        self._in_step.clear()
        self._is_complete = False

    def _counts(self, slices: list[torch.nn.Parameter], used: set[int]) -> list[float]:
        """On how many processes each parameter was used."""
        return self._world.totals([float(id(parameter) in used) for parameter in slices])


def _slices_of(module: FSDPModule) -> list[Any]:
    """What torch knows of every parameter that is gathered with a module."""
    state = module._get_fsdp_state()
    groups = getattr(state, "_fsdp_param_groups", None)
    if groups is None:  # in older versions a module has one at most
        groups = [] if state._fsdp_param_group is None else [state._fsdp_param_group]
    return [one for group in groups for one in group.fsdp_params]


def _note(used: set[int], name: int, parameter: torch.Tensor) -> None:
    used.add(name)
