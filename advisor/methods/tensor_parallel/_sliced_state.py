"""The state of a sliced model as that of a plain one, and back; also on another number of ranks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist

from advisor.errors import MethodRefusedError
from advisor.methods.tensor_parallel._block_plan import Slice
from advisor.methods.tensor_parallel._collectives import ProcessRanks

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

        Raises:
            MethodRefusedError: It keeps tensors of other shapes than its parameters, which cannot be put together.
        """
        held = {
            index: {key: self._whole_entry(names[index], key, value) for key, value in entries.items()}
            for index, entries in state["state"].items()
        }
        return self._kept({**state, "state": held})

    def whole(self, name: str, value: Any) -> Any:
        """A tensor of all ranks' parts of a parameter, or of something of its shape; anything else as it is."""
        if not isinstance(value, torch.Tensor):
            return value
        part = self._slices.get(name)
        if part is None or value.dim() <= part.dim:
            return value.detach().cpu()
        own = value.detach().to(self._device(value)).contiguous()
        parts = [torch.empty_like(own) for _ in range(self._ranks.size)]
        dist.all_gather(parts, own, group=self._ranks.group)
        return part.joined([each.cpu() for each in parts]) if self._ranks.rank == 0 else None

    def part(self, name: str, value: Any) -> Any:
        """This rank's part of it."""
        part = self._slices.get(name)
        if part is None or not isinstance(value, torch.Tensor) or value.dim() <= part.dim:
            return value
        return part.of(value, self._ranks.rank)

    def _device(self, value: torch.Tensor) -> torch.device:
        """From where the group can send: the values may be in host memory."""
        if value.device.type == "cpu" and dist.get_backend(self._ranks.group) == "nccl":
            return torch.device("cuda", torch.cuda.current_device())
        return value.device

    def _kept(self, state: dict[str, Any]) -> dict[str, Any]:
        return state if self._ranks.rank == 0 else {}

    def _whole_entry(self, name: str, key: str, value: Any) -> Any:
        part = self._slices.get(name)
        if part is not None and isinstance(value, torch.Tensor) and value.dim() > 0:
            length = len(part.indices[self._ranks.rank])
            if value.dim() <= part.dim or value.size(part.dim) != length:
                raise MethodRefusedError(
                    f"the optimizer's {key} of {name} has shape {list(value.shape)}: only what has the shape of the "
                    "parameter can be gathered from tensor-parallel ranks"
                )
        return self.whole(name, value)
