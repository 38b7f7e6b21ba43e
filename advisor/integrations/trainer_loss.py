"""The loss that a ``transformers.Trainer`` computes in a way of its own, as that of one micro-batch alone."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
import transformers

from advisor.errors import WorkloadError

__all__ = ["computes_loss", "mean_loss"]

_COUNT = "num_items_in_batch"


def computes_loss(trainer: Any) -> bool:
    """Whether a trainer does not simply take the loss that the model returns."""
    return (
        type(trainer).compute_loss is not transformers.Trainer.compute_loss
        or trainer.compute_loss_func is not None
        or trainer.label_smoother is not None
    )


def mean_loss(trainer: Any) -> Callable[[torch.nn.Module, Any], torch.Tensor]:
    """A trainer's loss of one micro-batch: a mean, as the number of all targets of a step is not passed.

    A loss that cannot be computed without that number is given the number of this micro-batch's own targets.
    """
    compute_loss = trainer.compute_loss
    options: dict[str, Any] = {"return_outputs": False} if _needs(compute_loss, "return_outputs") else {}
    needs_count = _needs(compute_loss, _COUNT) or _needs(trainer.compute_loss_func, _COUNT)

    def loss(model: torch.nn.Module, batch: Any) -> torch.Tensor:
        inputs = dict(batch)  # which some trainers change
        across, trainer.args.average_tokens_across_devices = trainer.args.average_tokens_across_devices, False
        try:
            if needs_count:
                options[_COUNT] = trainer._get_num_items_in_batch([inputs], trainer.args.device)
            computed: torch.Tensor = compute_loss(model, inputs, **options)
        except TypeError as error:
            if needs_count or "NoneType" not in str(error):
                raise
            raise WorkloadError(
                f"the loss of {type(trainer).__name__} must be a mean over a micro-batch where {_COUNT} is None, but "
                f"computing it failed: {error}; divide by the micro-batch's own targets then, or give {_COUNT} no "
                "default, and that number is passed"
            ) from error
        finally:
            trainer.args.average_tokens_across_devices = across
        return computed

    return loss


def _needs(function: Any, name: str) -> bool:
    """Whether a function has a parameter without a default."""
    if function is None:
        return False
    try:
        parameter = inspect.signature(function).parameters.get(name)
    except (TypeError, ValueError):  # no Python function
        return False
    return parameter is not None and parameter.default is parameter.empty
