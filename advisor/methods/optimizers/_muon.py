"""Two optimizers that a training sees as one: ``torch.optim.Muon`` for some matrices, the user's for the rest."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import torch
from torch import nn

__all__ = ["MuonBeside"]

_SHARED = ("lr", "initial_lr", "weight_decay")
"""Options that a group of matrices takes over from their former group; others mean something else to Muon."""


class MuonBeside(torch.optim.Optimizer):
    """One optimizer with the groups and the state of two: Muon, and the user's, which has not stepped.

    Its groups are those of Muon, one for each group that has matrices, and then the user's own, which lose these. All
    three optimizers share the dictionaries, so a changed learning rate reaches the part that steps.
    """

    def __init__(self, beside: torch.optim.Optimizer, matrices: Collection[nn.Parameter]) -> None:
        taken = {id(parameter) for parameter in matrices}
        groups = []
        for group in beside.param_groups:
            own = [parameter for parameter in group["params"] if id(parameter) in taken]
            if own:
                shared = {name: group[name] for name in _SHARED if name in group}
                groups.append({"params": own, "adjust_lr_fn": "match_rms_adamw", **shared})
                group["params"] = [parameter for parameter in group["params"] if id(parameter) not in taken]
        self._beside = beside
        self._muon = torch.optim.Muon(groups)
        super().__init__([*self._muon.param_groups, *beside.param_groups], {})
        self._share()

    def take_over_hooks(self) -> None:
        """Run the user's step hooks around the steps of both, no longer around those of their own optimizer alone."""
        for hooks in ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks"):
            getattr(self._beside, hooks).clear()

    def step(self, closure: Any = None) -> Any:
        """Step both."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._muon.step()  # type: ignore[no-untyped-call]
        self._beside.step()
        return loss

    def __getstate__(self) -> dict[str, Any]:
        """With both parts: torch keeps nothing but groups and state of an optimizer that is copied."""
        return {**super().__getstate__(), "_muon": self._muon, "_beside": self._beside}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Restore what :meth:`state_dict` returned."""
        super().load_state_dict(dict(state_dict))
        self._share()

    def _share(self) -> None:
        """Give both parts the dictionaries of this one: loading a state makes new ones."""
        count = len(self._muon.param_groups)
        self._muon.param_groups = self.param_groups[:count]
        self._beside.param_groups = self.param_groups[count:]
        self._muon.state = self._beside.state = self.state
