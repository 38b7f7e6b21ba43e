"""What is taken from a LightningModule and its data to be tuned."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from typing import Any, cast

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import GradientAccumulationScheduler
from lightning.pytorch.core.optimizer import _configure_optimizers
from lightning.pytorch.utilities.exceptions import MisconfigurationException
from torch.utils.data import DataLoader

from advisor.errors import OptionError, WorkloadError
from advisor.integrations.silent_log import silent_log
from advisor.methods.setting import MethodSetting, use
from advisor.trainers.optimizer_settings import OptimizerSettings
from advisor.trainers.taken import Taken, check_weights

__all__ = ["ModuleLoss", "taken_from_lightning"]

_FLOAT32 = ("32-true", "32")
_FORMATS = {"bf16-mixed": "bf16", "16-mixed": "fp16", "16": "fp16", "bf16": "bf16"}


def taken_from_lightning(module: Any, datamodule: Any, trainer: Any) -> Taken:
    """Take model, data, collator, optimizer and loss from a module, its data module and its Trainer.

    Raises:
        OptionError: It is no LightningModule.
        WorkloadError: There is no training data, or more than one data set; optimization is manual, with several
            optimizers, or needs the Trainer.
    """
    if not isinstance(module, LightningModule):
        raise OptionError(
            f"advisor.tune_lightning takes a lightning.pytorch.LightningModule, but got {type(module).__name__}. "
            "For a transformers.Trainer call advisor.tune_trainer; otherwise give functions to advisor.tune."
        )
    owner = type(module).__name__
    if not module.automatic_optimization:
        raise WorkloadError(
            f"{owner} must be optimized automatically, so that there is a loss to measure, but it has "
            "automatic_optimization=False. Write a model file with build_model, make_batch and compute_loss for it."
        )
    module.configure_model()
    check_weights(module, owner)
    loader = _loader(module, datamodule)
    return Taken(
        model=module,
        dataset=loader.dataset,
        collate=loader.collate_fn,
        build_optimizer=_optimizer(module),
        compute_loss=ModuleLoss(),
        batch_size=_batch_size(loader),
        accumulation_steps=1 if trainer is None else trainer.accumulate_grad_batches,
        max_grad_norm=None if trainer is None else _norm(trainer),
        device=None if trainer is None else _device(trainer.strategy.root_device),
        own=() if trainer is None else _own_methods(str(trainer.precision)),
        unsaid=() if trainer is None else _unsaid(trainer),
    )


class ModuleLoss:
    """``training_step`` of the module that is trained, with the hooks around the transfer of a batch."""

    def __call__(self, module: Any, batch: Any) -> torch.Tensor:
        """The loss of a batch, which is on the module's device."""
        batch = module.on_after_batch_transfer(module.on_before_batch_transfer(batch, 0), 0)
        more = (0,) if len(inspect.signature(module.training_step).parameters) > 1 else ()
        with silent_log(module):
            output = module.training_step(batch, *more)
        loss: torch.Tensor = output["loss"] if isinstance(output, dict) else output
        return loss

    def __repr__(self) -> str:
        return "training_step"


def _loader(module: LightningModule, datamodule: Any) -> DataLoader[Any]:
    """The one ``DataLoader`` of the training data."""
    source = module if datamodule is None else datamodule
    if isinstance(source, DataLoader):
        loader: Any = source
    else:
        if not callable(getattr(source, "train_dataloader", None)) or isinstance(source, Trainer):
            raise OptionError(
                "advisor.tune_lightning takes a data module or the DataLoader of the training data beside the module, "
                f"but got {type(source).__name__}. Give advisor.tune_lightning(module, data, trainer=trainer)."
            )
        if datamodule is not None:
            datamodule.prepare_data()
            datamodule.setup("fit")
        try:
            loader = source.train_dataloader()
        except Exception as error:
            raise WorkloadError(
                f"{type(source).__name__} must give its training data without a Trainer, but train_dataloader() raised "
                f"{type(error).__name__}: {error}. Give a data module or a DataLoader: "
                "advisor.tune_lightning(module, data)."
            ) from error
    if not isinstance(loader, DataLoader):
        raise WorkloadError(
            f"The training data must be one torch DataLoader, but {type(source).__name__} has "
            f"{type(loader).__name__}. Give the one whose batches training_step takes: "
            "advisor.tune_lightning(module, loader)."
        )
    if loader.batch_sampler is None:
        raise WorkloadError(
            "The DataLoader of the training data must make batches of samples, whose number is looked for, but it has "
            "batch_size=None. Give one with a batch_size: advisor.tune_lightning(module, loader)."
        )
    return loader


def _batch_size(loader: DataLoader[Any]) -> int:
    """Samples of a batch; of a sampler of one's own, those of its first."""
    size = loader.batch_size or getattr(loader.batch_sampler, "batch_size", None)
    return size if isinstance(size, int) else len(next(iter(cast("Iterable[Any]", loader.batch_sampler))))


def _optimizer(module: LightningModule) -> OptimizerSettings:
    try:
        optimizers, _, _ = _configure_optimizers(module.configure_optimizers())
    except RuntimeError as error:
        raise WorkloadError(
            f"configure_optimizers of {type(module).__name__} must work without a Trainer, but it raised {error}. "
            "Pass what it asks the Trainer for (such as the number of steps) to the module."
        ) from error
    except MisconfigurationException as error:
        raise WorkloadError(
            f"configure_optimizers must return an optimizer to be tuned, but that of {type(module).__name__} returned "
            "none, or something that Lightning takes for none."
        ) from error
    if len(optimizers) != 1:
        raise WorkloadError(
            f"configure_optimizers must return one optimizer to be tuned, but that of {type(module).__name__} returned "
            f"{len(optimizers)}."
        )
    return OptimizerSettings.of(optimizers[0], module)


def _device(device: torch.device) -> str | None:
    if device.type == "cuda":
        return f"cuda:{device.index or 0}"
    return "cpu" if device.type == "cpu" else None


def _own_methods(precision: str) -> tuple[MethodSetting, ...]:
    return (use("precision", dtype=_FORMATS[precision]),) if precision in _FORMATS else ()


def _norm(trainer: Trainer) -> float | None:
    return trainer.gradient_clip_val or None if str(trainer.gradient_clip_algorithm or "norm") == "norm" else None


def _unsaid(trainer: Trainer) -> tuple[str, ...]:
    """What a Trainer does itself that changes a step, and that no method stands for."""
    found = []
    if str(trainer.precision) not in (*_FLOAT32, *_FORMATS):
        found.append(f"precision={str(trainer.precision)!r}")
    if trainer.gradient_clip_val and str(trainer.gradient_clip_algorithm or "norm") != "norm":
        found.append("gradient_clip_algorithm='value'")
    found += [type(one).__name__ for one in trainer.callbacks if isinstance(one, GradientAccumulationScheduler)]
    if trainer.world_size > 1:
        found.append(f"the division among {trainer.world_size} devices (give gpus={trainer.world_size})")
    return tuple(found)
