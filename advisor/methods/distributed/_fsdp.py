"""Every process holds a slice of each parameter; whole ones exist while they are computed with."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import CheckpointWrapper
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    MixedPrecisionPolicy,
    OffloadPolicy,
    fully_shard,
)
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset
from torch.utils._python_dispatch import _disable_current_modes

from advisor.methods.distributed._used_parameters import UsedParameters
from advisor.training.processes.distribution import Distribution, LossModule, plain_names, share_parameters
from advisor.training.processes.world import World

__all__ = ["FullySharded"]

_T = TypeVar("_T")


class FullySharded(Distribution):
    """The processes of a world, among which one model is sliced (torch's ``fully_shard``).

    The root that is gathered for the whole pass is the model together with its loss, so that a loss may use what is
    in no block (an output layer's weight) without calling the model.

    Args:
        model: The model, on its device; every process gets the parameters of rank 0.
        compute_loss: Its loss.
        world: The processes.
        device: Where to compute.
        blocks: Its repeated blocks, gathered one at a time; inside of checkpoint wrappers or not.
        reshard: Drop gathered blocks between their forward and backward pass.
        bf16: Gather and compute in bfloat16.
        offload: Keep the slices in host memory.
        in_stages: Whether this process has only some of the blocks.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        compute_loss: Callable[[torch.nn.Module, Any], torch.Tensor],
        world: World,
        device: torch.device,
        blocks: list[torch.nn.Module],
        *,
        reshard: bool,
        bf16: bool,
        offload: bool,
        in_stages: bool = False,
    ) -> None:
        share_parameters(model, world)
        self._world = world
        options: dict[str, Any] = {
            "mesh": _mesh(device, world),
            "offload_policy": CPUOffloadPolicy() if offload else OffloadPolicy(),
        }
        inside, outside = (_BF16, _BF16_TO_LOSS) if bf16 else (MixedPrecisionPolicy(), MixedPrecisionPolicy())
        for block in _with_wrappers(model, blocks):
            fully_shard(block, reshard_after_forward=reshard, mp_policy=inside, **options)
        root = LossModule(model, compute_loss)
        fully_shard(root, reshard_after_forward=False, mp_policy=outside, **options)
        self._root = root
        self._used = UsedParameters(root, world, in_stages=in_stages)

    def loss(
        self, model: torch.nn.Module, compute_loss: Callable[[torch.nn.Module, Any], torch.Tensor], batch: Any
    ) -> torch.Tensor:
        """The loss, computed on gathered parameters. Gradients are averaged and sliced in every backward pass.

        Also where more will be added to them: whole gradients that wait for the last pass would be what is saved.
        """
        loss: torch.Tensor = self._root(batch)
        self._used.watch()
        return loss

    def after_backward(self) -> None:
        """Note which parameters the pass has used."""
        self._used.after_backward()

    def complete_gradients(self) -> None:
        """Leave parameters without a gradient that no process has used."""
        self._used.complete()

    def after_step(self) -> None:
        """Begin to note anew."""
        self._used.begin_next()

    def call(self, model: torch.nn.Module, function: Callable[[torch.nn.Module], _T]) -> _T:
        """``function(model)`` on gathered parameters; its inputs are not cast."""
        answer: _T = self._root(None, function)
        return answer

    def clip_grad_norm(self, parameters: list[torch.nn.Parameter], max_norm: float) -> torch.Tensor:
        """Clip by the norm over all slices."""
        norm = super().clip_grad_norm(parameters, max_norm)
        return norm.full_tensor() if isinstance(norm, DTensor) else norm

    def model_state(self, model: torch.nn.Module) -> dict[str, Any]:
        """All slices together, on rank 0's host memory."""
        state = {name: self._gathered(value) for name, value in plain_names(model.state_dict()).items()}
        return state if self._world.rank == 0 else {}

    def load_model_state(self, model: torch.nn.Module, state: Mapping[str, Any]) -> None:
        """Each process keeps its slices."""
        own = plain_names(model.state_dict())
        sliced = {name: _sliced_as(own.get(name), value) for name, value in state.items()}
        model.load_state_dict(sliced)

    def optimizer_state(self, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        """All slices together, on rank 0's host memory, in the plain optimizer's format."""
        state = optimizer.state_dict()
        held = {
            index: {name: self._gathered(value) for name, value in entries.items()}
            for index, entries in state["state"].items()
        }
        return {**state, "state": held} if self._world.rank == 0 else {}

    def load_optimizer_state(self, optimizer: torch.optim.Optimizer, state: Mapping[str, Any]) -> None:
        """Each process keeps its slices."""
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        order = [index for group in state["param_groups"] for index in group["params"]]
        by_index = dict(zip(order, parameters, strict=True))
        held = {
            index: {name: _sliced_as(by_index[index], value) for name, value in entries.items()}
            for index, entries in state["state"].items()
        }
        optimizer.load_state_dict({**state, "state": held})

    def _gathered(self, value: Any) -> Any:
        """The whole tensor of a slice; every process takes part, and all but rank 0 drop it again."""
        if not isinstance(value, DTensor):
            return value.cpu() if isinstance(value, torch.Tensor) else value
        if value.device.type != value.device_mesh.device_type:
            value = value.to(value.device_mesh.device_type)  # Offloaded slices; NCCL sends from devices only.
        whole = value.full_tensor().detach()
        return whole.cpu() if self._world.rank == 0 else None


_BF16 = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
_BF16_TO_LOSS = dataclasses.replace(_BF16, output_dtype=torch.float32)


def _mesh(device: torch.device, world: World) -> DeviceMesh:
    """The devices in a row: real tensors, also in a trace on fake ones."""
    with _disable_current_modes():
        if world.size == dist.get_world_size():
            return init_device_mesh(device.type, (world.size,))
        assert world.device_group is not None, "several processes have a group"
        return DeviceMesh.from_group(world.device_group, device.type)


def _with_wrappers(model: torch.nn.Module, blocks: list[torch.nn.Module]) -> list[torch.nn.Module]:
    """The blocks, each with the checkpoint wrapper around it if there is one: gathering comes before recomputing.

    A link of a chain is left outside: it may run the blocks of others.
    """
    around = {
        id(inner): module
        for module in model.modules()
        if isinstance(module, CheckpointWrapper)
        and isinstance(inner := module._checkpoint_wrapped_module, torch.nn.Module)
    }
    return [around.get(id(block), block) for block in blocks]


def _sliced_as(like: Any, value: Any) -> Any:
    """This process's slice of a whole tensor, as ``like`` is sliced; anything else as it is."""
    if not isinstance(like, DTensor) or not isinstance(value, torch.Tensor) or value.shape != like.shape:
        return value
    shape, offset = compute_local_shape_and_global_offset(like.shape, like.device_mesh, like.placements)
    for dimension, (length, start) in enumerate(zip(shape, offset, strict=True)):
        value = value.narrow(dimension, min(start, value.size(dimension)), length)
    local = value.to(like.device, copy=True)
    return DTensor.from_local(
        local, like.device_mesh, like.placements, run_check=False, shape=like.shape, stride=like.stride()
    )
