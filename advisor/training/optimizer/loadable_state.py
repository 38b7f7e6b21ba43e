"""Whether an optimizer can load a state, before torch tries: it checks numbers of parameters only, and in its words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from advisor.errors import PolicyError

__all__ = ["require_loadable"]

_OF_SCHEDULERS = frozenset({"initial_lr", "max_lr", "min_lr", "max_momentum", "base_momentum", "swa_lr"})
"""What schedulers add to the options of a group, whatever the optimizer."""

_LARGE = 4096
"""torchao's optimizers quantize every tensor of a multiple of so many elements."""


def require_loadable(optimizer: torch.optim.Optimizer, state: Mapping[str, Any]) -> None:
    """Require that a state is of an optimizer of the same kind, over the same parameters.

    Methods change both: with LoRA the optimizer has other parameters, with Muon other groups, with Adafactor other
    options and entries. Options that only one side has may be those of another version.

    Raises:
        PolicyError: It is of another one.
    """
    own, given = optimizer.param_groups, state["param_groups"]
    sizes, given_sizes = _sizes(own), _sizes(given)
    if sizes != given_sizes:
        what = f"parameter groups of {given_sizes} tensors, and this training's has groups of {sizes}"
    elif missing := _foreign(own, given):
        what = f"the options {missing[1]}, and this training's ({type(optimizer).__name__}) has {missing[0]}"
    elif (packed := _is_packed(state)) is not None and packed is not _packs(optimizer):
        formats = ("in few bits", "in the format of the parameters")
        saved, own_format = formats if packed else reversed(formats)
        what = f"entries {saved}, and this training's ({type(optimizer).__name__}) keeps them {own_format}"
    else:
        return
    raise PolicyError(
        "An optimizer's state must be loaded under the methods that it was saved under, or such that train the same "
        f"parameters with the same kind of optimizer, but the saved one has {what}. Apply the policy that the "
        "checkpoint was saved under, or load its model alone, which is a plain one, and begin with a new optimizer."
    )


def _packs(optimizer: torch.optim.Optimizer) -> bool:
    """Whether it keeps its large entries as tensors of torchao's, whose own Adam of plain ones has a private name."""
    return type(optimizer).__module__.startswith("torchao") and not type(optimizer).__name__.startswith("_")


def _is_packed(state: Mapping[str, Any]) -> bool | None:
    """Whether a state's entries are such; ``None`` if that cannot be told: small ones are kept as they are."""
    values = [value for entries in state["state"].values() for value in entries.values()]
    large = [one for one in values if isinstance(one, torch.Tensor) and one.numel() and not one.numel() % _LARGE]
    if any(type(value).__module__.startswith("torchao") for value in large):
        return True
    return False if large and all(type(value) is torch.Tensor for value in large) else None


def _sizes(groups: list[dict[str, Any]]) -> list[int]:
    return [len(group["params"]) for group in groups]


def _foreign(own: list[dict[str, Any]], given: list[dict[str, Any]]) -> tuple[str, str] | None:
    """Options that only one and only the other has, of the first group where both have some."""
    for group, saved in zip(own, given, strict=True):
        missing = group.keys() - saved.keys() - _OF_SCHEDULERS
        more = saved.keys() - group.keys() - _OF_SCHEDULERS
        if missing and more:
            return ", ".join(sorted(missing)), ", ".join(sorted(more))
    return None
