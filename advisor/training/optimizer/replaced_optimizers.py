"""Optimizers that methods replaced: a scheduler that holds one still changes the optimizer in use."""

from __future__ import annotations

import torch

from advisor.errors import MethodRefusedError
from advisor.training.optimizer.fused_step import is_ours

__all__ = ["ReplacedOptimizers"]


class ReplacedOptimizers:
    """The replaced optimizers of one training, which share the parameter groups of the current one."""

    def __init__(self) -> None:
        self._replaced: list[torch.optim.Optimizer] = []

    def add(self, before: torch.optim.Optimizer, *, by: torch.optim.Optimizer) -> None:
        """Hand hooks and groups on.

        Raises:
            MethodRefusedError: A scheduler holds the one before, and its replacement has other groups.
        """
        # The user's step hooks must run around the steps of the replacement; ours belong to what they were made for.
        for hooks in ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks"):
            kept = {key: hook for key, hook in getattr(before, hooks).items() if not is_ours(hook)}
            getattr(by, hooks).update(kept)
        scheduled = getattr(before.step, "_wrapped_by_lr_sched", False)
        if len(before.param_groups) == len(by.param_groups):
            if scheduled:  # which may move what the replacement has no use for
                for old, new in zip(before.param_groups, by.param_groups, strict=True):
                    for name in ("betas", "momentum"):
                        if name in old:
                            new.setdefault(name, old[name])
            self._replaced.append(before)
            self.share_groups(by)
        elif scheduled:
            raise MethodRefusedError(
                f"build_optimizer makes a scheduler of {len(before.param_groups)} parameter groups, but the optimizer "
                f"that replaces it has {len(by.param_groups)}; make the scheduler from training.optimizer, or "
                "leave the method out"
            )

    def share_groups(self, optimizer: torch.optim.Optimizer) -> None:
        """Give all of them the groups of the current optimizer, which gets new ones when a state is loaded."""
        for before in self._replaced:
            before.param_groups = optimizer.param_groups
            before._opt_called = True  # type: ignore[attr-defined]  # its steps are made: a scheduler need not warn
