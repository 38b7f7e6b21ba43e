"""What the strategies for Lightning's Trainer share: a LightningModule is trained under a policy.

A strategy and not a callback, because methods must be in force around ``training_step``, must see the optimizer before
anything steps it, and must turn the state that is saved into that of a plain module. Optimization stays automatic, so
``trainer.global_step`` counts, and with it ``max_steps``, checkpoints by step, loggers and schedulers work.
"""

from __future__ import annotations

import functools
import inspect
import logging
import os
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import BatchSizeFinder, GradientAccumulationScheduler
from lightning.pytorch.plugins.precision import Precision
from lightning.pytorch.strategies import Strategy
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities.parsing import lightning_hasattr, lightning_setattr

from advisor.errors import MethodRefusedError, PolicyError, WorkloadError
from advisor.integrations import support
from advisor.integrations.lightning_callbacks import require_known_parameters
from advisor.integrations.lightning_optimizer import require_one_optimizer
from advisor.integrations.lightning_precision import PolicyPrecision
from advisor.integrations.shared import OwnSetting, policy_for, require_plain, require_version
from advisor.integrations.silent_log import silent_log
from advisor.policy.apply import HasPolicy, apply_policy
from advisor.policy.policy import Policy
from advisor.text.units import format_count
from advisor.training.batch.tree import sample_count
from advisor.training.loss import is_causal_loss
from advisor.training.training import Training

__all__ = ["UnderPolicy"]

_log = logging.getLogger("advisor")

_PLAIN = "32-true"
"""What Lightning calls float32."""


class UnderPolicy(Strategy):  # type: ignore[misc]
    """A strategy that trains under a policy. Its other base class knows the devices.

    Args:
        policy: A policy, an answer of ``advisor.tune``, or the path of a policy file.
        untested: Accept versions of Lightning that this was not tested with.
        options: Of :func:`advisor.apply_policy`.

    Raises:
        PolicyError: The policy cannot be read, or the version of Lightning is not known.
        MethodRefusedError: A method cannot be used in Lightning.
    """

    def __init__(
        self, policy: Policy | HasPolicy | str | os.PathLike[str], *, untested: bool = False, **options: Any
    ) -> None:
        super().__init__()
        require_version(support.LIGHTNING, untested=untested)
        self._given = policy_for(support.LIGHTNING, policy)
        self._policy = self._given.policy
        self._options = options
        self._policy_precision = PolicyPrecision()
        self._training: Training | None = None
        self._given_precision = _PLAIN
        self._output: Any = None
        self._rest: tuple[Any, ...] = ()
        self._kept: list[tuple[torch.nn.Parameter, torch.Tensor]] = []
        self._size_is_checked = False

    @property
    def training(self) -> Training:
        """The training of the module, once ``fit`` has begun.

        Raises:
            PolicyError: It has not.
        """
        if self._training is None:
            raise PolicyError("The policy must be applied before its training is used, but fit() has not begun.")
        return self._training

    @property
    def precision_plugin(self) -> Precision:
        """What runs the backward pass and the optimizer step."""
        return self._policy_precision

    @precision_plugin.setter
    def precision_plugin(self, given: Precision | None) -> None:
        if given is not None and not isinstance(given, PolicyPrecision):
            self._given_precision = str(getattr(given, "precision", type(given).__name__))

    # Setting up.

    def setup_environment(self) -> None:
        """Refuse what cannot go together, and set the batch size before any data is loaded."""
        super().setup_environment()
        module = self.lightning_module
        assert module is not None
        if module.trainer.state.fn is TrainerFn.FITTING:
            self._check_trainer(module.trainer, module)
            self._set_batch_size(module)

    def setup_optimizers(self, trainer: Trainer) -> None:
        """Apply the policy, with the optimizer that ``configure_optimizers`` makes of the parameters it leaves."""
        module = self.lightning_module
        assert module is not None
        before = [id(one) for one in module.parameters()]
        trained = {id(one) for one in module.parameters() if one.requires_grad}
        with silent_log(module):
            self._training = training = apply_policy(
                self._given,
                module,
                device=self.root_device,
                compute_loss=self._compute_loss,
                build_optimizer=functools.partial(self._configured_optimizer, trainer, trained),
                max_grad_norm=trainer.gradient_clip_val or None,
                **_module_options(module) | self._options,
            )
            training.complete()
        self._policy_precision.training = training
        training.max_grad_norm = None  # Clipping is the Trainer's, at the place of its hook.
        training.micro_batch_weights.causal |= any(is_causal_loss(one) for one in module.modules())
        self.optimizers = [training.optimizer]
        self.model = module
        self._size_is_checked = False
        self._check_applied(trainer, training, before != [id(one) for one in module.parameters()])
        for note in training.notes:
            _log.warning("%s", note)

    def _configured_optimizer(
        self, trainer: Trainer, trained: set[int], parameters: Iterable[torch.nn.Parameter]
    ) -> torch.optim.Optimizer:
        """The module's own optimizer, without the parameters that a method has frozen since."""
        with require_one_optimizer(self.lightning_module):
            super().setup_optimizers(trainer)
        optimizer = self.optimizers[0]
        for group in optimizer.param_groups:
            group["params"] = [one for one in group["params"] if one.requires_grad or id(one) not in trained]
        return optimizer

    def _check_trainer(self, trainer: Trainer, module: LightningModule) -> None:
        accumulated = trainer.accumulate_grad_batches
        require_plain(support.LIGHTNING, [OwnSetting("precision", self._given_precision, _PLAIN)], "the Trainer")
        if not module.automatic_optimization:
            raise MethodRefusedError(
                "a policy needs automatic optimization, in which Lightning runs backward pass and optimizer step, but "
                f"{type(module).__name__} has automatic_optimization=False; set it to True, or train with wrapper.py"
            )
        if any(isinstance(one, GradientAccumulationScheduler) for one in trainer.callbacks):
            raise PolicyError(
                "accumulate_grad_batches must stay what it is, as the policy was measured, but a "
                "GradientAccumulationScheduler changes it between epochs. Leave that callback out."
            )
        if any(isinstance(one, BatchSizeFinder) for one in trainer.callbacks):
            raise PolicyError(
                f"batch_size must be the policy's {self._batch_size}, but a BatchSizeFinder looks for another one. "
                "Leave that callback out, or tune for another batch."
            )
        if self._samples % accumulated:
            raise PolicyError(
                f"accumulate_grad_batches must divide the policy's {self._samples} samples per optimizer "
                f"step, but it is {accumulated}. Leave it out: the strategy splits each batch into micro-batches of "
                f"{self._policy.micro_batch}."
            )

    def _check_applied(self, trainer: Trainer, training: Training, replaced: bool) -> None:
        """Refuse what the Trainer does beside the methods that were applied."""
        if trainer.accumulate_grad_batches > 1 and not training.accumulates:
            raise MethodRefusedError(
                "an applied method needs the whole gradient in one backward pass, but accumulate_grad_batches is "
                f"{trainer.accumulate_grad_batches}; leave it out of the Trainer"
            )
        require_known_parameters(trainer.callbacks, training, replaced=replaced)
        if training.compute_loss != self._compute_loss:
            _log.warning("the loss is computed in chunks: training_step is not called, and logs nothing")

    # Batches.

    @property
    def _samples(self) -> int:
        """Of a process, per optimizer step."""
        return self._policy.micro_batch * self._policy.accumulation_steps

    @property
    def _batch_size(self) -> int:
        module = self.lightning_module
        assert module is not None
        accumulated: int = module.trainer.accumulate_grad_batches
        return self._samples // accumulated

    def _set_batch_size(self, module: LightningModule) -> None:
        if lightning_hasattr(module, "batch_size"):
            lightning_setattr(module, "batch_size", self._batch_size)
            _log.info("batch_size was set to %d, as the policy needs it", self._batch_size)

    def _check_batch_size(self, batch: Any) -> None:
        """Compare the first batch with the policy: the last one of an epoch may be smaller."""
        self._size_is_checked = True
        wanted, found = self._batch_size, sample_count(batch, self.training.sample_dims)
        if found == wanted:
            return
        policy = self._policy
        raise WorkloadError(
            f"The first batch must have the policy's {format_count(wanted, 'sample')} ({policy.micro_batch} x "
            f"{policy.accumulation_steps} per optimizer step), but it has {found}. Lightning cannot change "
            f"a DataLoader that exists: set DataLoader(batch_size={wanted}), or use a data module that takes its size "
            "from self.batch_size."
        )

    # A step.

    def training_step(self, *arguments: Any, **keywords: Any) -> Any:
        """All micro-batches of a batch but the backward pass of the last one, which Lightning starts itself.

        Returns:
            What the module's ``training_step`` returned for the last micro-batch, with the loss of the whole batch.
        """
        batch, *rest = (*arguments, *keywords.values())
        if not self._size_is_checked:
            self._check_batch_size(batch)
        training, self._rest, self._output = self.training, tuple(rest), None
        normalize = self.lightning_module.trainer.accumulate_grad_batches
        before: torch.Tensor | None = None
        micro_batches = training.split(batch)
        for micro_batch in micro_batches[:-1]:
            with training.accumulating():
                loss = training.forward(micro_batch)
                self.backward(loss / normalize, training.optimizer)
            before = loss.detach() if before is None else before + loss.detach()
        loss = training.forward(micro_batches[-1])
        if before is not None:
            loss = loss + before
            self._put_gradients_aside()
        return {**self._output, "loss": loss} if isinstance(self._output, Mapping) else loss

    def _compute_loss(self, module: Any, batch: Any) -> torch.Tensor:
        self._output = module.training_step(batch, *(self._rest or _default_rest(module)))
        loss: torch.Tensor | None = self._output["loss"] if isinstance(self._output, Mapping) else self._output
        if loss is None:
            raise WorkloadError(
                "training_step must return a loss under a policy, but it returned None. Return a loss of zero that "
                "depends on the parameters, such as 0 * loss, to skip a batch."
            )
        return loss

    def _put_gradients_aside(self) -> None:
        """Lightning clears all gradients between the last forward pass and its backward pass."""
        parameters = (one for group in self.training.optimizer.param_groups for one in group["params"])
        self._kept = [(one, one.grad) for one in parameters if one.grad is not None]
        for parameter, _ in self._kept:
            parameter.grad = None

    def pre_backward(self, closure_loss: torch.Tensor) -> None:
        """Give parameters the gradients of earlier micro-batches back."""
        for parameter, gradient in self._kept:
            parameter.grad = gradient
        self._kept = []

    def post_backward(self, closure_loss: torch.Tensor) -> None:
        """Tell what spreads the training that a backward pass has ended."""
        self.training.distribution.after_backward()

    # State.

    @property
    def restore_checkpoint_after_setup(self) -> bool:
        """Whether a checkpoint is loaded into the module as the policy has changed it."""
        return True

    def lightning_module_state_dict(self) -> dict[str, Any]:
        """The state of a plain module."""
        if self._training is None:
            return dict(super().lightning_module_state_dict())
        state: dict[str, Any] = self._training.state_dict()["model"]
        return state

    def optimizer_state(self, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        """The optimizer's state."""
        state: dict[str, Any] = self.training.state_dict()["optimizer"]
        return state

    def load_model_state_dict(self, checkpoint: Mapping[str, Any], strict: bool = True) -> None:
        """Load the state of a plain module, with what methods had added to it."""
        if self._training is None:
            super().load_model_state_dict(checkpoint, strict=strict)
            return
        given = checkpoint["state_dict"]
        if not strict:
            now = self.broadcast(self._training.state_dict()["model"])  # of several processes, the first has it
            given = now | {name: value for name, value in given.items() if name in now}
        parts = checkpoint.get(type(self._policy_precision).__qualname__, {})
        self._training.load_state_dict({**parts, "model": given})

    def load_optimizer_state_dict(self, checkpoint: Mapping[str, Any]) -> None:
        """Load the optimizer's state."""
        self.training.load_state_dict({"optimizer": checkpoint["optimizer_states"][0]})

    def teardown(self) -> None:
        """Undo the process-wide settings of methods."""
        super().teardown()
        if self._training is not None:
            self._training.close()


def _module_options(module: LightningModule) -> dict[str, Any]:
    """What a module says of its loss, as options of a policy."""
    options: dict[str, Any] = {}
    if callable(head := getattr(module, "linear_head", None)):
        options["linear_head"] = lambda _, batch: head(batch)
    if callable(count := getattr(module, "count_targets", None)):
        options["count_targets"] = count
    return options


def _default_rest(module: LightningModule) -> tuple[int, ...]:
    """The number of a batch outside of a loop, if ``training_step`` takes one."""
    return (0,) if len(inspect.signature(module.training_step).parameters) > 1 else ()
