"""Train with a policy in a ``transformers.Trainer``, or in a trainer made from it such as trl's ``SFTTrainer``."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
import transformers

from advisor.errors import PolicyError
from advisor.integrations import support
from advisor.integrations.accelerator import let_it_make_passes, own_settings
from advisor.integrations.attached_trainer import AttachedTrainer
from advisor.integrations.peft import require_adapters
from advisor.integrations.shared import OwnSetting, policy_for, require_plain, require_version
from advisor.integrations.trainer_loop import TrainerLoop
from advisor.integrations.trainer_loss import computes_loss, mean_loss
from advisor.policy.apply import HasPolicy, apply_policy
from advisor.policy.policy import Policy
from advisor.training.direct_call import refuse_direct_calls
from advisor.training.loss import is_causal_loss
from advisor.training.training import Training

__all__ = ["attach"]

_ARGUMENTS = {
    "bf16": False,
    "fp16": False,
    "tf32": None,
    "bf16_full_eval": False,
    "fp16_full_eval": False,
    "activation_checkpointing": False,
    "activation_offloading": False,
    "torch_compile": False,
    "use_liger_kernel": False,
    "deepspeed": None,
    "fsdp": False,
    "parallelism_config": None,
    "auto_find_batch_size": False,
}
"""Arguments of trainers -> the value that leaves to a policy what it decides."""

_FUSED = "adamw_torch_fused"
"""The default of transformers; whether AdamW is fused is decided by the policy."""
_PLAIN = "adamw_torch"
_OPTIMIZERS = (_PLAIN, _FUSED, "sgd", "adagrad", "rmsprop")
_BY_METHODS = ("adamw_bnb_8bit", "adamw_8bit", "adamw_torch_8bit", "adamw_torch_4bit")
_TO_KEEP_IT = "To train with that optimizer, pass build_optimizer to attach as well."


def attach(
    trainer: Any,
    policy: Policy | HasPolicy | str | os.PathLike[str],
    *,
    max_grad_norm: float | None = None,
    build_optimizer: Callable[[Iterable[torch.nn.Parameter]], torch.optim.Optimizer] | None = None,
    save_adapters: bool = False,
    untested: bool = False,
    **options: Any,
) -> Training:
    """Have a trainer train by a policy: ``attach(trainer, "policy.yaml")``, then ``trainer.train()`` as ever.

    The trainer's batch size and accumulation become those of the policy, and must stay so. Its model is changed in
    place; its optimizer is the one that its arguments describe, as methods change it. Forward passes of training
    run with all that methods put around them, and a micro-batch counts by its targets. What the trainer saves has
    the names of the plain model (adapters are merged), so ``from_pretrained`` reads it, and it resumes from its own
    checkpoints. Evaluation runs without autocast, as ``Training.evaluate`` does.

    Args:
        trainer: The trainer, before it trains.
        policy: A policy, an answer of ``advisor.tune``, or the path of a policy file.
        max_grad_norm: Clip the gradients to this norm, 0 for not at all; default: what the trainer's arguments say.
        build_optimizer: ``(parameters) -> optimizer``; default: what the trainer's arguments say.
        save_adapters: Whether each folder that the trainer saves also has the adapters of ``lora`` or ``qlora``, in
            ``adapters``, for ``PeftModel.from_pretrained``; the model itself is saved with them merged.
        untested: Accept versions of transformers and trl that this was not tested with.
        options: Further options of :func:`advisor.apply_policy`, such as ``linear_head`` and ``count_targets``.

    Returns:
        The training; ``training.notes`` has what methods have to say.

    Raises:
        PolicyError: The policy is damaged or for another number of devices, the version is not known, or the trainer
            would do itself what the policy decides.
        MethodRefusedError: A method cannot be used in this trainer, or with this model.
    """
    kind = _kind(trainer)
    if "linear_head" in options:
        kind = dataclasses.replace(kind, own_loss=False)  # The loss can be computed otherwise.
    require_version(support.HF, untested=untested)
    require_version(kind, untested=untested)
    args = trainer.args
    found = policy_for(kind, policy, processes=args.world_size)
    require_plain(kind, _own_settings(trainer), type(args).__name__)
    _require_plain_trainer(trainer)
    clipped = (args.max_grad_norm if max_grad_norm is None else max_grad_norm) or 0.0
    training = apply_policy(
        found,
        trainer.model,
        device=args.device,
        compute_loss=mean_loss(trainer) if computes_loss(trainer) else None,
        build_optimizer=build_optimizer or (lambda _: _own_optimizer(trainer)),
        max_grad_norm=clipped if clipped > 0 else None,  # As the Trainer reads it.
        **options,
    )
    training.max_grad_norm = None  # The trainer clips, through the training.
    training.micro_batch_weights.causal |= is_causal_loss(trainer.model)
    batch = {
        "per_device_train_batch_size": found.policy.micro_batch,
        "gradient_accumulation_steps": found.policy.accumulation_steps,
    }
    for name, value in {**batch, "max_grad_norm": clipped}.items():
        before = getattr(args, name)
        if before != value:
            training.notes.append(f"{name} of the trainer was {before} and is {value} now")
            setattr(args, name, value)
    trainer._train_batch_size = args.train_batch_size
    loop = TrainerLoop(training, found.policy.accumulation_steps, "self.compute_loss")
    refuse_direct_calls(
        training,
        found.policy.words,
        "in training_step call self.compute_loss(model, inputs) in its place, also with return_outputs=True, and put "
        "what is to become of the outputs into compute_loss",
    )
    let_it_make_passes(trainer.accelerator, loop)
    if save_adapters:
        require_adapters(training)
    loss = _loss_options(trainer)

    def require_unchanged() -> None:
        _require_unchanged(trainer, kind, batch)
        _require_same_objects(trainer, training.model, loss)

    AttachedTrainer(trainer, loop, require_unchanged, save_adapters).install()
    return training


def _kind(trainer: Any) -> support.Trainer:
    """What is known of this trainer.

    Raises:
        PolicyError: It is none.
    """
    if not isinstance(trainer, transformers.Trainer):
        raise PolicyError(f"attach takes a transformers.Trainer, but got {type(trainer).__name__}")
    if any(base.__name__ == "SFTTrainer" and base.__module__.startswith("trl.") for base in type(trainer).__mro__):
        return support.SFT
    name = support.HF.name if type(trainer) is transformers.Trainer else type(trainer).__name__
    return dataclasses.replace(support.HF, name=name, own_loss=computes_loss(trainer))


def _own_optimizer(trainer: Any) -> torch.optim.Optimizer:
    """The optimizer that the trainer's arguments describe, over the model as methods left it."""
    if trainer.args.optim == _FUSED:
        trainer.args.optim = type(trainer.args.optim)(_PLAIN)
    try:
        made: torch.optim.Optimizer = trainer.create_optimizer()
    finally:
        trainer.optimizer = None
    return made


def _own_settings(trainer: Any) -> Iterable[OwnSetting]:
    """What the arguments, or the accelerator that `accelerate launch` configured, would do themselves."""
    settings = []
    for name, plain in _ARGUMENTS.items():
        value = getattr(trainer.args, name, plain)
        settings.append(OwnSetting(name, value or plain, plain))
    optimizer = str(getattr(trainer.args.optim, "value", trainer.args.optim))
    to_keep = "" if optimizer in _BY_METHODS else _TO_KEEP_IT
    settings.append(OwnSetting("optim", _PLAIN if optimizer in _OPTIMIZERS else optimizer, _PLAIN, to_keep))
    on = [setting for setting in settings if setting.value != setting.plain]
    return on or own_settings(trainer.accelerator)


def _require_plain_trainer(trainer: Any) -> None:
    """Refuse what a trainer was given, or its model, that does not go with a policy.

    Raises:
        PolicyError: There is such a thing.
    """
    model = trainer.model
    refusals = {
        "have no optimizer of its own, but it was given one or has trained already; leave `optimizers` out, and pass "
        "build_optimizer to attach, before the trainer trains": trainer.optimizer is not None
        or trainer.lr_scheduler is not None,
        "have its model from the beginning, but model_init builds another one for each run; pass model=model_init()": (
            trainer.model_init is not None
        ),
        f"run in one process per GPU, but it sees {trainer.args.n_gpu} and would copy the model to all of them; set "
        "CUDA_VISIBLE_DEVICES to one, or start it with torchrun": trainer.args.n_gpu > 1,
        "have a model without checkpointing, but its own is on; call model.activation_checkpointing_disable()": bool(
            getattr(model, "is_activation_checkpointing", False)
        ),
        "have a model in one piece, but from_pretrained has divided it among devices; leave device_map and "
        "distributed_config out": trainer.is_model_parallel or trainer.is_distributed_loading_by_transformers,
        "give each process batches of its own, but accelerator_config has split_batches=True, which divides each among "
        "them; leave it out": trainer.accelerator.split_batches and trainer.accelerator.num_processes > 1,
        "compute the mean loss of one micro-batch, but it divides by all targets of a step (loss_is_scaled_for_ga); "
        "use training.step of the wrapper": getattr(trainer, "loss_is_scaled_for_ga", None) is True,
    }
    for reason, holds in refusals.items():
        if holds:
            raise PolicyError(f"A trainer with a policy must {reason}.")


def _loss_options(trainer: Any) -> tuple[Any, ...]:
    """What decides the loss beside the trainer's class."""
    return trainer.compute_loss_func, trainer.label_smoother


def _require_same_objects(trainer: Any, model: torch.nn.Module, loss: tuple[Any, ...]) -> None:
    """Refuse another model or loss, which would not be trained, and a model that was changed beside the policy.

    Raises:
        PolicyError: There is one.
    """
    refusals = {
        "its model, but trainer.model was replaced after attach; attach the policy to a trainer of the new one": (
            trainer.model is not model
        ),
        "its loss, but compute_loss_func or label smoothing was changed after attach; set it before": any(
            now is not then for now, then in zip(_loss_options(trainer), loss, strict=True)
        ),
        "the policy's recomputation, but the model's own was switched on after attach; leave "
        "activation_checkpointing_enable out": bool(getattr(model, "is_activation_checkpointing", False)),
    }
    for reason, holds in refusals.items():
        if holds:
            raise PolicyError(f"A trainer with a policy must keep {reason}.")


def _require_unchanged(trainer: Any, kind: support.Trainer, batch: Mapping[str, int]) -> None:
    """Refuse arguments that were changed after a policy was attached: they would be dropped, or train otherwise.

    Raises:
        PolicyError: The batch is another one, or what the policy decides is on.
    """
    for name, value in batch.items():
        found = getattr(trainer.args, name)
        if found != value:
            raise PolicyError(
                f"{name} must stay {value}, as the policy was measured, but it was set to {found} after attach. "
                f"Set trainer.args.{name} = {value} again, or tune for another batch and attach that policy."
            )
    require_plain(kind, _own_settings(trainer), type(trainer.args).__name__)
