"""Replace a module's forward function for as long as a training lasts."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from advisor.training.training import Training

__all__ = ["replace_forward"]


def replace_forward(training: Training, module: torch.nn.Module, forward: Callable[..., Any]) -> None:
    """Make ``module`` call ``forward``; its class, hooks, state and place in the model stay.

    A recomputation calls the module and so the same function. The original returns when the training closes.
    """
    before = vars(module).get("forward")
    module.forward = forward

    def restore() -> None:
        if before is None:
            del module.forward
        else:
            module.forward = before

    training.on_close(restore)
