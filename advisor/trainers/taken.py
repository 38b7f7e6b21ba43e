"""What is taken from a trainer to be tuned."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from advisor.errors import WorkloadError
from advisor.methods.setting import MethodSetting

if TYPE_CHECKING:
    import torch

__all__ = ["Taken", "check_weights"]


@dataclass(frozen=True, kw_only=True)
class Taken:
    """What a trainer holds.

    Attributes:
        model: The model.
        dataset: Its training data, with ``len()`` and ``dataset[i]``.
        collate: ``(samples) -> batch``.
        build_optimizer: ``(parameters) -> optimizer``.
        compute_loss: ``(model, batch) -> loss``, or ``None`` for the one that the model returns.
        batch_size: Samples per forward pass on a device.
        accumulation_steps: Forward passes per optimizer step.
        max_grad_norm: Clipping, or ``None``.
        device: Where it trains, or ``None`` where momadvise would.
        own: What the trainer does itself, as methods of the catalogue.
        unsaid: What else it would do itself, which is not measured.
    """

    model: torch.nn.Module
    dataset: Any
    collate: Callable[[list[Any]], Any]
    build_optimizer: Callable[[Any], Any]
    compute_loss: Callable[[Any, Any], Any] | None
    batch_size: int
    accumulation_steps: int
    max_grad_norm: float | None
    device: str | None
    own: tuple[MethodSetting, ...] = ()
    unsaid: tuple[str, ...] = ()


def check_weights(model: torch.nn.Module, owner: str) -> None:
    """Refuse a model that has no weights here.

    Raises:
        WorkloadError: Some are on the meta device, or divided among processes.
    """
    for name, parameter in model.named_parameters():
        if parameter.is_meta or hasattr(parameter, "ds_id"):
            where = "on the meta device" if parameter.is_meta else "divided by DeepSpeed"
            raise WorkloadError(
                f"The model of {owner} must have its weights, but {name} is {where}. Build the model on the CPU, "
                "and leave its distribution to a policy for several devices."
            )
