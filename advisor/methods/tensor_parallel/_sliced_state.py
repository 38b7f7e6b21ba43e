"""The state of a sliced model as that of a plain one, and back; also on another number of ranks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist

from advisor.methods.tensor_parallel._block_plan import Slice
from advisor.methods.tensor_parallel._collectives import ProcessRanks
from advisor.training.processes.cut import IN_PARTS
from advisor.training.processes.exchange import told

__all__ = ["SlicedState"]


class SlicedState:
    """Gathers and slices tensors of a model's parameters.

    Args:
        slices: Plain name of a parameter -> how it is sliced.
        ranks: The ranks that hold the slices.
    """

    def __init__(self, slices: Mapping[str, Slice], ranks: ProcessRanks) -> None:
        self._slices = slices
        self._ranks = ranks

    def whole_of(self, state: dict[str, Any]) -> dict[str, Any]:
        """Everything in a state, in host memory of the first rank; all call it, others get ``{}``."""
        return self._kept(type(state)((name, self.whole(name, value)) for name, value in state.items()))

    def whole_of_optimizer(self, state: dict[str, Any], names: Mapping[int, str]) -> dict[str, Any]:
        """An optimizer's state, likewise.

        Args:
            state: As the optimizer returns it.
            names: Index of a parameter -> its plain name.
        """
        held = {
            index: {key: self._whole_entry(names[index], value) for key, value in entries.items()}
            for index, entries in state["state"].items()
        }
        return self._kept({**state, "state": held})

    def whole(self, name: str, value: Any) -> Any:
        """A tensor of all ranks' parts of a parameter, or of something of its shape; anything else as it is."""
        if not isinstance(value, torch.Tensor):
            return value
        part = self._slices.get(name)
        if part is None or value.dim() <= part.dim or not value.numel():  # emptied, where it is not needed
            return value.detach().cpu()
        own = value.detach().to(self._device(value)).contiguous()
        parts = [torch.empty_like(own) for _ in range(self._ranks.size)]
        dist.all_gather(parts, own, group=self._ranks.group)
        return part.joined([each.cpu() for each in parts]) if self._ranks.rank == 0 else None

    def part(self, name: str, value: Any) -> Any:
        """This rank's part of it."""
        part = self._slices.get(name)
        if part is None or not isinstance(value, torch.Tensor) or value.dim() <= part.dim or not value.numel():
            return value
        return part.of(value, self._ranks.rank)

    def _device(self, value: torch.Tensor) -> torch.device:
        """From where the group can send: the values may be in host memory."""
        if value.device.type == "cpu" and dist.get_backend(self._ranks.group) == "nccl":
            return torch.device("cuda", torch.cuda.current_device())
        return value.device

    def _kept(self, state: dict[str, Any]) -> dict[str, Any]:
        return state if self._ranks.rank == 0 else {}

    def part_of_entry(self, name: str, value: Any) -> Any:
        """This rank's part of something that an optimizer keeps of a parameter."""
        if isinstance(value, dict) and IN_PARTS in value:
            return value[IN_PARTS][self._ranks.rank]
        return self.part(name, value)

    def _whole_entry(self, name: str, value: Any) -> Any:
        part = self._slices.get(name)
        plain = type(value) is torch.Tensor
        if part is None or not (plain or isinstance(value, torch.Tensor | dict)) or (plain and value.dim() == 0):
            return self.whole(name, value)
        length = len(part.indices[self._ranks.rank])
        if plain and value.dim() > part.dim and value.size(part.dim) == length:
            return self.whole(name, value)
        # Coded or factored: no tensor of the parameter's shape can be put together of it.
        device = self._device(torch.empty(0))
        parts = [told(value, self._ranks.group, device, by=rank) for rank in range(self._ranks.size)]
        on_host = torch.utils._pytree.tree_map(
            lambda each: each.cpu() if isinstance(each, torch.Tensor) else each, parts
        )
        return {IN_PARTS: on_host}
