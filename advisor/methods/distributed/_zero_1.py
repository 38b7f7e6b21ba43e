"""Data parallelism in which every process keeps a part of the optimizer's state."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.distributed.optim import ZeroRedundancyOptimizer

from advisor.methods.distributed._data_parallel import DataParallel
from advisor.training.optimizer.fused_step import as_fused, keep_parts_as_plain, lay_out

__all__ = ["ShardedOptimizer"]


class ShardedOptimizer(DataParallel):
    """:class:`DataParallel` with torch's ZeroRedundancyOptimizer."""

    def shard(self, plain: torch.optim.Optimizer, options: Mapping[str, Any]) -> ZeroRedundancyOptimizer:
        """An optimizer like ``plain``, of which each process holds a part.

        Args:
            plain: An optimizer of torch.optim that has not stepped.
            options: What its class was constructed with.
        """
        groups = [dict(group) for group in plain.param_groups]
        sharded = ZeroRedundancyOptimizer(
            groups, optimizer_class=type(plain), process_group=self._world.device_group, **options
        )
        keep_parts_as_plain(sharded, sharded.optim, plain)
        _show_own_state(sharded)
        return sharded

    def optimizer_state(self, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        """All parts together, on rank 0."""
        assert isinstance(optimizer, ZeroRedundancyOptimizer)
        optimizer.consolidate_state_dict(to=0)
        if self._world.rank != 0:
            return {}
        state: dict[str, Any] = optimizer.state_dict()
        optimizer._all_state_dicts = []  # type: ignore[attr-defined]  # A copy of everything, of no further use.
        return state

    def load_optimizer_state(self, optimizer: torch.optim.Optimizer, state: Mapping[str, Any]) -> None:
        """Each process keeps its part."""
        assert isinstance(optimizer, ZeroRedundancyOptimizer)
        # It empties the entries that are not its own, in the dictionaries that it is given.
        optimizer.load_state_dict(as_fused(optimizer, {**state, "state": dict(state["state"])}))
        _put_steps_on_device(optimizer.optim)
        lay_out(optimizer.optim)
        _show_own_state(optimizer)


def _put_steps_on_device(part: torch.optim.Optimizer) -> None:
    """Put the count of steps where fused steps read it: torch's own loading does, but it is loaded in another way."""
    for group in part.param_groups:
        for parameter in group["params"] if group.get("fused") or group.get("capturable") else ():
            entries = part.state.get(parameter, {})
            if isinstance(entries.get("step"), torch.Tensor):
                entries["step"] = entries["step"].to(parameter.device)


def _show_own_state(optimizer: ZeroRedundancyOptimizer) -> None:
    """Let ``optimizer.state`` be the state of this process's part, which exists once and can be counted."""
    optimizer.state = optimizer.optim.state
