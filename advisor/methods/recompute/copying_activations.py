"""Activations that write over their input, made to copy for as long as a training lasts."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from advisor.training.training import Training

__all__ = ["stop_inplace"]


def stop_inplace(training: Training, modules: Iterable[torch.nn.Module]) -> None:
    """Set ``inplace=False`` on modules that have it: what is recomputed from must not be written over.

    The setting comes back when the training closes.

    Args:
        training: Whose modules they are.
        modules: The modules themselves, not those inside of them.
    """
    changed = [module for module in modules if getattr(module, "inplace", False) is True]
    for module in changed:
        module.inplace = False  # type: ignore[assignment]

    def restore() -> None:
        for module in changed:
            module.inplace = True  # type: ignore[assignment]

    if changed:
        training.on_close(restore)
