"""An optimizer that is there: its class, its traits, whether it steps as its class does, and a part of it alone."""

from __future__ import annotations

import contextlib
import inspect
from collections import OrderedDict
from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING, Any

from advisor.methods.optimizers.traits import OptimizerTraits, named

if TYPE_CHECKING:
    import torch

__all__ = ["class_name_of", "has_own_step", "narrowed", "traits_of"]


def class_name_of(optimizer: torch.optim.Optimizer) -> str:
    """The class as a probe notes it, e.g. ``"torch.optim.adamw.AdamW"``; one whose step was replaced is no such."""
    own = "one with a step of its own, " if has_own_step(optimizer) else ""
    return f"{own}{type(optimizer).__module__}.{type(optimizer).__qualname__}"


def traits_of(optimizer: torch.optim.Optimizer) -> OptimizerTraits:
    """What is known of an optimizer: what its class declares, or the table has; with a step of its own, nothing."""
    declared = vars(type(optimizer)).get("traits")
    if isinstance(declared, OptimizerTraits) and not has_own_step(optimizer):
        return declared
    return named(class_name_of(optimizer))


def has_own_step(optimizer: torch.optim.Optimizer) -> bool:
    """Whether the user gave this one object another step, as to clip gradients in it.

    Schedulers wrap the step, and so do methods; inside is the class's all the same.
    """
    step = vars(optimizer).get("step")
    if step is None:
        return False
    plain = inspect.unwrap(getattr(step, "__func__", step))
    return plain is not inspect.unwrap(type(optimizer).step) and not getattr(plain, "__module__", "").startswith(
        "advisor."
    )


@contextlib.contextmanager
def narrowed(
    optimizer: torch.optim.Optimizer, group: dict[str, Any], members: Sequence[torch.Tensor], *hooks: str
) -> Generator[None, None, None]:
    """Context in which an optimizer has one group, with some members, and none of some hooks, given by attribute."""
    replaced = {"param_groups": [group], **{name: OrderedDict() for name in hooks}}
    before = {name: getattr(optimizer, name) for name in replaced}
    plain = group["params"]
    group["params"] = members
    vars(optimizer).update(replaced)
    try:
        yield
    finally:
        group["params"] = plain
        vars(optimizer).update(before)
