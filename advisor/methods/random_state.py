"""Recomputing with the random numbers of the forward pass, whichever way a module gets its inputs.

torch's checkpointing keeps the random state of the CUDA devices of *positional* tensor arguments only. Most blocks of
transformers call their attention by keyword (``self_attn(hidden_states=...)``): recomputed, it would draw other
dropout masks, and the gradients would be wrong without any sign of it.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._mode_utils import no_dispatch

if TYPE_CHECKING:
    from advisor.methods.recompute import ContextPair

__all__ = ["DRAWN_BETWEEN", "cuda_generators", "default_generators", "drawn_so_far", "replaying"]

DRAWN_BETWEEN = (
    "the model draws random numbers between its blocks, and its blocks draw some too: run together, they would draw "
    "other ones than one by one"
)
"""Why blocks are no chain although each is called on what the one before returned."""


def drawn_so_far(device: torch.device) -> bytes:
    """Where the default generator of a device stands: another value once something was drawn. Waits for nothing."""
    generator = torch.default_generator
    if device.type == "cuda":
        index = torch.cuda.current_device() if device.index is None else device.index
        generator = torch.cuda.default_generators[index]
    with no_dispatch():  # The state is no tensor of the training: modes that make fake ones of those must not see it.
        return bytes(generator.get_state().numpy())


def cuda_generators(model: torch.nn.Module) -> list[torch.Generator]:
    """The default generators of the CUDA devices that hold the model; empty on other devices."""
    indices = {parameter.device.index for parameter in model.parameters() if parameter.device.type == "cuda"}
    return [torch.cuda.default_generators[index] for index in sorted(indices)]


def default_generators(model: torch.nn.Module) -> list[torch.Generator]:
    """Those of the CPU and of the CUDA devices that hold the model."""
    return [torch.default_generator, *cuda_generators(model)]


def replaying(generators: Sequence[torch.Generator], inner: ContextPair) -> ContextPair:
    """Contexts of one region in which the recomputation draws what the forward pass drew.

    Args:
        generators: Whose states to keep; reading or setting one does not wait for the device.
        inner: Contexts to enter inside of these.
    """
    states: list[torch.Tensor] = []
    forward, recompute = inner
    return _forward(generators, states, forward), _Recompute(generators, states, recompute)


_latest: weakref.WeakValueDictionary[torch.device, torch.Tensor] = weakref.WeakValueDictionary()


def _state_of(generator: torch.Generator) -> torch.Tensor:
    """The generator's state; the same tensor as before if nothing was drawn since: a CPU's takes 5 KB."""
    state = generator.get_state()
    with no_dispatch():
        before = _latest.get(generator.device)
        if before is not None and torch.equal(before, state):
            return before
    _latest[generator.device] = state
    return state


@contextlib.contextmanager
def _forward(
    generators: Sequence[torch.Generator], states: list[torch.Tensor], inner: contextlib.AbstractContextManager[Any]
) -> Generator[None, None, None]:
    states[:] = [_state_of(generator) for generator in generators]
    with inner:
        yield


class _Recompute(contextlib.AbstractContextManager[None]):
    """Around a recomputation. Can be entered again: with ``retain_graph`` a region may be recomputed twice."""

    def __init__(
        self,
        generators: Sequence[torch.Generator],
        states: list[torch.Tensor],
        inner: contextlib.AbstractContextManager[Any],
    ) -> None:
        self._generators = generators
        self._states = states
        self._inner = inner
        self._surrounding: list[torch.Tensor] = []

    def __enter__(self) -> None:
        self._surrounding = [generator.get_state() for generator in self._generators]
        for generator, state in zip(self._generators, self._states, strict=True):
            generator.set_state(state)
        self._inner.__enter__()

    def __exit__(self, *exception: Any) -> bool | None:
        try:
            return self._inner.__exit__(*exception)
        finally:
            # What is drawn after the backward pass must not depend on what was recomputed in it.
            for generator, state in zip(self._generators, self._surrounding, strict=True):
                generator.set_state(state)
