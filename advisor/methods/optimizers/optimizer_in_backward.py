"""Update each parameter as soon as its gradient is complete, and drop the gradient."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from advisor.errors import MethodRefusedError
from advisor.goal import Fidelity
from advisor.hardware.hardware import Hardware
from advisor.methods.applying import require
from advisor.methods.base import Conflict, Method, Saves, Stage, Verdict
from advisor.methods.optimizers.optimizer_class import class_name_of, narrowed, traits_of
from advisor.methods.optimizers.traits import OptimizerTraits, named, of_torch
from advisor.methods.setting import Parameters, ParameterValue
from advisor.workload.facts import Facts

if TYPE_CHECKING:
    import torch

    from advisor.training.training import Training

__all__ = ["OptimizerInBackward"]


class OptimizerInBackward(Method):
    """Steps the optimizer on one parameter at a time, from a hook that runs when its gradient is accumulated.

    The optimizer is the user's own object, with its groups narrowed during the hook, so schedulers, parameter groups
    and checkpoints work as before.
    """

    name = "optimizer_in_backward"
    summary = "Updates each parameter during the backward pass and frees its gradient at once."
    fidelity = Fidelity.EXACT
    saves = frozenset({Saves.GRADIENTS})
    costs = "one optimizer call per parameter instead of a fused one; no clipping, no gradient accumulation"
    pays = "when parameters are most of the memory and one backward pass sees the whole batch"
    does_not_pay = "with many small parameters, whose updates are then bound by kernel launches"
    stage = Stage.STEP  # After methods that replace the optimizer.
    conflicts = (
        Conflict(
            "precision",
            "float16 must look at all gradients for overflow before any parameter is updated; use bf16",
            where={"dtype": "fp16"},
        ),
    )
    accumulates = False
    one_device_only = "it would update parameters from gradients that are not yet averaged over the devices"
    citation = "Lv et al. 2023, Full Parameter Fine-tuning with Limited Resources (LOMO); PyTorch tutorial"

    def applicable(self, parameters: Parameters, facts: Facts | None, hardware: Hardware) -> Verdict:
        """Needs an optimizer that treats parameters one by one, and no gradient clipping."""
        if facts is None:
            return Verdict.yes()
        return _judge(facts.optimizer_class, named(facts.optimizer_class), facts.max_grad_norm)

    def apply(self, training: Training, **parameters: ParameterValue) -> None:
        """Hook every parameter of the optimizer."""
        from advisor.training.optimizer.fused_step import hooks_of_the_user

        optimizer = training.optimizer
        require(_judge(class_name_of(optimizer), traits_of(optimizer), training.max_grad_norm))
        if training.gradient_scaler is not None:
            raise MethodRefusedError(self.conflicts[0].reason)
        if hooks_of_the_user(optimizer):
            raise MethodRefusedError(
                "the optimizer has a hook that runs before its step, which may need all gradients at once (to clip "
                "them, say), but the optimizer runs in the backward pass and each gradient is gone once used"
            )
        stepper = _ParameterStepper(training)
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.requires_grad:
                    # A hook holds the training, and autograd the hook, beyond the reach of the garbage collector.
                    training.on_close(parameter.register_post_accumulate_grad_hook(stepper.step).remove)
        training.steps_in_backward = True
        training.after_step.append(stepper.begin_next)


class _ParameterStepper:
    """Steps a training's optimizer on single parameters, each at most once between two optimizer steps."""

    def __init__(self, training: Training) -> None:
        self._training = training
        self._stepped: set[int] = set()
        # Autograd runs one thread per device; the optimizer is one object.
        self._lock = threading.Lock()

    def step(self, parameter: torch.Tensor) -> None:
        with self._lock:
            if id(parameter) in self._stepped:
                raise MethodRefusedError(
                    "a parameter received a second gradient before optimizer_step(), but the optimizer runs in the "
                    "backward pass and has already used the first; do not accumulate gradients (or use "
                    "torch.autograd.grad, several losses, or reentrant checkpointing) with optimizer_in_backward"
                )
            self._stepped.add(id(parameter))
            optimizer = self._training.optimizer
            groups = optimizer.param_groups
            group = next(g for g in groups if any(parameter is member for member in g["params"]))
            with narrowed(optimizer, group, [parameter], "_optimizer_step_post_hooks"):
                optimizer.step()
            parameter.grad = None

    def begin_next(self) -> None:
        """Allow every parameter one more update, and run the user's hooks after a step, once.

        Raises:
            MethodRefusedError: A parameter has a gradient left, because it did not require one when it was looked at.
        """
        self._stepped.clear()
        optimizer = self._training.optimizer
        for hook in list(optimizer._optimizer_step_post_hooks.values()):
            hook(optimizer, (), {})
        left = [p for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        if left:
            raise MethodRefusedError(
                f"every trained parameter must require a gradient when optimizer_in_backward is applied, but "
                f"{len(left)} began to later and would never be updated; apply the policy again after unfreezing them"
            )


def _judge(optimizer: str, traits: OptimizerTraits, max_grad_norm: float | None) -> Verdict:
    if max_grad_norm is not None:
        return Verdict.no(
            f"gradient clipping (max_grad_norm={max_grad_norm}) needs all gradients at once, but each is gone once used"
        )
    if not traits.per_parameter:
        others = " and ".join(of_torch(lambda other: not other.per_parameter))
        return Verdict.no(
            f"it needs an optimizer that treats parameters one by one (of torch.optim, all but {others}), but the "
            f"optimizer is {optimizer}"
        )
    return Verdict.yes()
