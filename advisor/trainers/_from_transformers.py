"""What is taken from a Hugging Face Trainer to be tuned."""

from __future__ import annotations

import copy
import io
import math
import os
import pickle
from collections.abc import Callable, Mapping
from typing import Any

import torch
import transformers

from advisor.errors import OptionError, WorkloadError
from advisor.integrations.trainer_loss import mean_loss
from advisor.methods.kernels._linear_head import causal_head, chunked_loss
from advisor.methods.setting import MethodSetting, use
from advisor.trainers.optimizer_settings import OptimizerSettings
from advisor.trainers.taken import Taken, check_weights

__all__ = ["taken_from_transformers"]

_CHUNK = 256
"""Tokens for which ``SFTTrainer`` computes the loss at once."""

_PLAIN = "adamw_torch"
_LOW_BIT = {
    "adamw_bnb_8bit": use("adam_8bit"),
    "adamw_8bit": use("adam_8bit"),
    "adamw_torch_8bit": use("adam_low_bit", state="8bit"),
    "adamw_torch_4bit": use("adam_low_bit", state="4bit"),
}
"""Names of ``optim`` that a method stands for, as in :mod:`advisor.exports.hf_keys`."""

_HELD = {
    *("accelerator", "callback_handler", "data_collator", "eval_dataset", "lr_scheduler", "model", "model_wrapped"),
    *("optimizer", "processing_class", "train_dataset"),
}
"""What a loss needs no copy of, and what may be large."""


def taken_from_transformers(trainer: Any) -> Taken:
    """Take model, data, collator, optimizer, loss and settings from a Trainer, which stays as it is.

    Raises:
        OptionError: It is no Trainer.
        WorkloadError: It has no training data, or a model without weights.
    """
    if not isinstance(trainer, transformers.Trainer):
        raise OptionError(
            f"advisor.tune_trainer takes a transformers.Trainer, but got {type(trainer).__name__}. "
            "For a LightningModule call advisor.tune_lightning; otherwise give functions to advisor.tune."
        )
    owner, arguments = type(trainer).__name__, trainer.args
    if trainer.train_dataset is None:
        raise WorkloadError(
            f"The {owner} must have the data that it is to train on, but its train_dataset is None. "
            f"Give it to the constructor: {owner}(..., train_dataset=data)."
        )
    model = trainer.model
    if hasattr(model, "_original_forward"):
        raise WorkloadError(
            f"The {owner} must not have trained yet, but its model was prepared for training. Call "
            "advisor.tune_trainer before train()."
        )
    if "_momadvise_policy" in vars(model):
        raise WorkloadError(
            f"The {owner} must have no policy yet, but one was attached to it. Call advisor.tune_trainer before "
            "hf.attach, with a trainer that was made anew."
        )
    check_weights(model, f"the {owner}")
    dataset, collate = _data(trainer)
    optimizer, own = _optimizer(trainer, model), _own_methods(arguments)
    # hf.attach makes the optimizer fused, or one of few bits, where the policy says so, whatever the arguments say.
    if optimizer.is_fused:
        own += (use("fused_optimizer"),)
    if (low_bit := _low_bit(trainer)) is not None:
        own += (low_bit,)
    return Taken(
        model=_unpatched(model) if _computes_in_chunks(trainer) else model,
        dataset=dataset,
        collate=collate,
        build_optimizer=optimizer.unfused() if optimizer.is_fused else optimizer,
        compute_loss=ChunkedLoss() if _computes_in_chunks(trainer) else _loss(trainer),
        batch_size=arguments.per_device_train_batch_size,
        accumulation_steps=arguments.gradient_accumulation_steps,
        max_grad_norm=arguments.max_grad_norm or None,
        device=_device(arguments),
        own=own,
        unsaid=_unsaid(arguments),
    )


def _data(trainer: Any) -> tuple[Any, Callable[[list[Any]], Any]]:
    """The data set and collator, without the columns that the model does not take."""
    dataset, collate = trainer.train_dataset, trainer.data_collator
    if transformers.utils.is_datasets_available():
        import datasets

        if isinstance(dataset, datasets.Dataset):
            return trainer._remove_unused_columns(dataset, description="training"), collate
    if not trainer.args.remove_unused_columns:
        return dataset, collate
    trainer._set_signature_columns_if_needed()
    return dataset, _OnlyColumns(collate, tuple(trainer._signature_columns))


class _OnlyColumns:
    """A collator of samples without the columns that the model does not take."""

    def __init__(self, collate: Callable[[list[Any]], Any], columns: tuple[str, ...]) -> None:
        self._collate = collate
        self._columns = columns

    def __call__(self, samples: list[Any]) -> Any:
        return self._collate([self._kept(sample) for sample in samples])

    def _kept(self, sample: Any) -> Any:
        if not isinstance(sample, dict):
            return sample
        return {name: value for name, value in sample.items() if name in self._columns}


def _optimizer(trainer: Any, model: torch.nn.Module) -> OptimizerSettings:
    """Class and settings of the optimizer, made as ``train()`` would if there is none yet."""
    if trainer.optimizer is not None:
        # Once a trainer has trained, accelerate's stands around it.
        return OptimizerSettings.of(getattr(trainer.optimizer, "optimizer", trainer.optimizer), model)
    name = trainer.args.optim
    if _low_bit(trainer) is not None:
        trainer.args.optim = type(name)(_PLAIN)
    try:
        made = trainer.optimizer_cls_and_kwargs or trainer.get_optimizer_cls_and_kwargs(trainer.args, model)
        optimizer = trainer.create_optimizer()
    finally:
        trainer.optimizer, trainer.args.optim = None, name
    kind, keywords = made
    known = type(optimizer) is kind and not {"params", "model", "optimizer_dict"} & set(keywords)
    return OptimizerSettings.of(optimizer, model, keywords if known else None)


def _low_bit(trainer: Any) -> MethodSetting | None:
    """What stands for the optimizer that the arguments name, if that is used."""
    if trainer.optimizer is not None or trainer.optimizer_cls_and_kwargs is not None:
        return None
    return _LOW_BIT.get(trainer.args.optim)


def _loss(trainer: Any) -> Callable[[Any, Any], Any] | None:
    """The Trainer's own loss; ``None`` if it is what the model returns."""
    is_plain = type(trainer).compute_loss is transformers.Trainer.compute_loss
    if is_plain and trainer.compute_loss_func is None and trainer.label_smoother is None:
        return None
    return TrainerLoss(
        type(trainer), {name: value for name, value in vars(trainer).items() if _goes_along(name, value)}
    )


def _computes_in_chunks(trainer: Any) -> bool:
    """Whether it is trl's ``SFTTrainer`` with its usual loss, for which it replaces the model's ``forward``."""
    kind = next((base for base in type(trainer).__mro__ if base.__name__ == "SFTTrainer"), None)
    if kind is None or type(trainer).compute_loss is not vars(kind).get("compute_loss"):
        return False
    return getattr(trainer.args, "loss_type", None) == "chunked_nll" and "forward" in vars(trainer.model)


def _unpatched(model: torch.nn.Module) -> torch.nn.Module:
    """The model with the ``forward`` of its class; it has the same parameters and modules."""
    model = copy.copy(model)
    del vars(model)["forward"]
    return model


class ChunkedLoss:
    """The loss of a causal language model in chunks of tokens, as ``SFTTrainer`` computes it with its own code."""

    def __call__(self, model: torch.nn.Module, batch: Any) -> torch.Tensor:
        """The loss of a batch."""
        parts = causal_head(model, batch)
        return chunked_loss(*parts, chunks=math.ceil(parts[-1].numel() / _CHUNK))

    def __repr__(self) -> str:
        return f"the chunked loss of SFTTrainer, {_CHUNK} tokens"


class TrainerLoss:
    """``compute_loss`` of a Trainer, called on a stand-in that has its settings but neither model nor data.

    Args:
        kind: Class of the Trainer.
        settings: Its attributes that can be pickled.
    """

    def __init__(self, kind: type, settings: Mapping[str, Any]) -> None:
        self._kind = kind
        self._settings = dict(settings)
        self._trainer: Any = None

    def __call__(self, model: torch.nn.Module, batch: Any) -> torch.Tensor:
        """The loss of a batch."""
        if self._trainer is None:
            import accelerate

            self._trainer = object.__new__(self._kind)
            vars(self._trainer).update(self._settings, accelerator=accelerate.Accelerator(), model=model)
        return mean_loss(self._trainer)(model, batch)

    def __getstate__(self) -> dict[str, Any]:
        return {"_kind": self._kind, "_settings": self._settings, "_trainer": None}

    def __repr__(self) -> str:
        return f"the loss of {self._kind.__module__}.{self._kind.__qualname__}"


def _goes_along(name: str, value: Any) -> bool:
    if name in _HELD or isinstance(value, torch.nn.Module):
        return False
    try:
        pickle.dump(value, io.BytesIO())
    except Exception:  # Whatever an object raises: a loss that needs it says so.
        return False
    return True


def _device(arguments: Any) -> str | None:
    device = arguments.device
    if device.type == "cuda":
        return f"cuda:{device.index or 0}"
    return "cpu" if device.type == "cpu" else None


def _own_methods(arguments: Any) -> tuple[MethodSetting, ...]:
    """What the arguments switch on, as methods of the catalogue."""
    own: list[MethodSetting] = []
    if getattr(arguments, "activation_checkpointing", False) or arguments.gradient_checkpointing:
        settings = getattr(arguments, "activation_checkpointing_kwargs", None) or {}
        own.append(use("checkpoint", every=settings.get("every_n_layers", 1)))
    if arguments.torch_compile:
        blocks = os.environ.get("ACCELERATE_DYNAMO_USE_REGIONAL_COMPILATION", "").lower() in ("1", "true", "yes")
        own.append(use("compile", scope="blocks" if blocks else "model"))
    dtype = "bf16" if arguments.bf16 else "fp16" if arguments.fp16 else "tf32" if arguments.tf32 else None
    return (*own, use("precision", dtype=dtype)) if dtype is not None else tuple(own)


def _unsaid(arguments: Any) -> tuple[str, ...]:
    """What the arguments switch on that changes a step, and that no method stands for."""
    on = {name: getattr(arguments, name, None) for name in ("use_liger_kernel", "deepspeed", "fsdp")}
    settings = getattr(arguments, "activation_checkpointing_kwargs", None) or {}
    on["activation_checkpointing_kwargs.offload"] = settings.get("offload")
    on["activation_offloading"] = getattr(arguments, "activation_offloading", None)
    found = [f"{name}={value!r}" for name, value in on.items() if value]
    if arguments.n_gpu > 1:
        found.append(f"DataParallel on {arguments.n_gpu} devices (give gpus={arguments.n_gpu})")
    return tuple(found)
