"""Tell tensors that are spread over ranks from others, without loading the class that they have.

That class takes as long to load as a tenth of torch, in every worker, and before something has loaded it no tensor is
one.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, TypeGuard

import torch

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor

__all__ = ["own_part", "whole"]


def own_part(tensor: torch.Tensor) -> torch.Tensor:
    """The part of a tensor that is on this rank; a plain tensor as it is."""
    return tensor.to_local() if _is_sharded(tensor) else tensor


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """All of a tensor; every rank must take part. A plain tensor as it is."""
    return tensor.full_tensor() if _is_sharded(tensor) else tensor


def _is_sharded(tensor: torch.Tensor) -> TypeGuard[DTensor]:
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(tensor, module.DTensor)
