"""What methods change in a training."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch

from advisor.phase import Phase
from advisor.training.processes.cut import Cut
from advisor.training.processes.distribution import Distribution
from advisor.training.saved.tensor_pipeline import SavedTensorPipeline
from advisor.training.state_part import StatePart

__all__ = ["Hooks"]


class Hooks:
    """The places where methods add to a training or replace parts of it.

    Attributes:
        model: The model.
        forward_contexts: Callables that return context managers; all are entered around every forward pass.
        after_forward: Callables that receive the loss of every forward pass.
        saved_tensors: The pipeline for tensors that autograd saves; created for the first method that needs it.
        gradient_scaler: Scales the loss for float16, or ``None``.
        notes: Messages from methods to the user.
        phase_listener: Called with every phase as it begins.
        accumulates: Whether gradients may be summed over micro-batches.
        steps_in_backward: Whether parameters are updated during the backward pass.
        before_gradients_are_used: Callables to run once the gradients of a step are complete, before they are clipped
            or used; they may run twice in a step.
        after_step: Callables to run at the end of every optimizer step.
        distribution: How the training is spread over the processes along the data axis.
        cuts: The axes that divide the model, in the order in which they divide a state of it.
        settling_steps: Optimizer steps until memory and time are stable.
        settled: Method -> what it settled on in those steps, in its own format. An entry that exists when the method is
            applied comes from an earlier training of the same policy; the method reuses it and needs no such steps.
        memory_limit_bytes: The most memory that this process may take on its device, if known: what divides a model
            keeps its parts below.
        works_in_chunks: Whether a method allocates chunks of a fixed size, which small batches do not fill: the memory
            of two small batches then says little about a large one.
        state_parts: Name -> what a method adds to the state.
        change_optimizer: Callables that change in place every optimizer put in use, by any method.
        run_passes: ``(micro-batches) -> loss`` of the whole batch; replaces one forward and one backward pass after the
            other, which then cannot be called apart.
        clip_gradients: ``(parameters, max_norm) -> norm``; replaces torch's clipping for gradients that it would clip
            wrongly.
        own_call: Entered around every forward pass; knows it from a direct call of the model.
        gradient_factor: Returns what gradients are to be multiplied by to get the true ones; ``None`` for one.
    """

    model: torch.nn.Module

    def __init__(self) -> None:
        self.forward_contexts: list[Callable[[], contextlib.AbstractContextManager[Any]]] = []
        self.after_forward: list[Callable[[torch.Tensor], None]] = []
        self.saved_tensors: SavedTensorPipeline | None = None
        self.gradient_scaler: torch.amp.GradScaler | None = None
        self.notes: list[str] = []
        self.phase_listener: Callable[[Phase], None] | None = None
        self.accumulates = True
        self.steps_in_backward = False
        self.before_gradients_are_used: list[Callable[[], None]] = []
        self.after_step: list[Callable[[], None]] = []
        self.distribution = Distribution()
        self.cuts: list[Cut] = []
        self.settling_steps = 0
        self.settled: dict[str, str] = {}
        self.memory_limit_bytes: int | None = None
        self.works_in_chunks = False
        self.state_parts: dict[str, StatePart] = {}
        self.change_optimizer: list[Callable[[torch.optim.Optimizer], None]] = []
        self.run_passes: Callable[[list[Any]], torch.Tensor] | None = None
        self.clip_gradients: Callable[[list[torch.nn.Parameter], float], torch.Tensor] | None = None
        self.own_call: contextlib.AbstractContextManager[Any] = contextlib.nullcontext()
        self.gradient_factor: Callable[[], torch.Tensor] | None = None

    def saved_tensor_pipeline(self) -> SavedTensorPipeline:
        """The pipeline for saved tensors; created on first use, and then entered around every forward pass."""
        if self.saved_tensors is None:
            self.saved_tensors = SavedTensorPipeline(lambda: self.model, self.notes)
            self.forward_contexts.append(self.saved_tensors.context)
            self.after_forward.append(self.saved_tensors.look_for_hidden)
        return self.saved_tensors
