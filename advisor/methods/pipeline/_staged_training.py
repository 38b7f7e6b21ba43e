"""A training whose model is in stages: its passes, its evaluation and its state."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch.distributed.tensor import DTensor

from advisor.methods.pipeline._pipeline_parallel import PipelineParallel
from advisor.phase import Phase
from advisor.training.batch import tree as batches
from advisor.training.contexts import entered
from advisor.training.loss import require_trainable
from advisor.training.processes.cut import Cut, LeftPass
from advisor.training.training import Training

__all__ = ["StagedTraining"]

_T = TypeVar("_T")


class StagedTraining(Cut):
    """The pipeline axis of a training.

    Args:
        training: The training; its model is changed in place.
        blocks: The model's blocks.
        schedule: Name of the schedule.
        bounds: The first block of every stage, then the number of blocks; default: as many in each.
        settle: Called with the bounds that the measured times call for, after the first step.
    """

    def __init__(
        self,
        training: Training,
        blocks: Sequence[torch.nn.Module],
        *,
        schedule: str,
        bounds: Sequence[int] | None,
        settle: Callable[[tuple[int, ...]], None],
    ) -> None:
        world = training.world.pipeline
        super().__init__(world)
        assert world.device_group is not None, "there are several processes along the axis"
        self._pipeline = PipelineParallel(
            training.model,
            blocks,
            world.device_group,
            schedule=schedule,
            bounds=bounds,
            device=training.device,
            place="/".join(str(cut.world.rank) for cut in training.cuts if cut.draws_own),
        )
        # Weak, because a cycle would keep the model's memory until the next garbage collection.
        self._training = weakref.ref(training)
        self._settle = settle

    def run_passes(self, micro_batches: list[Any]) -> torch.Tensor:
        """The passes of a step, by the schedule; returns the loss of the batch."""
        training = self._training()
        assert training is not None, "a training runs its own passes"

        def begin(phase: Phase) -> None:
            if training.phase_listener is not None:
                training.phase_listener(phase)

        def compute(micro_batch: Any) -> torch.Tensor:
            begin(Phase.FORWARD)
            moved = batches.move(micro_batch, training.device)
            with entered(training.forward_contexts):
                try:
                    return training.distribution.loss(training.model, training.compute_loss, moved)
                except LeftPass as left:  # Inside of the contexts, for which the pass has not failed.
                    left.__traceback__ = None
                    hidden = left.hidden
            return hidden

        def finish(micro_batch: Any, value: torch.Tensor, is_last: bool) -> tuple[torch.Tensor, torch.Tensor]:
            if is_last:
                value = require_trainable(value)
            for callback in training.after_forward:
                callback(value)
            begin(Phase.BACKWARD)  # until the next forward pass
            if not is_last:
                return value, value
            share = training.micro_batch_weights.apply(value, micro_batch)
            scaled = share if training.gradient_scaler is None else training.gradient_scaler.scale(share)
            return scaled, share

        if training.gradient_scaler is not None:
            # It makes its factor when it scales a first loss, which only the last stage has.
            training.gradient_scaler.scale(torch.zeros((), device=training.device))
        loss = self._pipeline.step(
            micro_batches, compute, finish=finish, may_empty=_leaves_others_alone(training.optimizer)
        )
        training.distribution.after_backward()
        return loss

    def after_step(self) -> None:
        """Make the copies of tied weights the same again; after the first step, settle on where to cut the model."""
        self._pipeline.after_step()
        training = self._training()
        assert training is not None, "a training calls it"
        bounds = self._pipeline.measured_bounds(
            functools.partial(_held_bytes, training.optimizer), training.memory_limit_bytes
        )
        if bounds is not None:
            self._settle(bounds)

    def copies(self, parameter: torch.nn.Parameter) -> int:
        """How many stages compute with a parameter."""
        return self._pipeline.copies(parameter)

    def complete_gradients(self) -> None:
        """Sum the gradients of parameters that several stages compute with."""
        self._pipeline.complete_gradients()

    def evaluation(self, function: Callable[[torch.nn.Module], _T]) -> Callable[[torch.nn.Module], _T]:
        """Every call of the model runs through all stages."""
        return lambda model: self._pipeline.evaluate(function)

    def whole_model_state(self, state: dict[str, Any]) -> dict[str, Any]:
        """What all stages have, under plain names, on the first rank."""
        return self._pipeline.state.whole_model_state(state)

    def own_model_state(self, state: Mapping[str, Any]) -> Mapping[str, Any]:
        """What this rank's stages have of a whole state."""
        return self._pipeline.state.own_model_state(state)

    def whole_optimizer_state(self, state: dict[str, Any], optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        """The state of an optimizer over the whole model, on the first rank."""
        return self._pipeline.state.whole_optimizer_state(state, optimizer)

    def own_optimizer_state(self, state: Mapping[str, Any], optimizer: torch.optim.Optimizer) -> Mapping[str, Any]:
        """What this rank's optimizer has of it."""
        return self._pipeline.state.own_optimizer_state(state, optimizer)


def _held_bytes(optimizer: torch.optim.Optimizer, parameter: torch.nn.Parameter) -> int:
    """Bytes of a parameter's own part, its gradient and its optimizer state."""
    local = parameter.to_local() if isinstance(parameter, DTensor) else parameter
    state = torch.utils._pytree.tree_leaves(dict(optimizer.state.get(parameter, {})))
    kept = sum(
        (one.to_local() if isinstance(one, DTensor) else one).nbytes for one in state if isinstance(one, torch.Tensor)
    )
    return (1 + parameter.requires_grad) * local.nbytes + kept


def _leaves_others_alone(optimizer: torch.optim.Optimizer) -> bool:
    """Whether an optimizer does nothing with a parameter that has no gradient, nor keeps anything of it."""
    return type(optimizer).__module__.startswith("torch.optim") and not optimizer.state
