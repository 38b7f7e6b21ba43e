"""The order in memory of an optimizer's state."""

from __future__ import annotations

import torch

__all__ = ["lay_out_state"]


def lay_out_state(optimizer: torch.optim.Optimizer) -> None:
    """Lay state out in memory as the parameters that it is of, after it was loaded.

    A state may come from a training whose weights lay otherwise, and torch loads it as it lies. On a CPU fused
    optimizers then update each element with the state of another, without a word; on a GPU they fail. Optimizers that
    are not of torch.optim decide for themselves what lies where.
    """
    if not type(optimizer).__module__.startswith("torch.optim"):
        return
    for parameter, entries in optimizer.state.items():
        for name, value in entries.items():
            if type(value) is torch.Tensor and value.shape == parameter.shape and value.stride() != parameter.stride():
                entries[name] = torch.empty_like(parameter, dtype=value.dtype, requires_grad=False).copy_(value)
