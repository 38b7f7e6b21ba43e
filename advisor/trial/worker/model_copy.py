"""A copy of the model as built, from which later trials of the same process start.

Building a large model takes seconds, most of them for random numbers, and a worker with an open GPU cannot fork its
trials from a process that has built it. A pickled model is loaded at the speed of memory. Unlike a deep copy, pickling
refuses lambdas and local functions, which would go on using the modules of the first model.
"""

from __future__ import annotations

import gc
import io
import random
import sys
import time
import types
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import psutil
import torch
from torch.nn.parameter import is_lazy

from advisor.measure.batches.batches import seed_everything
from advisor.trial.spec import CountTrial, PredictTrial, Trial

__all__ = ["ModelCopy"]

_WORTH_SECONDS = 0.2
"""Models that are built sooner are built again."""

_MOST_OF_MEMORY = 1 / 8
"""Fraction of the available host memory that the copies of all ranks may take."""

_OWN_PICKLING = ("__getstate__", "__setstate__", "__reduce__", "__reduce_ex__")
"""Methods by which a class decides what a pickled object keeps."""


class _Bounded(io.BytesIO):
    """A buffer that takes so many bytes.

    Raises:
        MemoryError: More are written.
    """

    def __init__(self, most_bytes: float) -> None:
        super().__init__()
        self._most_bytes = most_bytes

    def write(self, data: Any, /) -> int:
        if self.tell() + memoryview(data).nbytes > self._most_bytes:
            raise MemoryError(f"more than {self._most_bytes:.0f} bytes")
        return super().write(data)


class _Held(msgspec.Struct, frozen=True):
    """A pickled model, and what must be true of what is loaded from it.

    Attributes:
        seconds: Time that building took.
        built: The modules and tensors of the model that was pickled.
        generators: States of the generators after building: methods may draw their own parameters from them.
    """

    pickled: io.BytesIO
    seconds: float
    built: tuple[weakref.ref[Any], ...]
    structure: tuple[Any, ...]
    generators: tuple[Any, ...]


class ModelCopy:
    """Builds the model of a trial, or loads it if an earlier trial of this process has built the same."""

    def __init__(self) -> None:
        self._key: object = None
        self._held: _Held | None = None

    @property
    def held_bytes(self) -> int:
        """Bytes of host memory that the copy takes."""
        return 0 if self._held is None else self._held.pickled.getbuffer().nbytes

    def model(self, spec: Trial[Any], build: Callable[[], torch.nn.Module]) -> torch.nn.Module:
        """The model of a trial, the same every time, with all generators as they are after building it.

        Raises:
            Exception: What building it raises.
        """
        if isinstance(spec, PredictTrial | CountTrial):  # they build on fake tensors
            seed_everything(spec.seed)
            return build()
        key = (spec.workload.fingerprint, spec.seed, tuple(spec.model_size.items()))
        if self._held is not None and self._key == key and not _is_in_use(self._held):
            model = self._loaded(self._held, spec.seed)
            if model is not None:
                return model
        seed_everything(spec.seed)
        begin = time.perf_counter()
        model = build()
        seconds = time.perf_counter() - begin
        if self._key != key:
            self._key, self._held = key, None
            if seconds >= _WORTH_SECONDS:
                self._held = _held(model, seconds, spec.policy.gpu_count)
        return model

    def _loaded(self, held: _Held, seed: int) -> torch.nn.Module | None:
        """The model; ``None`` if it cannot be loaded as it was, or not sooner than it is built."""
        begin = time.perf_counter()
        try:
            held.pickled.seek(0)
            model: torch.nn.Module = torch.load(held.pickled, weights_only=False)
            same = _structure(model) == held.structure
        except Exception:  # the user's classes decide what is pickled
            same = False
        if not same:
            self._held = None
            return None
        if time.perf_counter() - begin > held.seconds:
            self._held = None
        seed_everything(seed)
        _set_generators(held.generators)
        return model


def _held(model: torch.nn.Module, seconds: float, ranks: int) -> _Held | None:
    """The model pickled, with all that it refers to; ``None`` if it cannot be, or is too large. No number is drawn."""
    pickled = _Bounded(_MOST_OF_MEMORY * psutil.virtual_memory().available / ranks)
    generators = _generators()
    try:
        if not _allows_copies(model):
            return None
        torch.save(model, pickled)
        built = tuple(map(weakref.ref, (*model.modules(), *model.parameters(), *model.buffers())))
        return _Held(pickled, seconds, built, _structure(model), generators)
    except Exception:  # lambdas, open files, weak references, sparse buffers, whatever else the user's model holds
        return None
    finally:
        _set_generators(generators)


def _is_in_use(held: _Held) -> bool:
    """Whether anything refers to the model that was pickled, so that the user's code may use it and not the copy."""
    if any(one() is not None for one in held.built):
        gc.collect()
    return any(one() is not None for one in held.built)


def _allows_copies(model: torch.nn.Module) -> bool:
    """Whether a copy would do the same as the model, as far as can be seen without one."""
    tensors = [*model.parameters(), *model.buffers()]
    if any(is_lazy(tensor) or tensor.device.type != "cpu" for tensor in tensors):
        return False
    modules = list(model.modules())
    if any(_pickles_itself(type(module)) for module in modules):
        return False
    identities = {id(one) for one in (*tensors, *modules)}
    return not any(_means_this_one(value, identities) for module in modules for value in _values_in(vars(module)))


def _pickles_itself(kind: type) -> bool:
    """Whether a class of the user's decides what is pickled: it may leave out what it needs."""
    return any(
        name in vars(base)
        for base in kind.__mro__
        if base is not object and base.__module__.partition(".")[0] != "torch"
        for name in _OWN_PICKLING
    )


def _values_in(attributes: dict[str, Any]) -> Iterator[Any]:
    """The attributes of a module, and what its containers hold."""
    for value in attributes.values():
        yield value
        if isinstance(value, dict | set | frozenset | list | tuple):
            yield from value
        if isinstance(value, dict):
            yield from value.values()


def _means_this_one(value: Any, identities: set[int]) -> bool:
    """Whether a value would mean something else in a copy, although it can be pickled.

    That is the ``id`` of a part of the model; an object that only ``is`` tells from others; and a method that was put
    into an object in place of its own, because methods are pickled by their name.
    """
    if type(value) is int:
        return value in identities
    if isinstance(value, types.MethodType):
        return getattr(type(value.__self__), value.__name__, None) is not value.__func__
    return type(value) is object


def _structure(model: torch.nn.Module) -> tuple[Any, ...]:
    """Modules, parameters and buffers: names, kinds, layout, and who shares memory with whom."""
    modules = [(name, type(one), one.training) for name, one in model.named_modules(remove_duplicate=False)]
    order: dict[int, int] = {}
    tensors = []
    for named in (model.named_parameters, model.named_buffers):
        for name, one in named(remove_duplicate=False):
            storage = order.setdefault(one.untyped_storage()._cdata, len(order))
            layout = (one.shape, one.dtype, one.stride(), one.storage_offset(), one.requires_grad)
            tensors.append((name, type(one), *layout, storage))
    return (*modules, *tensors)


def _generators() -> tuple[Any, ...]:
    """Their states; torch's as bytes, because a tensor would count as memory of the trial that builds."""
    numpy = sys.modules.get("numpy")
    of_torch = bytes(torch.get_rng_state().tolist())
    return of_torch, random.getstate(), None if numpy is None else numpy.random.get_state()


def _set_generators(states: tuple[Any, ...]) -> None:
    of_torch, of_python, of_numpy = states
    torch.set_rng_state(torch.tensor(list(of_torch), dtype=torch.uint8))
    random.setstate(of_python)
    if of_numpy is not None:
        sys.modules["numpy"].random.set_state(of_numpy)
