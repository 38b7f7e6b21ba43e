"""What a stage needs of the modules outside of the chain of blocks, and what it can do without.

Every stage runs a model from its beginning, but of what comes before the blocks it only needs what the blocks take
besides their hidden states: the embedding of another stage computes what nobody looks at. Such modules are replaced by
zeros of the right shape, and their parameters are emptied. Nothing is decided by names: one watched pass of the stage
tells, and another one, without what seems superfluous, must give the same.
"""

from __future__ import annotations

import contextlib
import copy
import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import ActivationWrapper
from torch.distributed.tensor import DTensor
from torch.utils import _pytree as pytree

from advisor.errors import MethodRefusedError
from advisor.methods.pipeline._passage import Passage
from advisor.methods.pipeline._places import OtherBlock, StageLink

__all__ = ["Calls", "StandIn", "empty_parameters", "outside_modules", "stand_ins"]


class Calls:
    """When the modules outside of the chain are called in watched passes.

    Attributes:
        before: Identities of modules that are called before the own blocks.
        after: Those that are called after them.
        without_gradient: Those that are called without gradients, which no graph shows.
    """

    def __init__(self, modules: list[nn.Module], passage: Passage) -> None:
        self.before: set[int] = set()
        self.after: set[int] = set()
        self.without_gradient: set[int] = set()
        self._passage = passage
        self._hooks = [module.register_forward_pre_hook(self._note) for module in modules]

    def _note(self, module: nn.Module, args: Any) -> None:
        run = self._passage.run
        (self.after if run is not None and run.entered else self.before).add(id(module))
        if not torch.is_grad_enabled():
            self.without_gradient.add(id(module))

    def end(self) -> None:
        """Watch no longer."""
        for hook in self._hooks:
            hook.remove()

    def of(self, module: nn.Module) -> tuple[bool, bool, bool]:
        """Whether a module, or one inside it, is called: before, after, and without gradients."""
        inner = {id(one) for one in module.modules()}
        return bool(inner & self.before), bool(inner & self.after), bool(inner & self.without_gradient)


def outside_modules(model: nn.Module) -> list[nn.Module]:
    """The outermost modules that have no block inside, in order."""
    return list(_outside(model))


def _outside(module: nn.Module) -> Iterator[nn.Module]:
    for child in module.children():
        if isinstance(child, StageLink | OtherBlock):
            continue
        if any(isinstance(inner, StageLink | OtherBlock) for inner in child.modules()):
            yield from _outside(child)
        else:
            yield child


def _superfluous(model: nn.Module, used: set[int], calls: Calls, *, has_last: bool) -> list[tuple[nn.Module, bool]]:
    """The modules that the stages of this process can do without.

    Args:
        model: The model, with its blocks in their links.
        used: Identities of the parameters that the stages compute with.
        calls: When modules were called.
        has_last: Whether one of the stages is the last, which may call in another step what it did not call in this.

    Returns:
        Modules, and whether they are called.
    """
    found: list[tuple[nn.Module, bool]] = []
    open_modules = outside_modules(model)
    while open_modules:
        module = open_modules.pop(0)
        parameters = list(module.parameters())
        if not parameters:
            continue
        before, after, hidden = calls.of(module)
        itself = id(module) in calls.before
        needed = any(id(one) in used for one in parameters) or after or hidden
        if not needed and not before and not has_last:
            found.append((module, False))
        elif not needed and before and itself:
            found.append((module, True))
        elif before or needed or has_last:
            open_modules += [child for child in module.children() if not isinstance(child, ActivationWrapper)]
    return found


class StandIn:
    """In the place of a module's forward function: zeros of the shape that it would return.

    Args:
        module: The module; its forward function is replaced until :meth:`undo`.
        is_called: Whether the stage calls it; if not, a call is an error.
        device: Where the zeros are.
    """

    def __init__(self, module: nn.Module, *, is_called: bool, device: torch.device) -> None:
        self.module = module
        self._device = device
        self._before = vars(module).get("forward")
        shadow = _without_memory(module) if is_called else None
        kind = type(module).__name__
        module.forward = functools.partial(_never, kind) if shadow is None else functools.partial(self._zeros, shadow)

    def undo(self) -> None:
        """Give the module its forward function back."""
        if self._before is None:
            del self.module.forward
        else:
            self.module.forward = self._before

    def _zeros(self, shadow: nn.Module, *args: Any, **kwargs: Any) -> Any:
        on_meta = functools.partial(_tensors_to, lambda tensor: tensor.to("meta"))
        with torch.no_grad():
            output = shadow(*on_meta(args), **on_meta(kwargs))
        # Each element its own memory: the model may write to it.
        return _tensors_to(lambda each: torch.zeros(each.shape, dtype=each.dtype, device=self._device), output)


def _never(kind: str, *args: Any, **kwargs: Any) -> Any:
    raise MethodRefusedError(
        f"a stage of a pipeline must call the same modules in every step, but it calls a {kind} that it did not call "
        "in the first one; give the first step a batch that uses every branch"
    )


def stand_ins(model: nn.Module, used: set[int], calls: Calls, *, has_last: bool, device: torch.device) -> list[StandIn]:
    """Stand-ins for the modules that the stages of this process can do without.

    Args:
        model: The model, with its blocks in their links.
        used: Identities of the parameters that the stages of this process compute with.
        calls: When modules were called.
        has_last: Whether one of the stages is the last, which may call in another step what it did not call in this.
        device: Where the stages compute.
    """
    found = []
    for module, is_called in _superfluous(model, used, calls, has_last=has_last):
        if not any(isinstance(one, DTensor) for one in module.parameters()):
            # A module that cannot be copied is no mistake: it stays.
            with contextlib.suppress(Exception):
                found.append(StandIn(module, is_called=is_called, device=device))
    return found


def _without_memory(module: nn.Module) -> nn.Module:
    """A copy on torch's meta device, which computes shapes only."""
    held = [*module.parameters(), *module.buffers()]
    memo: dict[int, Any] = {
        id(one): nn.Parameter(one.detach().to("meta"), requires_grad=False)
        if isinstance(one, nn.Parameter)
        else one.detach().to("meta")
        for one in held
    }
    return copy.deepcopy(module, memo)


def _tensors_to(function: Callable[[torch.Tensor], torch.Tensor], tree: Any) -> Any:
    return pytree.tree_map(lambda leaf: function(leaf) if isinstance(leaf, torch.Tensor) else leaf, tree)


def empty_parameters(
    model: nn.Module, modules: list[nn.Module], names: Mapping[str, nn.Parameter], *, keep: set[str]
) -> set[str]:
    """Free the parameters that only these modules hold: they are left without rows.

    They stay the objects that they were, so that an optimizer that has them finds nothing to do.

    Args:
        model: The model.
        modules: Modules that are not needed.
        names: Name -> parameter of the model.
        keep: Names of those to leave as they are.

    Returns:
        The names of those that were freed.
    """
    inside = {id(inner) for module in modules for inner in module.modules()}
    kept = {
        id(parameter)
        for module in model.modules()
        if id(module) not in inside
        for parameter in module._parameters.values()
        if parameter is not None
    }
    held = {id(parameter) for module in modules for parameter in module.parameters()} - kept
    emptied = set()
    for name, parameter in names.items():
        if id(parameter) in held and name not in keep and parameter.dim() and type(parameter) is nn.Parameter:
            parameter.data = parameter.data.new_empty((0, *parameter.shape[1:]))
            emptied.add(name)
    return emptied
