"""The optimizer of a LightningModule under a policy: one, for all that is trained."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Iterator
from typing import Any

from lightning.fabric.utilities.types import Optimizable

from advisor.errors import MethodRefusedError

__all__ = ["require_one_optimizer"]


@contextlib.contextmanager
def require_one_optimizer(module: Any) -> Iterator[None]:
    """Have ``configure_optimizers`` refuse another number, before Lightning does without a word on the policy.

    Raises:
        MethodRefusedError: (of ``configure_optimizers``) It returns several optimizers, or none.
    """
    usual = module.configure_optimizers

    @functools.wraps(usual)
    def configure_optimizers() -> Any:
        made = usual()
        count = _count(made)
        if "optimizer_idx" in inspect.signature(module.training_step).parameters:
            count = max(count, 2)
        if count == 1:
            return made
        fix = (
            "return one optimizer with a group for each part of the model, such as torch.optim.AdamW([{'params': "
            "self.body.parameters()}, {'params': self.head.parameters(), 'lr': 1e-3}]), and schedule each group in one "
            "LambdaLR; losses that must be stepped apart, as of a GAN, are trained without a policy"
            if count
            else "return an optimizer"
        )
        raise MethodRefusedError(
            f"a policy needs one optimizer, but configure_optimizers of {type(module).__name__} returned "
            f"{count if count != 0 else made!r}; {fix}"
        )

    own = vars(module).get("configure_optimizers")
    object.__setattr__(module, "configure_optimizers", configure_optimizers)
    try:
        yield
    finally:
        object.__delattr__(module, "configure_optimizers")
        if own is not None:
            object.__setattr__(module, "configure_optimizers", own)


def _count(made: Any) -> int:
    """Optimizers in what ``configure_optimizers`` returned, in any of the forms that Lightning takes."""
    if isinstance(made, dict):
        made = made.get("optimizer")
    if isinstance(made, list | tuple):
        return sum(_count(one) for one in made)
    return int(isinstance(made, Optimizable))
