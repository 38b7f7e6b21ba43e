"""A copy of a model as built, from which later trials of the same process start.

A worker with an open GPU cannot fork its trials from a process that has built the model, and neither can a rank.
Building a large model takes seconds, most of them for random numbers; a pickled one is loaded at the speed of memory.

Only models that are built from a config are copied, by code of this package and of transformers alone. A user's
``build_model`` and classes may mean things that no copy has: hooks of parameters, objects shared with the module that
computes the loss, state that building resets. They are built for every trial.
"""

from __future__ import annotations

import io
import random
import sys
import time
from collections.abc import Callable
from typing import Any

import msgspec
import psutil
import torch

from advisor.trial.spec import CountTrial, PredictTrial, Trial
from advisor.workload.workload import WorkloadKind

__all__ = ["ModelCopy"]

_WORTH_SECONDS = 0.2
"""Models that are built sooner are built again."""

_MOST_OF_MEMORY = 1 / 8
"""Fraction of the available host memory that the copies of all ranks may take."""


class _Held(msgspec.Struct, frozen=True):
    """A pickled model, and what must be true of what is loaded from it.

    Attributes:
        seconds: Time that building took.
        generators: States of the generators after building: methods may draw their own parameters from them.
    """

    pickled: io.BytesIO
    seconds: float
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
        """The model of a trial, with all generators as they are after building it.

        Args:
            spec: The trial; generators are seeded as it says.
            build: Builds the model.

        Raises:
            Exception: What building it raises.
        """
        on_fake_tensors = isinstance(spec, PredictTrial | CountTrial)
        if on_fake_tensors or spec.workload.kind is not WorkloadKind.HUGGING_FACE:
            return build()
        key = (spec.workload.fingerprint, spec.seed, tuple(spec.model_size.items()))
        if self._held is not None and self._key == key and (model := self._loaded(self._held)) is not None:
            return model
        begin = time.perf_counter()
        model = build()
        seconds = time.perf_counter() - begin
        if self._key != key:
            self._key, self._held = key, None
            if seconds >= _WORTH_SECONDS:
                self._held = _held(model, seconds, spec.policy.gpu_count)
        return model

    def _loaded(self, held: _Held) -> torch.nn.Module | None:
        """The model; ``None`` if it is not what was built. A copy that loads no sooner than it is built is dropped."""
        begin, before = time.perf_counter(), _generators()
        held.pickled.seek(0)
        try:
            model: torch.nn.Module = torch.load(held.pickled, weights_only=False)
            same = _structure(model) == held.structure
        except Exception:  # a class that can be pickled need not be loaded
            same = False
        if not same or time.perf_counter() - begin > held.seconds:
            self._held = None
        _set_generators(held.generators if same else before)
        return model if same else None


def _held(model: torch.nn.Module, seconds: float, ranks: int) -> _Held | None:
    """The model pickled; ``None`` if it cannot be, as with parametrized weights, or is too large."""
    tensors = [*model.parameters(), *model.buffers()]
    size = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
    if ranks * size > _MOST_OF_MEMORY * psutil.virtual_memory().available:
        return None
    if any(tensor._backward_hooks for tensor in tensors):  # they are not pickled, and nothing says so
        return None
    pickled, generators = io.BytesIO(), _generators()
    try:
        torch.save(model, pickled)
        return _Held(pickled, seconds, _structure(model), generators)
    except Exception:  # closures, parametrizations and whatever else a class may hold
        return None
    finally:
        _set_generators(generators)


def _structure(model: torch.nn.Module) -> tuple[Any, ...]:
    """Modules, parameters and buffers: names, kinds, layout, and who shares memory with whom."""
    modules = [(name, type(one), one.training) for name, one in model.named_modules(remove_duplicate=False)]
    order: dict[int, int] = {}
    tensors = []
    for named in (model.named_parameters, model.named_buffers):
        for name, one in named(remove_duplicate=False):
            storage = order.setdefault(one.untyped_storage()._cdata, len(order))
            layout = (one.device, one.shape, one.dtype, one.stride(), one.storage_offset(), one.requires_grad)
            tensors.append((name, type(one), *layout, storage))
    return (*modules, *tensors)


def _generators() -> tuple[Any, ...]:
    """Their states; torch's as bytes, because a tensor would count as memory of the trial that builds."""
    numpy = sys.modules.get("numpy")
    of_torch = bytes(torch.get_rng_state().tolist())
    return of_torch, random.getstate(), None if numpy is None else numpy.random.get_state()


def _set_generators(states: tuple[Any, ...]) -> None:
    of_torch, of_python, of_numpy = states
    torch.set_rng_state(torch.frombuffer(bytearray(of_torch), dtype=torch.uint8))
    random.setstate(of_python)
    if of_numpy is not None:
        sys.modules["numpy"].random.set_state(of_numpy)
