"""The state of a sliced model as that of a plain one, and back; also on another number of ranks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist

from advisor.errors import MethodRefusedError
from advisor.methods.tensor_parallel._block_plan import Slice
from advisor.training.distribution import plain_names

__all__ = ["SlicedState"]


class SlicedState:
    """Gathers and slices tensors of a model's parameters.

    Args:
        slices: Plain name of a parameter -> how it is sliced.
        group: The tensor-parallel group.
    """

    def __init__(self, slices: Mapping[str, Slice], group: dist.ProcessGroup) -> None:
        self._slices = dict(slices)
        self._group = group
        self._rank, self._size = dist.get_rank(group), dist.get_world_size(group)

    def gather_state(self, model: torch.nn.Module) -> dict[str, Any]:
        """The whole state under plain names, in host memory of the group's first rank; all call it, others get {}."""
        state = plain_names(model.state_dict())
        return self._kept({name: self.whole(name, value) for name, value in state.items()})

    def load_state(self, model: torch.nn.Module, state: Mapping[str, Any]) -> None:
        """Restore a plain state; every rank is given all of it and keeps its part."""
        model.load_state_dict({name: self._part(name, value) for name, value in state.items()})

    def gather_optimizer_state(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        """The optimizer's whole state in the plain optimizer's format, on the group's first rank.

        Raises:
            MethodRefusedError: It keeps tensors of other shapes than its parameters, which cannot be put together.
        """
        state = optimizer.state_dict()
        names = self._names(model, optimizer, state)
        held = {
            index: {
                key: self.whole(names[index], self._as_parameter(names[index], key, value, entries))
                for key, value in entries.items()
            }
            for index, entries in state["state"].items()
        }
        return self._kept({**state, "state": held})

    def load_optimizer_state(
        self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, state: Mapping[str, Any]
    ) -> None:
        """Restore what :meth:`gather_optimizer_state` returned; every rank is given all of it."""
        names = self._names(model, optimizer, state)
        held = {
            index: {key: self._part(names[index], value) for key, value in entries.items()}
            for index, entries in state["state"].items()
        }
        optimizer.load_state_dict({**state, "state": held})

    def whole(self, name: str, value: Any) -> Any:
        """A tensor of all ranks' parts of a parameter, or of something of its shape; anything else as it is."""
        if not isinstance(value, torch.Tensor):
            return value
        part = self._slices.get(name)
        if part is None or value.dim() <= part.dim:
            return value.detach().cpu()
        own = value.detach().contiguous()
        parts = [torch.empty_like(own) for _ in range(self._size)]
        dist.all_gather(parts, own, group=self._group)
        return part.joined([each.cpu() for each in parts]) if self._rank == 0 else None

    def _part(self, name: str, value: Any) -> Any:
        part = self._slices.get(name)
        if part is None or not isinstance(value, torch.Tensor) or value.dim() <= part.dim:
            return value
        return part.of(value, self._rank)

    def _kept(self, state: dict[str, Any]) -> dict[str, Any]:
        return state if self._rank == 0 else {}

    def _names(
        self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, state: Mapping[str, Any]
    ) -> dict[int, str]:
        """Index in the state of an optimizer -> plain name of the parameter."""
        by_id = {id(parameter): name for name, parameter in plain_names(dict(model.named_parameters())).items()}
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        order = [index for group in state["param_groups"] for index in group["params"]]
        return {index: by_id.get(id(parameter), "") for index, parameter in zip(order, parameters, strict=True)}

    def _as_parameter(self, name: str, key: str, value: Any, entries: Mapping[str, Any]) -> Any:
        part = self._slices.get(name)
        if part is not None and isinstance(value, torch.Tensor) and value.dim() > 0:
            length = len(part.indices[self._rank])
            if value.dim() <= part.dim or value.size(part.dim) != length:
                raise MethodRefusedError(
                    f"the optimizer's {key} of {name} has shape {list(value.shape)}: only what has the shape of the "
                    "parameter can be gathered from tensor-parallel ranks"
                )
        return value
