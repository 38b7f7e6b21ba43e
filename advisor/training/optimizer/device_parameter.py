"""Maps an optimizer's parameters to the model's, where the optimizer works on copies."""

from __future__ import annotations

import torch

__all__ = ["device_parameter", "stand_in_for"]

_STANDS_FOR = "_momadvise_stands_for"


def stand_in_for(copy: torch.Tensor, parameter: torch.Tensor) -> None:
    """Record that the optimizer uses ``copy`` in place of a parameter of the model."""
    setattr(copy, _STANDS_FOR, parameter)


def device_parameter(parameter: torch.Tensor) -> torch.Tensor:
    """The model's parameter that an optimizer's parameter stands for: itself, unless the optimizer has copies."""
    stands_for: torch.Tensor = getattr(parameter, _STANDS_FOR, parameter)
    return stands_for
