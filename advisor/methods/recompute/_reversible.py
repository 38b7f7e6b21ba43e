"""Residual blocks with a momentum, whose backward pass computes their inputs from their outputs.

A residual block computes ``x + f(x)``. With a velocity ``v`` it becomes

    v' = momentum * v + (1 - momentum) * f(x) x' = x + v'

which is inverted without inverting ``f``: ``x = x' - v'``, ``v = (v' - (1 - momentum) * f(x)) / momentum``. So a run of
blocks keeps only its last ``x`` and ``v``. On the way back rounding errors grow by ``1 / momentum`` per block, and by
more where ``f`` is steep, so both are kept again, as anchors, after every 16 blocks. The start of a run, where the
velocity was zero, shows what was lost.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.autograd.function import once_differentiable

from advisor.errors import MethodRefusedError
from advisor.training.block_call import BlockCall
from advisor.training.random_state import ContextPair, default_generators
from advisor.training.recompute import region_contexts

__all__ = ["MomentumRunner"]

_BLOCKS_PER_ANCHOR = 16
"""At a momentum of 0.9, errors grow 5-fold over 16 blocks, and two activations are little beside what these keep."""


class MomentumRunner:
    """Runs a segment of a chain with a momentum, wherever a block returns the shape that it is given.

    Other blocks run as before, and after them the velocity is zero again. Their first call shows which ones they are,
    at the cost of one more forward pass of each. ``momentum`` is the share of the velocity that stays.

    Attributes:
        reversible: Number of blocks that ran with a momentum in the last forward pass.
        lost: For each run of the last backward pass, the velocity at its start, which should be zero, relative to the
            position.
    """

    def __init__(self, model: nn.Module, momentum: float) -> None:
        assert 0.0 < momentum < 1.0, momentum
        self.reversible = 0
        self._momentum = momentum
        self.lost: list[torch.Tensor] = []
        self._generators = default_generators(model)
        self._contexts: dict[int, Callable[[], ContextPair]] = {}
        self._keeps_shape: dict[int, bool] = {}

    def __call__(self, blocks: Sequence[nn.Module], hidden: torch.Tensor, call: BlockCall) -> torch.Tensor:
        self.reversible = 0
        self.lost = []
        run: _Run | None = None
        for number, block in enumerate(blocks):
            if self._keeps_shape.get(number, True):
                run = run or _Run(hidden, self._momentum, self.lost)
                if number not in self._contexts:
                    self._contexts[number] = region_contexts([block], self._generators)
                step = _Step(run, block, call, self._contexts[number]())
                output = step.first_output(run.position)
                keeps_shape = output.shape == run.position.shape
                if self._keeps_shape.setdefault(number, keeps_shape) != keeps_shape:
                    raise MethodRefusedError(
                        f"a block must return the shape it is given in every pass or in none, but block {number} "
                        f"returned {tuple(output.shape)} for {tuple(run.position.shape)}, and at first the same shape"
                    )
                if keeps_shape:
                    run.advance(step, output)
                    self.reversible += 1
                    if run.length % _BLOCKS_PER_ANCHOR == 0:
                        run.drop_anchor()
                    continue
                hidden, run = run.end(), None
                if not torch.is_grad_enabled():
                    hidden = output
                    continue
                with step.recompute:
                    hidden = call.run(block, hidden)
            else:
                hidden = call.run(block, hidden if run is None else run.end())
                run = None
        return hidden if run is None else run.end()


class _Reached:
    """Position and velocity at the block that the backward pass of a run has reached.

    Apart from the run, which must not outlive its forward pass.
    """

    def __init__(self, lost: list[torch.Tensor]) -> None:
        self.state: tuple[torch.Tensor, torch.Tensor] | None = None
        self._lost = lost

    def advance(self, position: torch.Tensor, velocity: torch.Tensor, *, is_start: bool) -> None:
        self.state = None if is_start else (position, velocity)
        if is_start:
            self._lost.append(velocity.norm() / position.norm())


class _Run:
    """Consecutive blocks with one velocity. Position and velocity have 32 bits even where blocks compute with fewer."""

    def __init__(self, hidden: torch.Tensor, momentum: float, lost: list[torch.Tensor]) -> None:
        self.position = hidden.to(torch.promote_types(hidden.dtype, torch.float32))
        self.velocity = torch.zeros_like(self.position)
        self.length = 0
        self.dtype = hidden.dtype
        self.momentum = momentum
        self.reached = _Reached(lost)

    def advance(self, step: _Step, output: torch.Tensor) -> None:
        step.output = output
        pair = _Momentum.apply(step, self.position, self.velocity, *step.tensors)  # type: ignore[no-untyped-call]
        self.position, self.velocity = pair
        self.length += 1

    def drop_anchor(self) -> None:
        """Keep position and velocity for the backward pass as they are here."""
        pair = _Anchor.apply(self.reached, self.position, self.velocity)  # type: ignore[no-untyped-call]
        self.position, self.velocity = pair

    def end(self) -> torch.Tensor:
        if self.length:
            self.drop_anchor()
        return self.position.to(self.dtype)


class _Step:
    """One call of one block in a run, and all that it takes to repeat it; ``tensors`` get a gradient from it."""

    def __init__(self, run: _Run, block: nn.Module, call: BlockCall, contexts: ContextPair) -> None:
        self.momentum = run.momentum
        self.reached = run.reached
        self.is_first = run.length == 0
        self.tensors = [tensor for tensor in (*block.parameters(), *call.tensors()) if tensor.requires_grad]
        self.output: torch.Tensor | None = None
        self._forward, self.recompute = contexts
        self._block = block
        self._call = call
        self._dtype = run.dtype
        device = run.position.device.type
        enabled, dtype = torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)
        self._autocast = functools.partial(torch.autocast, device, dtype=dtype, enabled=enabled)

    def first_output(self, position: torch.Tensor) -> torch.Tensor:
        recorded = self._forward if torch.is_grad_enabled() else contextlib.nullcontext()
        # A weight that autocast converts without a gradient must not be used again where one is needed.
        with torch.no_grad(), self._autocast(cache_enabled=False), recorded:
            return self._call.run(self._block, position.to(self._dtype, copy=True))

    def second_output(self, position: torch.Tensor, *, needs_gradient: bool) -> tuple[torch.Tensor, torch.Tensor]:
        with torch.enable_grad(), self._autocast(), self.recompute:
            given = position.to(self._dtype, copy=True).requires_grad_(needs_gradient)
            # Blocks may write to their input, but not to a leaf.
            return given, self._call.run(self._block, given.clone())


class _Momentum(torch.autograd.Function):
    """One block with a momentum. Keeps no activation: its backward pass goes on from what the next one reached."""

    @staticmethod
    def forward(
        ctx: Any, step: _Step, position: torch.Tensor, velocity: torch.Tensor, *tensors: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        ctx.step = step
        assert step.output is not None, "the block was called"
        change = step.output.to(position.dtype) - position
        step.output = None
        velocity = step.momentum * velocity + (1.0 - step.momentum) * change
        return position + velocity, velocity

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, to_position: torch.Tensor, to_velocity: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        step: _Step = ctx.step
        assert step.reached.state is not None, "the backward pass comes from the next block, or from an anchor"
        position, velocity = step.reached.state
        position = position - velocity
        given, output = step.second_output(position, needs_gradient=ctx.needs_input_grad[1])
        change = output.detach().to(position.dtype) - position
        before = (velocity - (1.0 - step.momentum) * change) / step.momentum
        step.reached.advance(position, before, is_start=step.is_first)
        # The new position is the old one plus the new velocity.
        to_velocity = to_velocity + to_position
        to_change = (1.0 - step.momentum) * to_velocity
        wanted = [tensor for tensor in (given, *step.tensors) if tensor.requires_grad]
        found = iter(torch.autograd.grad(output, wanted, to_change.to(output.dtype), allow_unused=True))
        if given.requires_grad:
            to_position = to_position - to_change
            through_block = next(found)
            if through_block is not None:
                to_position = to_position + through_block
        return None, to_position, step.momentum * to_velocity, *found


class _Anchor(torch.autograd.Function):
    """Passes position and velocity on, and keeps them for the backward pass."""

    @staticmethod
    def forward(
        ctx: Any, reached: _Reached, position: torch.Tensor, velocity: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        ctx.reached = reached
        ctx.save_for_backward(position, velocity)
        return position.view_as(position), velocity.view_as(velocity)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, to_position: torch.Tensor, to_velocity: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        ctx.reached.state = ctx.saved_tensors
        return None, to_position, to_velocity
