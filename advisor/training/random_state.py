"""Recompute with the random numbers of the forward pass, however a module gets its inputs.

torch's checkpointing keeps the random state only of the CUDA devices of *positional* tensor arguments. Most blocks of
transformers call their attention by keyword (``self_attn(hidden_states=...)``): recomputed, it would draw other dropout
masks, and the gradients would be silently wrong.
"""

from __future__ import annotations

import contextlib
import functools
import random
import sys
import types
import weakref
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch.utils._mode_utils import no_dispatch

from advisor.training.contents import children_of, enclosed, kept_in

__all__ = [
    "DRAWN_BETWEEN",
    "Context",
    "ContextPair",
    "RandomSource",
    "Repeated",
    "default_generators",
    "drawn_so_far",
    "further_generators",
    "replaying",
    "source_of",
]

Context = contextlib.AbstractContextManager[Any]
ContextPair = tuple[Context, Context]
"""Contexts around the forward pass of a region and around its recomputation."""


class RandomSource(Protocol):
    """A source of random numbers: a torch generator, or another with the same two methods."""

    def get_state(self) -> Any:
        """Its current state."""

    def set_state(self, state: Any) -> Any:
        """Set its state, to draw the same numbers again."""


DRAWN_BETWEEN = (
    "the model draws random numbers between its blocks, and its blocks draw some too: run together, they would draw "
    "other ones than one by one"
)
"""Why blocks are no chain although each is called on the output of the one before."""


def drawn_so_far(device: torch.device) -> bytes:
    """The state of a device's default generator, which changes with every draw. Does not synchronize."""
    generator = torch.default_generator
    if device.type == "cuda":
        index = torch.cuda.current_device() if device.index is None else device.index
        generator = torch.cuda.default_generators[index]
    with no_dispatch():  # The state is not a training tensor: fake tensor modes must not see it.
        return bytes(generator.get_state().numpy())


def further_generators(model: torch.nn.Module) -> list[RandomSource]:
    """The generators that a model may draw from, besides the CPU's default one.

    These are the default generators of its CUDA devices; generators of torch, numpy or Python that its modules keep,
    also in collections, helper objects and closures; and the global ones of numpy and Python if the file of one of its
    classes uses these libraries.
    """
    indices = {parameter.device.index for parameter in model.parameters() if parameter.device.type == "cuda"}
    kept: dict[int, RandomSource] = {}
    for module in model.modules():
        values = list(vars(module).values())
        values += [value for _, container in kept_in(module) for _, value in children_of(container)]
        values += [one for value in values for one in enclosed(value)]
        for value in values:
            for one in value if isinstance(value, list | tuple) else (value,):
                if (source := source_of(one)) is not None:
                    kept[id(one)] = source
    devices = [torch.cuda.default_generators[index] for index in sorted(indices)]
    return [*devices, *kept.values(), *_common_generators(model)]


def default_generators(model: torch.nn.Module) -> list[RandomSource]:
    """The default generator of the CPU, and :func:`further_generators`."""
    return [torch.default_generator, *further_generators(model)]


@dataclass(eq=False)
class _Source:
    get_state: Callable[[], Any]
    set_state: Callable[[Any], Any]


def source_of(value: Any) -> RandomSource | None:
    """A generator of torch, numpy or Python as a source of random numbers; ``None`` for anything else."""
    if isinstance(value, torch.Generator):
        return value
    if isinstance(value, random.Random) and not isinstance(value, random.SystemRandom):
        return _Source(value.getstate, value.setstate)
    numpy = sys.modules.get("numpy.random")
    if numpy is not None and isinstance(value, numpy.RandomState):
        return _Source(value.get_state, value.set_state)
    if numpy is not None and isinstance(value, numpy.Generator):
        bits = value.bit_generator
        return _Source(lambda: bits.state, lambda state: setattr(bits, "state", state))
    return None


def _common_generators(model: torch.nn.Module) -> list[RandomSource]:
    """The global generators of Python and numpy, if a file of the model may draw from them."""
    homes = {type(module).__module__ for module in model.modules()}
    scopes = [vars(sys.modules[home]) for home in homes if home in sys.modules and not _is_of_a_library(home)]
    for scope in list(scopes):  # and helpers from other files of the user's
        functions = [value for value in list(scope.values()) if isinstance(value, types.FunctionType)]
        scopes += [one.__globals__ for one in functions if not _is_of_a_library(one.__module__ or "")]
    values = [value for scope in {id(one): one for one in scopes}.values() for value in list(scope.values())]
    owners = [value.__self__ for value in values if isinstance(value, types.MethodType | types.BuiltinMethodType)]
    common = getattr(random.random, "__self__", None)  # whose methods the module's functions are
    found: list[RandomSource] = []
    if any(value is random for value in values) or any(owner is common for owner in owners):
        found.append(_Source(random.getstate, random.setstate))
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        drawn = getattr(numpy.random.rand, "__self__", None)
        if any(value is numpy or value is numpy.random for value in values) or any(one is drawn for one in owners):
            found.append(_Source(numpy.random.get_state, numpy.random.set_state))
    return found


def _is_of_a_library(module: str) -> bool:
    return module.split(".")[0] in ("torch", "numpy", "builtins")


def replaying(generators: Sequence[RandomSource], inner: ContextPair) -> ContextPair:
    """Contexts around those of one region in which the recomputation draws what the forward pass drew."""
    states: list[Any] = []
    forward, recompute = inner
    again = Repeated(functools.partial(_recompute, generators, states, recompute))
    return _forward(generators, states, forward), again


_latest: weakref.WeakValueDictionary[torch.device, torch.Tensor] = weakref.WeakValueDictionary()


def _state_of(generator: RandomSource) -> Any:
    """The generator's state; the same tensor as before if nothing was drawn since: a CPU's takes 5 KB."""
    state = generator.get_state()
    if not isinstance(generator, torch.Generator) or not _is_default(generator):
        return state
    with no_dispatch():
        before = _latest.get(generator.device)
        if before is not None and torch.equal(before, state):
            return before
    _latest[generator.device] = state
    return state


def _is_default(generator: torch.Generator) -> bool:
    if generator.device.type == "cuda":
        return generator is torch.cuda.default_generators[generator.device.index]
    return generator is torch.default_generator


@contextlib.contextmanager
def _forward(generators: Sequence[RandomSource], states: list[Any], inner: Context) -> Generator[None, None, None]:
    states[:] = [_state_of(generator) for generator in generators]
    with inner:
        yield


@contextlib.contextmanager
def _recompute(generators: Sequence[RandomSource], states: list[Any], inner: Context) -> Generator[None, None, None]:
    surrounding = [generator.get_state() for generator in generators]
    for generator, state in zip(generators, states, strict=True):
        generator.set_state(state)
    try:
        with inner:
            yield
    finally:
        # Draws after the backward pass must not depend on what was recomputed in it.
        for generator, state in zip(generators, surrounding, strict=True):
            generator.set_state(state)


class Repeated(contextlib.AbstractContextManager[None]):
    """A context made anew whenever it is entered: with ``retain_graph`` a region may be recomputed twice."""

    def __init__(self, make: Callable[[], Context]) -> None:
        self._make = make

    def __enter__(self) -> None:
        self._entered = self._make()
        self._entered.__enter__()

    def __exit__(self, *exception: Any) -> bool | None:
        return self._entered.__exit__(*exception)
