"""Training: a model with its loss and optimizer, as changed by the applied methods.

The same class runs in trials and in the user's own training, so the measured code is the code that ships. Methods
change its :class:`~advisor.training.hooks.Hooks`; :meth:`Training.step` does not know which.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

import torch

from advisor.errors import MethodRefusedError
from advisor.phase import Phase
from advisor.training.batch import tree as batches
from advisor.training.batch.class_weights import check_weights
from advisor.training.batch.micro_batch_weights import MicroBatchWeights
from advisor.training.contexts import entered, evaluation_mode
from advisor.training.hooks import Hooks
from advisor.training.loss import default_loss, is_causal_loss, require_trainable
from advisor.training.moving import on_device
from advisor.training.optimizer.fused_step import hooks_of_the_user
from advisor.training.optimizer.replaced_optimizers import ReplacedOptimizers
from advisor.training.optimizer.workload_optimizer import built_optimizer, step_without_closure, stepped_parameters
from advisor.training.processes.cut import clip_across_cuts, share_overflow
from advisor.training.processes.world import World
from advisor.training.state import TrainingState
from advisor.workload.batch_layout import SampleDims
from advisor.workload.reduction import Reduction

__all__ = ["LinearHead", "Phase", "Training"]

ComputeLoss = Callable[[torch.nn.Module, Any], torch.Tensor]
_T = TypeVar("_T")
LinearHead = Callable[[torch.nn.Module, Any], tuple[torch.Tensor, torch.Tensor, torch.Tensor | None, torch.Tensor]]
"""``(model, batch) -> (hidden, weight, bias or None, targets)``: the loss is the cross entropy of that linear layer."""


class Training(Hooks):
    """A model ready to be trained, one batch at a time.

    Twelve methods are for users: a step, and its parts for a custom loop. Five more are for methods and adapters.

    Args:
        model: The model; moved to ``device`` in place. If the whole model is in evaluation mode it is set to training.
        device: Where to train.
        compute_loss: ``(model, batch) -> scalar tensor``, a mean over its targets; default: what the model returns.
        build_optimizer: ``(parameters) -> Optimizer``; default: AdamW.
        count_targets: ``(batch) -> number`` of targets that the loss averages over; weighs micro-batches.
        linear_head: Exposes the loss as a linear layer and its inputs, so that it can be computed in chunks.
        max_grad_norm: Clip the gradients to this total norm before each optimizer step.
        blocks: Classes of the repeated blocks, when they cannot be found.
        micro_batch: Samples per forward pass; a larger batch is split and its gradients are accumulated.
        reduction: How the loss of a batch follows from those of its micro-batches; default: a mean over the labels of
            text that are not -100, otherwise over samples.
        sample_dims: Dimensions that hold the samples (:data:`~advisor.workload.batch_layout.SampleDims`); default:
            dimension 0 of every tensor.
        world: The processes that train together; default: this one alone. Along the data axis each gets its own share
            of the batch, with equally many samples.
        example_batch: A small batch, for methods that must see the model run before they are applied.

    Attributes:
        optimizer: The optimizer; built on first access, so that it sees the parameters as methods left them.
        micro_batch_weights: The weight of each micro-batch in the loss of the whole batch.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        *,
        device: str | torch.device = "cpu",
        compute_loss: ComputeLoss | None = None,
        build_optimizer: Callable[[Iterable[torch.nn.Parameter]], torch.optim.Optimizer] | None = None,
        count_targets: Callable[[Any], float | torch.Tensor] | None = None,
        linear_head: LinearHead | None = None,
        max_grad_norm: float | None = None,
        blocks: tuple[type, ...] = (),
        micro_batch: int | None = None,
        sample_dims: SampleDims | None = None,
        reduction: Reduction | None = None,
        world: World | None = None,
        example_batch: Any = None,
    ) -> None:
        super().__init__()
        self.device = torch.device(device)
        self.world = world or World()
        self._placed = self.world.mesh.model_degree == 1  # One that is to be divided may not fit on a device.
        self.model = on_device(model, self.device) if self._placed else model
        self.compute_loss: ComputeLoss = compute_loss or default_loss
        self.linear_head = linear_head
        self.max_grad_norm = max_grad_norm
        self.blocks = blocks
        self.example_batch = example_batch
        self.micro_batch = micro_batch
        self.sample_dims = sample_dims
        self.reduction = reduction
        self._unchecked_weights = () if reduction is None else reduction.class_weights
        self._replaced = ReplacedOptimizers()
        self.micro_batch_weights = MicroBatchWeights(
            reduction,
            sample_dims,
            count_targets,
            # Decided now: a method may replace the loss by an equal one whose targets are counted the same way.
            causal=compute_loss is None and is_causal_loss(model),
            world=self.world.data,
        )
        self._build_optimizer = build_optimizer
        self._optimizer: torch.optim.Optimizer | None = None
        self._closing = contextlib.ExitStack()
        self._unscaled = False
        if not model.training:
            model.train()
            self.notes.append("the model came in evaluation mode; it was set to training mode")

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        """The optimizer over the trainable parameters."""
        if self._optimizer is None:
            self.optimizer = built_optimizer(self.model, self._build_optimizer or torch.optim.AdamW)
        assert self._optimizer is not None
        return self._optimizer

    @optimizer.setter
    def optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        if self._optimizer is not None and self._optimizer is not optimizer:
            self._replaced.add(self._optimizer, by=optimizer)
        for change in self.change_optimizer:
            change(optimizer)
        self._optimizer = optimizer

    def place(self) -> None:
        """Move the model to the device, once what divides it among devices has left this one its part."""
        if not self._placed:
            self._placed = True
            self.model = on_device(self.model, self.device)

    def complete(self) -> None:
        """Build the optimizer now, so that the first step has no set-up left to do."""
        assert self.optimizer is not None

    def step(self, batch: Any) -> torch.Tensor:
        """One optimizer step on a batch, in as many micro-batches as it needs.

        Args:
            batch: A batch as ``make_batch`` returns it, of any size; with several processes, this one's share.

        Returns:
            The loss of the whole batch (detached, zero-dimensional, on the device): the mean over all its targets.
            With several processes, the mean of these losses is the loss of the shared batch.

        Raises:
            MethodRefusedError: The batch needs several micro-batches, which an applied method does not allow.
            WorkloadError: The batch cannot be cut, or a process's share of it has no target.
        """
        micro_batches = self.split(batch)
        total = self._one_by_one(micro_batches) if self.run_passes is None else self.run_passes(micro_batches)
        self.optimizer_step()
        return total

    def _one_by_one(self, micro_batches: list[Any]) -> torch.Tensor:
        """A forward and a backward pass of each micro-batch; returns their loss."""
        total: torch.Tensor | None = None
        for number, micro_batch in enumerate(micro_batches, start=1):
            last = number == len(micro_batches)
            with contextlib.nullcontext() if last else self.accumulating():
                loss = self.forward(micro_batch)
                self.backward(loss)
            total = loss.detach() if total is None else total + loss.detach()
        assert total is not None, "a batch has at least one micro-batch"
        return total

    def accumulating(self) -> contextlib.AbstractContextManager[None]:
        """Context for all but the last forward and backward pass before ``optimizer_step`` in a custom loop.

        Gradients are then averaged between processes once, in the last pass. Without it they are averaged in every
        pass, with the same result.
        """
        return self.distribution.accumulating()

    def evaluate(self, function: Callable[[torch.nn.Module], _T]) -> _T:
        """``function(model)`` in evaluation mode and without gradients; every process must call it.

        Where parameters are sharded, the model can only be called this way outside of a step. Contexts that methods put
        around a step's forward pass, such as autocast, are not entered.
        """
        for cut in reversed(self.cuts):
            function = cut.evaluation(function)
        with evaluation_mode(self.model), torch.no_grad():
            return self.distribution.call(self.model, function)

    def split(self, batch: Any) -> list[Any]:
        """Split the batch into as few micro-batches as possible, equal up to one sample.

        :meth:`forward` scales the loss of each to its share: their losses add up to that of the whole batch, and their
        gradients to its gradient. This holds until the next split or optimizer step.

        Raises:
            MethodRefusedError: It needs several micro-batches, which an applied method does not allow.
            WorkloadError: It cannot be cut, or a process's share of it has no target.
        """
        self.micro_batch_weights.end()
        size = self.micro_batch
        micro_batches = [batch] if size is None else batches.split(batch, size, self.sample_dims)
        if len(micro_batches) == 1 and self.world.data.size == 1:
            return micro_batches
        if len(micro_batches) > 1 and not self.accumulates:
            raise MethodRefusedError(
                f"a batch of {batches.sample_count(batch, self.sample_dims)} samples needs {len(micro_batches)} "
                f"micro-batches of {size}, but an applied method needs the whole gradient in one backward "
                "pass; give batches of at most micro_batch samples"
            )
        micro_batches = self.micro_batch_weights.begin(micro_batches)
        self.check_class_weights()
        return micro_batches

    def check_class_weights(self) -> None:
        """Have the next forward pass check the weights of classes that micro-batches are weighed by, once."""
        if self._unchecked_weights:
            check_weights(self._unchecked_weights, self.forward_contexts, self.before_gradients_are_used)
            self._unchecked_weights = ()

    def forward(self, batch: Any) -> torch.Tensor:
        """Move a micro-batch to the device and compute its loss, scaled to its share if it comes from :meth:`split`.

        Raises:
            MethodRefusedError: An applied method runs the passes of a step in another order.
            WorkloadError: The loss is not a scalar tensor with a gradient.
        """
        self._require_own_passes()
        if self.phase_listener is not None:
            self.phase_listener(Phase.FORWARD)
        moved = batches.move(batch, self.device)
        with self.own_call, entered(self.forward_contexts):
            loss = require_trainable(self.distribution.loss(self.model, self.compute_loss, moved))
        for callback in self.after_forward:
            callback(loss)
        return self.micro_batch_weights.apply(loss, batch)

    def backward(self, loss: torch.Tensor) -> None:
        """Add the gradients of ``loss`` (scaled, under float16) to those of the parameters."""
        self._require_own_passes()
        if self.phase_listener is not None:
            self.phase_listener(Phase.BACKWARD)
        if self.gradient_scaler is not None:
            loss = self.gradient_scaler.scale(loss)
        loss.backward()  # type: ignore[no-untyped-call]
        self.distribution.after_backward()

    def _require_own_passes(self) -> None:
        if self.run_passes is not None:
            raise MethodRefusedError(
                "forward and backward passes cannot be called apart, because an applied method runs those of all "
                "micro-batches of a step in an order of its own; call training.step(batch), and "
                "training.evaluate(function) for anything else"
            )

    def optimizer_step(self) -> None:
        """Update the parameters from their gradients, then drop the gradients."""
        if self.phase_listener is not None:
            self.phase_listener(Phase.OPTIMIZER)
        self.complete_gradients()
        if not self.steps_in_backward:
            if self.max_grad_norm is not None:
                self.clip_grad_norm(self.max_grad_norm)
            if self.gradient_scaler is not None:
                if self.cuts or hooks_of_the_user(self.optimizer):  # A fused step unscales after hooks, which may clip.
                    self._unscale()
                    share_overflow(self.gradient_scaler, self.optimizer, self.cuts)
                self.gradient_scaler.step(self.optimizer)
                self.gradient_scaler.update()
                self._unscaled = False
            else:
                step_without_closure(self.optimizer)
            self.optimizer.zero_grad(set_to_none=True)
        self.distribution.after_step()
        self.micro_batch_weights.end()
        for callback in list(self.after_step):  # One may remove itself.
            callback()
        if self.phase_listener is not None:
            self.phase_listener(Phase.IDLE)

    def complete_gradients(self) -> None:
        """Sum all gradients of the step and put them where the optimizer reads them; a second call does nothing."""
        for cut in self.cuts:
            cut.complete_gradients()
        self.distribution.complete_gradients()
        for callback in list(self.before_gradients_are_used):  # One may remove itself.
            callback()

    def clip_grad_norm(self, max_norm: float) -> torch.Tensor:
        """Clip the gradients to a total norm; for custom loops, between backward and optimizer step.

        Args:
            max_norm: Largest total 2-norm.

        Returns:
            The total norm before clipping, in true (unscaled) units.

        Raises:
            MethodRefusedError: The gradients are already gone, because the optimizer runs in the backward pass.
        """
        if self.steps_in_backward:
            raise MethodRefusedError(
                "clipping needs all gradients at once, but the optimizer runs in the backward pass and each gradient "
                "is gone once used; remove optimizer_in_backward from the policy"
            )
        self.complete_gradients()
        self._unscale()
        parameters = stepped_parameters(self.optimizer, self.model)
        if self.cuts:
            factor = None if self.gradient_factor is None else self.gradient_factor()
            return clip_across_cuts(parameters, max_norm, self.cuts, factor)
        return (self.clip_gradients or self.distribution.clip_grad_norm)(parameters, max_norm)

    def _unscale(self) -> None:
        if self.gradient_scaler is not None and not self._unscaled:
            self.gradient_scaler.unscale_(self.optimizer)
            self._unscaled = True

    def state_dict(self, *, model: bool = True, optimizer: bool = True) -> dict[str, Any]:
        """``{"model", "optimizer"}`` and ``"scaler"`` under float16, as a plain model and optimizer load them.

        Methods with further state add an entry each (:attr:`state_parts`). What is ``False`` is left out.
        With several processes, each must call it: rank 0 gets the complete state, the others empty dictionaries.
        """
        return self._state().save(self.world, model=model, optimizer=optimizer)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what :meth:`state_dict` returned, from this or another policy with the same optimizer.

        Or its optimizer alone, or all but that. With several processes, each must be given what rank 0 got. The state
        of another kind of optimizer, or of other parameters, is refused.
        """
        self._state().load(state)
        self._replaced.share_groups(self.optimizer)  # Loading gives an optimizer new ones.

    def _state(self) -> TrainingState:
        return TrainingState(
            self.model, self.optimizer, self.distribution, self.cuts, self.gradient_scaler, self.state_parts
        )

    def on_close(self, callback: Callable[[], None]) -> None:
        """Register ``callback`` to undo a change outside the training (a process-wide flag) on :meth:`close`."""
        self._closing.callback(callback)

    def close(self) -> None:
        """Undo the process-wide settings of the applied methods, last first; a second call does nothing."""
        self._closing.close()
