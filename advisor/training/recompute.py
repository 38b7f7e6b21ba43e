"""Recompute a module in the backward pass without repeating its side effects.

A forward pass may write to buffers: BatchNorm updates its running statistics, spectral norm its vectors. Naive
recomputation updates them twice, and nothing shows the error, since BatchNorm's gradients stay bit-equal. Here it runs
on copies from before the forward pass, and leaves the model's own buffers alone. Numbers and tensors in plain
attributes, such as counters, are treated alike.
"""

from __future__ import annotations

import contextlib
import copy
import dis
import functools
import inspect
import types
from collections.abc import Callable, Generator, Hashable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    CheckpointImpl,
    CheckpointWrapper,
    apply_activation_checkpointing,
)
from torch.utils.checkpoint import noop_context_fn

from advisor.training.contents import alike, contents, copied, kept_in, refill
from advisor.training.random_state import Context, ContextPair, RandomSource, Repeated, further_generators, replaying
from advisor.training.replaced_attribute import replace_attribute
from advisor.training.structure import TransparentWrapper
from advisor.training.unsaved import Unsaved

if TYPE_CHECKING:
    from advisor.training.training import Training

__all__ = ["recompute_modules", "region_contexts", "stop_key_value_cache", "wrap_modules"]

_Slot = tuple[Any, str]
"""A module, or a container of the user's; and what of it."""


@dataclass(eq=False)
class _Container:
    """A user's container or object in which modules may count; saved and restored as a whole."""

    held: Any


def recompute_modules(
    model: torch.nn.Module,
    modules: list[torch.nn.Module],
    inner_contexts: Callable[[], ContextPair] | None = None,
) -> None:
    """Wrap modules of ``model``, none inside another, in place so that the backward pass recomputes their activations.

    ``inner_contexts`` makes further contexts of one region, e.g. selective ones; default: recompute everything.
    """
    generators = further_generators(model)
    # Dropout must draw the same mask again: torch handles the CPU's generator, the contexts all others.
    wrap_modules(
        model,
        modules,
        lambda module: {
            "preserve_rng_state": True,
            "context_fn": region_contexts([module], generators, inner_contexts),
        },
    )


def wrap_modules(
    model: torch.nn.Module, modules: list[torch.nn.Module], options: Callable[[torch.nn.Module], dict[str, Any]]
) -> None:
    """Put modules of a model into torch's checkpoint wrappers, in place; ``options`` are the keywords of each."""
    wanted = {id(module) for module in modules}
    assert id(model) not in wanted, "the whole model cannot be wrapped in itself"
    apply_activation_checkpointing(
        model,
        checkpoint_wrapper_fn=lambda module: _Checkpointed(module, **options(module)),
        check_fn=lambda module: id(module) in wanted,
    )


class _Checkpointed(TransparentWrapper, CheckpointWrapper):
    def __init__(self, module: torch.nn.Module, **options: Any) -> None:
        super().__init__(module, checkpoint_impl=CheckpointImpl.NO_REENTRANT, **options)
        self.be_transparent()


def region_contexts(
    modules: Sequence[torch.nn.Module],
    generators: Sequence[RandomSource],
    inner_contexts: Callable[[], ContextPair] | None = None,
) -> Callable[[], ContextPair]:
    """A ``context_fn`` for torch's checkpointing that keeps side effects of some modules from happening twice.

    ``generators`` are those that they may draw from, besides those that torch handles.
    """
    guard = _StateGuard(modules)
    if guard.needed or generators:
        return _Contexts(guard, generators, inner_contexts)
    # Without anything to guard, add no contexts: they cost time in every region.
    return inner_contexts or noop_context_fn


class _Contexts(Unsaved):
    def __init__(
        self,
        guard: _StateGuard,
        generators: Sequence[RandomSource],
        inner_contexts: Callable[[], ContextPair] | None,
    ) -> None:
        self._guard = guard
        self._generators = generators
        self._inner_contexts = inner_contexts or noop_context_fn

    def __deepcopy__(self, memo: dict[int, Any]) -> _Contexts:
        return _Contexts(copy.deepcopy(self._guard, memo), self._generators, self._inner_contexts)

    def __call__(self) -> ContextPair:
        forward, recompute = self._inner_contexts()
        before: dict[_Slot, Any] = {}
        again = Repeated(functools.partial(self._guard.recomputation, before, recompute))
        return replaying(self._generators, (self._guard.forward(before, forward), again))


def stop_key_value_cache(training: Training, why: str = "recomputation would extend the cache twice") -> None:
    """Set transformers' ``config.use_cache`` to False: a recomputed block would extend the cache a second time.

    Training does not use the cache. The setting returns when the training closes; a note gives the reason, ``why``.
    """
    changed = False
    for module in training.model.modules():
        config = getattr(module, "config", None)
        if getattr(config, "use_cache", False) is True:
            replace_attribute(training, config, "use_cache", False)
            changed = True
    if changed:
        training.notes.append(f"config.use_cache was set to False: {why}")


class _StateGuard:
    """Gives each recomputation the modules' state from before their forward pass.

    Which buffers a forward pass writes to is known for running statistics (torch's kernels count no version for them),
    and learned from version counters for all others. The first call with a given set of modules in training mode copies
    all buffers; later calls copy only small ones and those that were ever written to. A first write in a later call is
    detected by its version, too late for that call alone. Plain attributes are checked if a method of their class, or
    possibly a hook, assigns any; collections and the user's objects in the first call. Versions do not count writes
    through ``.data``, so the first call also compares contents, including the user's own frozen parameters.
    """

    def __init__(self, modules: Sequence[torch.nn.Module]) -> None:
        self._modules = [inner for module in modules for inner in module.modules()]
        self._slots: list[_Slot] = [(inner, name) for inner in self._modules for name in inner._buffers]
        self._slots += [(inner, name) for inner in self._modules for name in _frozen(inner)]
        found = {id(held): held for inner in self._modules for _, held in kept_in(inner)}
        self._containers: list[_Slot] = [(_Container(held), "") for held in found.values()]
        self._counting = [inner for inner in self._modules if _may_count(inner)]
        # In order, not by address, so that the copies of two steps come in the same order.
        self.written: dict[_Slot, None] = {
            (inner, name): None
            for inner, name in self._slots
            if isinstance(inner, torch.nn.modules.batchnorm._NormBase)
        }
        self._seen: set[tuple[bool, ...]] = set()

    @property
    def needed(self) -> bool:
        return bool(self._slots or self._counting or self._containers)

    @contextlib.contextmanager
    def forward(self, before: dict[_Slot, Any], inner: Context) -> Generator[None, None, None]:
        """Context for one forward pass; fills ``before`` with the earlier contents of what it writes to."""
        modes = tuple(module.training for module in self._modules)
        first = modes not in self._seen
        slots = [*self._slots, *self._attributes(), *self._containers] if first else self.written
        attributes = {module: dict(vars(module)) for module in self._counting} if first else {}
        held = [(slot, value, getattr(value, "_version", 0)) for slot in slots for value in [_value(slot)]]
        before |= {slot: _copied(slot, value) for slot, value, _ in held}
        unseen = [] if first else [slot for slot in (*self._slots, *self._attributes()) if slot not in self.written]
        known = [(slot, _value(slot), _version(slot)) for slot in unseen]
        before |= {slot: _copied(slot, value) for slot, value, _ in known if getattr(value, "nbytes", 0) <= _SMALL}
        with inner:
            yield
        # The earlier contents of large ones are gone, but from now on no update is made twice.
        self.written |= {
            slot: None
            for slot, value, version in known
            if not isinstance(value, torch.nn.Parameter)
            and (_version(slot) != version or not _same(_value(slot), value))
        }
        if first:
            self.written |= {
                slot: None for slot, value, version in held if _is_written(slot, value, version, before[slot])
            }
            for slot in self._attributes():
                if slot not in before:  # nothing yet, or nothing relevant, such as None
                    self.written[slot] = None
                    before[slot] = attributes[slot[0]].get(slot[1], _MISSING)
        self._seen.add(modes)
        for slot in [one for one in before if one not in self.written]:
            del before[slot]

    @contextlib.contextmanager
    def recomputation(self, before: dict[_Slot, Any], inner: Context) -> Generator[None, None, None]:
        own = [(slot, _value(slot)) for slot in self.written]
        for slot, value in own:
            # A copy again: the recomputation's own update must not reach what was kept. What only a later call in the
            # same modes wrote to was not kept; for what the output does not depend on, such as a counter, its present
            # contents do.
            _put(slot, _copied(slot, before.get(slot, value)))
        try:
            with inner:  # Non-reentrant checkpointing leaves early through an exception.
                yield
        finally:
            for slot, value in own:
                _put(slot, value)

    def _attributes(self) -> list[_Slot]:
        """Numbers and tensors that modules keep as plain attributes."""
        return [
            (module, name)
            for module in self._counting
            for name, value in vars(module).items()
            if isinstance(value, int | float) or (isinstance(value, torch.Tensor) and not value.requires_grad)
        ]


_SMALL = 2**14
"""Largest buffer, in bytes, that every call copies although none has written to it so far."""

_MISSING = object()
"""Stands for an attribute that the module does not have, or not yet."""


def _may_count(module: torch.nn.Module) -> bool:
    """Whether something may assign a module's plain attributes in its forward pass."""
    return bool(module._forward_hooks or module._forward_pre_hooks) or _assigns(type(module))  # type: ignore[arg-type]


@functools.cache
def _assigns(kind: Hashable) -> bool:
    """Whether methods of a user's class, other than its initializer, assign attributes."""
    assert isinstance(kind, type), kind
    if kind.__module__.split(".")[0] == "torch":
        return False
    methods = [
        inspect.unwrap(function)
        for one in kind.__mro__
        if one.__module__.split(".")[0] != "torch"
        for name, function in vars(one).items()
        if isinstance(function, types.FunctionType) and name != "__init__"
    ]
    return any(step.opname == "STORE_ATTR" for method in methods for step in dis.get_instructions(method))


def _frozen(module: torch.nn.Module) -> list[str]:
    """Parameters without a gradient directly in a user's own module, such as a codebook that it moves."""
    if type(module).__module__.split(".")[0] == "torch":
        return []
    return [
        name
        for name, parameter in module._parameters.items()
        if parameter is not None and not parameter.requires_grad and type(parameter) is torch.nn.Parameter
    ]


def _copied(slot: _Slot, value: Any) -> Any:
    if isinstance(slot[0], _Container):
        return copied(value)
    return value.detach().clone() if isinstance(value, torch.Tensor) else value


def _value(slot: _Slot) -> Any:
    module, name = slot
    if isinstance(module, _Container):
        return contents(module.held)
    if name in module._parameters:
        return module._parameters[name]
    return module._buffers[name] if name in module._buffers else vars(module).get(name, _MISSING)


def _version(slot: _Slot) -> int:
    return int(getattr(_value(slot), "_version", 0))


def _same(one: Any, other: Any) -> bool:
    return one is other or (not isinstance(one, torch.Tensor) and not isinstance(other, torch.Tensor) and one == other)


def _is_written(slot: _Slot, value: Any, version: int, copy: Any) -> bool:
    """Whether a slot changed: it holds another object, other contents or another number."""
    now = _value(slot)
    if isinstance(slot[0], _Container):
        return not alike(now, copy)
    if not isinstance(value, torch.Tensor):
        return now is not value and (isinstance(now, torch.Tensor) or bool(now != value))
    if isinstance(value, torch.nn.Parameter):  # sharding replaces parameters by other objects
        return now is value and not _equal(value, copy)
    return now is not value or _version(slot) != version or not _equal(value, copy)


def _equal(value: torch.Tensor, copy: torch.Tensor) -> bool:
    return isinstance(value, FakeTensor) or value.layout != torch.strided or bool(torch.equal(value, copy))


def _put(slot: _Slot, value: Any) -> None:
    module, name = slot
    if isinstance(module, _Container):
        refill(module.held, value)
    elif name in module._parameters:
        module._parameters[name] = (
            value if isinstance(value, torch.nn.Parameter) else torch.nn.Parameter(value, requires_grad=False)
        )
    elif name in module._buffers:
        module._buffers[name] = value
    elif value is not _MISSING:
        object.__setattr__(module, name, value)
    elif name in vars(module):
        object.__delattr__(module, name)
