"""Training: a model with its loss and optimizer, and everything that the applied methods changed.

The same object runs in trials and in the user's own training: what is measured is what ships. Methods fill in its
attributes; :meth:`Training.step` does not know which.
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
from advisor.training.distribution import Distribution
from advisor.training.loss import default_loss, is_causal_loss, require_trainable
from advisor.training.moving import on_device
from advisor.training.replaced_optimizers import ReplacedOptimizers
from advisor.training.saved.pipeline import SavedTensorPipeline
from advisor.training.state import TrainingState
from advisor.training.state_part import StatePart
from advisor.training.workload_optimizer import built_optimizer, step_without_closure
from advisor.training.world import World
from advisor.workload.batch_layout import SampleDims
from advisor.workload.reduction import Reduction

__all__ = ["LinearHead", "Phase", "Training"]

ComputeLoss = Callable[[torch.nn.Module, Any], torch.Tensor]
_T = TypeVar("_T")
LinearHead = Callable[[torch.nn.Module, Any], tuple[torch.Tensor, torch.Tensor, torch.Tensor | None, torch.Tensor]]
"""``(model, batch) -> (hidden, weight, bias or None, targets)``: the loss is the cross entropy of that linear layer."""


class Training:
    """A model ready to be trained, one batch at a time.

    Twelve methods are for whoever trains: a step, and its parts for a loop of one's own. Four more are for methods.

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
        reduction: How the loss of a batch follows from those of its micro-batches, where that was found out; by default
            it is a mean over the labels of text that are not -100, and else over samples.
        sample_dims: Where a batch has its samples (:data:`~advisor.workload.batch_layout.SampleDims`); by default in
            dimension 0 of its tensors.
        world: The processes that train together; default: this one alone. Each is given its own share of the batch,
            all shares with the same number of samples.

    Attributes:
        optimizer: The optimizer; built when first asked for, so that it sees the parameters as methods left them.
        forward_contexts: Callables that return context managers; all are entered around every forward pass.
        after_forward: Callables that are given the loss of every forward pass.
        saved_tensors: What becomes of the tensors that autograd saves; made by the first method that asks for it.
        gradient_scaler: Scales the loss for float16, or ``None``.
        notes: What methods want the user to know.
        micro_batch_weights: What each micro-batch counts in the loss of the whole batch.
        phase_listener: Called with every phase as it begins.
        accumulates: Whether gradients may be summed over micro-batches.
        steps_in_backward: Whether parameters are updated during the backward pass.
        before_gradients_are_used: Callables to run once the gradients of a step are complete, before they are clipped
            or used; they may run twice in a step.
        after_step: Callables to run at the end of every optimizer step.
        distribution: How the training is spread over the processes of its world.
        settling_steps: Optimizer steps until memory and time are those of every later step.
        settled: Method -> what it settled on in those steps, in words of its own. What is there when it is applied came
            from an earlier training of the same policy; it does that again, and needs no such steps.
        works_in_chunks: Whether a method takes memory in pieces of a fixed size, which small batches do not fill: what
            two of them take says little of a large one.
        state_parts: Name -> what a method adds to the state.
        change_optimizer: Callables that change in place every optimizer that is put in use, by whichever method.
        clip_gradients: ``(parameters, max_norm) -> norm`` in the place of torch's clipping, for gradients that it
            would not get right.
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
    ) -> None:
        self.device = torch.device(device)
        self.model = on_device(model, self.device)
        self.compute_loss: ComputeLoss = compute_loss or default_loss
        self.linear_head = linear_head
        self.max_grad_norm = max_grad_norm
        self.blocks = blocks
        self.micro_batch = micro_batch
        self.sample_dims = sample_dims
        self.reduction = reduction
        self._unchecked_weights = () if reduction is None else reduction.class_weights
        self._replaced = ReplacedOptimizers()
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
        self.world = world or World()
        self.micro_batch_weights = MicroBatchWeights(
            reduction,
            sample_dims,
            count_targets,
            # Decided now: a method may replace the loss by an equal one, whose targets are still counted in this way.
            causal=compute_loss is None and is_causal_loss(model),
            world=self.world,
        )
        self.distribution = Distribution()
        self.settling_steps = 0
        self.settled: dict[str, str] = {}
        self.works_in_chunks = False
        self.state_parts: dict[str, StatePart] = {}
        self.change_optimizer: list[Callable[[torch.optim.Optimizer], None]] = []
        self.clip_gradients: Callable[[list[torch.nn.Parameter], float], torch.Tensor] | None = None
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

    def saved_tensor_pipeline(self) -> SavedTensorPipeline:
        """What becomes of saved tensors; made, and entered around every forward pass from then on, on first use."""
        if self.saved_tensors is None:
            self.saved_tensors = SavedTensorPipeline(lambda: self.model, self.notes)
            self.forward_contexts.append(self.saved_tensors.context)
            self.after_forward.append(self.saved_tensors.look_for_hidden)
        return self.saved_tensors

    def complete(self) -> None:
        """Build what is built on first use; afterwards nothing of the set-up is left to the first step."""
        assert self.optimizer is not None

    def step(self, batch: Any) -> torch.Tensor:
        """One optimizer step on a batch, in as many micro-batches as it needs.

        Args:
            batch: What ``make_batch`` returns, of any number of samples; with several processes this one's share.

        Returns:
            The loss of the whole batch (detached, zero-dimensional, on the device): the mean over all its targets.
            With several processes, its mean over them is the loss of the batch that they share.

        Raises:
            MethodRefusedError: The batch needs several micro-batches, which an applied method does not allow.
            WorkloadError: The batch cannot be cut, or a process's share of it has no target.
        """
        pieces = self.split(batch)
        total: torch.Tensor | None = None
        for number, piece in enumerate(pieces, start=1):
            last = number == len(pieces)
            with contextlib.nullcontext() if last else self.accumulating():
                loss = self.forward(piece)
                self.backward(loss)
            total = loss.detach() if total is None else total + loss.detach()
        self.optimizer_step()
        assert total is not None, "a batch has at least one piece"
        return total

    def accumulating(self) -> contextlib.AbstractContextManager[None]:
        """Around passes of a loop of your own that are not the last before ``optimizer_step``.

        Gradients are then averaged between processes once, in the last pass. Without it they are averaged in every
        pass, with the same result.
        """
        return self.distribution.accumulating()

    def evaluate(self, function: Callable[[torch.nn.Module], _T]) -> _T:
        """``function(model)`` in evaluation mode and without gradients; every process must call it.

        Where parameters are sliced over processes, this is the way to call the model outside of a step. It is called
        as it is: what methods put around the forward pass of a step, such as autocast, is not entered.
        """
        with evaluation_mode(self.model), torch.no_grad():
            return self.distribution.call(self.model, function)

    def split(self, batch: Any) -> list[Any]:
        """The batch in as few micro-batches as needed, which differ by one sample at most.

        :meth:`forward` gives each of them the share that it has in the loss of the whole batch: their losses add up to
        that loss, and their gradients to its gradient. That holds until the next split or optimizer step.

        Raises:
            MethodRefusedError: It needs several micro-batches, which an applied method does not allow.
            WorkloadError: It cannot be cut, or a process's share of it has no target.
        """
        self.micro_batch_weights.end()
        pieces = [batch] if self.micro_batch is None else batches.split(batch, self.micro_batch, self.sample_dims)
        if len(pieces) == 1 and self.world.size == 1:
            return pieces
        if len(pieces) > 1 and not self.accumulates:
            raise MethodRefusedError(
                f"a batch of {batches.sample_count(batch, self.sample_dims)} samples needs {len(pieces)} "
                f"micro-batches of {self.micro_batch}, but an applied method needs the whole gradient in one backward "
                "pass; give batches of at most micro_batch samples"
            )
        pieces = self.micro_batch_weights.begin(pieces)
        if self._unchecked_weights:
            check_weights(self._unchecked_weights, self.forward_contexts, self.before_gradients_are_used)
            self._unchecked_weights = ()
        return pieces

    def forward(self, batch: Any) -> torch.Tensor:
        """Move a micro-batch to the device and compute its loss, times its share if :meth:`split` made it.

        Raises:
            WorkloadError: The loss is not a scalar tensor with a gradient.
        """
        if self.phase_listener is not None:
            self.phase_listener(Phase.FORWARD)
        moved = batches.move(batch, self.device)
        with entered(self.forward_contexts):
            loss = require_trainable(self.distribution.loss(self.model, self.compute_loss, moved))
        for callback in self.after_forward:
            callback(loss)
        return self.micro_batch_weights.apply(loss, batch)

    def backward(self, loss: torch.Tensor) -> None:
        """Add the gradients of ``loss`` (scaled, under float16) to those of the parameters."""
        if self.phase_listener is not None:
            self.phase_listener(Phase.BACKWARD)
        if self.gradient_scaler is not None:
            loss = self.gradient_scaler.scale(loss)
        loss.backward()  # type: ignore[no-untyped-call]
        self.distribution.after_backward()

    def optimizer_step(self) -> None:
        """Update the parameters from their gradients, and drop the gradients."""
        if self.phase_listener is not None:
            self.phase_listener(Phase.OPTIMIZER)
        self.complete_gradients()
        if not self.steps_in_backward:
            if self.max_grad_norm is not None:
                self.clip_grad_norm(self.max_grad_norm)
            optimizer = self.optimizer
            if self.gradient_scaler is not None:
                self.gradient_scaler.step(optimizer)
                self.gradient_scaler.update()
                self._unscaled = False
            else:
                step_without_closure(optimizer)
            optimizer.zero_grad(set_to_none=True)
        self.distribution.after_step()
        self.micro_batch_weights.end()
        for callback in list(self.after_step):  # One may remove itself.
            callback()
        if self.phase_listener is not None:
            self.phase_listener(Phase.IDLE)

    def complete_gradients(self) -> None:
        """Have all gradients of the step summed, and where the optimizer looks for them; a second call does nothing."""
        self.distribution.complete_gradients()
        for callback in list(self.before_gradients_are_used):  # One may remove itself.
            callback()

    def clip_grad_norm(self, max_norm: float) -> torch.Tensor:
        """Clip the gradients to a total norm; for people with their own loop, between backward and optimizer step.

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
        if self.gradient_scaler is not None and not self._unscaled:
            self.gradient_scaler.unscale_(self.optimizer)
            self._unscaled = True
        parameters = [parameter for group in self.optimizer.param_groups for parameter in group["params"]]
        return (self.clip_gradients or self.distribution.clip_grad_norm)(parameters, max_norm)

    def state_dict(self) -> dict[str, Any]:
        """``{"model", "optimizer"}`` and ``"scaler"`` under float16, as a plain model and optimizer load them.

        Methods that keep more than these two have an entry of their own each (:attr:`state_parts`). With several
        processes every one must call it: rank 0 gets the whole of all, the others empty dictionaries.
        """
        return self._state().save(rank=self.world.rank)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what :meth:`state_dict` returned, from this or another policy with the same optimizer.

        With several processes every one must be given the whole of what rank 0 got.
        """
        self._state().load(state)
        self._replaced.share_groups(self.optimizer)  # Loading gives an optimizer new ones.

    def _state(self) -> TrainingState:
        return TrainingState(self.model, self.optimizer, self.distribution, self.gradient_scaler, self.state_parts)

    def on_close(self, callback: Callable[[], None]) -> None:
        """Have ``callback`` undo something outside the training (a process-wide flag) on :meth:`close`."""
        self._closing.callback(callback)

    def close(self) -> None:
        """Undo the process-wide settings of the applied methods, last first; a second call does nothing."""
        self._closing.close()
