"""Have an accelerator of accelerate, also the one of a transformers Trainer, make the passes of a training."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from accelerate.utils import DistributedType, DynamoBackend

from advisor.errors import MethodRefusedError, PolicyError
from advisor.integrations.shared import OwnSetting
from advisor.integrations.trainer_loop import TrainerLoop
from advisor.integrations.trainer_optimizer import TrainerOptimizer
from advisor.training.replaced_attribute import replace_attribute
from advisor.training.training import Training

__all__ = ["let_it_make_passes", "own_settings", "refuse_other_optimizers", "require_other_parameters"]

_SIMPLE = (DistributedType.NO, DistributedType.MULTI_CPU, DistributedType.MULTI_GPU)


def own_settings(accelerator: Any) -> Iterable[OwnSetting]:
    """What an accelerator would do itself, by its arguments or by `accelerate launch`."""
    kind = accelerator.distributed_type
    yield OwnSetting("mixed_precision", str(accelerator.mixed_precision), "no")
    yield OwnSetting("distributed_type", "NO" if kind in _SIMPLE else kind.value, "NO")
    backend = accelerator.state.dynamo_plugin.backend
    yield OwnSetting("dynamo_backend", backend.value, DynamoBackend.NO.value)


def let_it_make_passes(accelerator: Any, loop: TrainerLoop) -> None:
    """Route backward passes, clipping, and the model's ``no_sync`` and state to a training, until it closes.

    Those of further models, which were given to ``accelerator.prepare`` and have no policy, stay as they are.
    """
    training = loop.training
    usual_sync, usual_state = accelerator.no_sync, accelerator.get_state_dict
    usual_backward, usual_clip = accelerator.backward, accelerator.clip_grad_norm_

    def backward(loss: torch.Tensor, **options: Any) -> None:
        others = [model for model in accelerator._models if model is not training.model]
        if not any(_is_reached(model, loss) for model in others):
            loop.backward(loss, **options)
        elif not _is_reached(training.model, loss):
            usual_backward(loss, **options)
        elif training.gradient_scaler is None:
            loop.backward(loss, **options)
        else:
            raise MethodRefusedError(
                "a loss under precision fp16 is scaled, with all gradients that come of it, but this one also reaches "
                "a model without the policy, whose optimizer would step on scaled gradients; give prepare one module "
                "that has both models, set requires_grad_(False) on the other where this loss is not to train it, or "
                "use precision bf16"
            )

    def clip_grad_norm_(parameters: Any, max_norm: float, norm_type: float = 2) -> torch.Tensor | None:
        given = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
        own = {id(one) for one in training.model.parameters()}
        ours = [id(one) in own for one in given]
        if given and not any(ours):
            norm: torch.Tensor | None = usual_clip(given, max_norm, norm_type)
            return norm
        if not all(ours):
            raise MethodRefusedError(
                "gradients of a model with a policy are clipped without those of others; call clip_grad_norm_ for each"
            )
        if float(norm_type) != 2.0:
            raise MethodRefusedError(f"gradients are clipped by their 2-norm, but norm_type={norm_type}; leave it out")
        return loop.clip_grad_norm(float(max_norm))

    def clip_grad_value_(parameters: Any, clip_value: float) -> None:
        raise MethodRefusedError("gradients are clipped by their norm; call clip_grad_norm_, not clip_grad_value_")

    def no_sync(model: Any) -> contextlib.AbstractContextManager[None]:
        return training.accumulating() if model is training.model else usual_sync(model)

    def get_state_dict(model: Any, unwrap: bool = True) -> dict[str, Any]:
        """The state of the plain model; all processes take part."""
        ours = model is training.model
        state: dict[str, Any] = training.state_dict(optimizer=False)["model"] if ours else usual_state(model, unwrap)
        return state

    replace_attribute(training, accelerator, "get_state_dict", get_state_dict)
    replace_attribute(training, accelerator, "backward", backward)
    replace_attribute(training, accelerator, "clip_grad_norm_", clip_grad_norm_)
    replace_attribute(training, accelerator, "clip_grad_value_", clip_grad_value_)
    replace_attribute(training, accelerator, "no_sync", no_sync)
    prepared: Any = training.model  # to type checkers, attributes of a module are modules and tensors
    prepared._is_accelerate_prepared = True  # It is not to be wrapped.


def refuse_other_optimizers(accelerator: Any, training: Training) -> None:
    """Have ``accelerator.prepare`` refuse an optimizer of the user's that has parameters of a training."""
    usual = accelerator.prepare_optimizer

    def prepare_optimizer(optimizer: Any, device_placement: bool | None = None) -> Any:
        require_other_parameters(optimizer, training.model)
        return usual(optimizer, device_placement)

    replace_attribute(training, accelerator, "prepare_optimizer", prepare_optimizer)


def require_other_parameters(optimizer: Any, model: torch.nn.Module) -> None:
    """Require that an optimizer has none of the parameters that a policy's own steps.

    Raises:
        PolicyError: It has some.
    """
    own = {id(one) for one in model.parameters()}
    if isinstance(optimizer, TrainerOptimizer) or not any(
        id(one) in own for group in optimizer.param_groups for one in group["params"]
    ):
        return
    kind = type(getattr(optimizer, "optimizer", optimizer)).__name__
    raise PolicyError(
        "A policy decides the kind of optimizer and how it steps, but the accelerator was given one of yours with "
        f"parameters of the model: {kind}. Pass build_optimizer=lambda parameters: torch.optim.{kind}(parameters, "
        "lr=...) to prepare, and use prepared.optimizer."
    )


def _is_reached(model: torch.nn.Module, loss: torch.Tensor) -> bool:
    """Whether a loss has gradients for a parameter of a model."""
    own = {id(one) for one in model.parameters()}
    return any(id(getattr(node, "variable", None)) in own for node in _nodes(loss))


def _nodes(loss: torch.Tensor) -> Iterator[Any]:
    """The nodes of the backward pass; those of parameters have these as their ``variable``."""
    waiting: list[Any] = [loss.grad_fn]
    seen = set(waiting)
    while waiting:
        node = waiting.pop()
        if node is None:
            continue
        yield node
        further = {below for below, _ in node.next_functions} - seen
        seen |= further
        waiting += further
