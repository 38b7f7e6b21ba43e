"""Set an attribute of an object for as long as a training lasts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from advisor.training.training import Training

__all__ = ["replace_attribute"]


def replace_attribute(training: Training, owner: Any, name: str, value: Any) -> None:
    """Set an attribute; what the object had before, itself or from its class, returns when the training closes.

    A module whose ``forward`` is replaced keeps its class, hooks, state and place in the model, and a recomputation
    calls the new function too.
    """
    inherited, before = name not in vars(owner), getattr(owner, name)
    setattr(owner, name, value)

    def restore() -> None:
        if inherited and name in vars(owner):
            delattr(owner, name)
        else:
            setattr(owner, name, before)

    training.on_close(restore)
