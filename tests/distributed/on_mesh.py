"""What the ranks of a mesh do; the tests judge what they bring back."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from advisor.hardware.mesh import Mesh
from advisor.training.processes.cut import Cut
from advisor.training.processes.world import World, current_world
from advisor.training.training import Training

MESHES = (Mesh(), Mesh(tensor=2), Mesh(pipeline=2), Mesh(tensor=2, pipeline=2), Mesh(tensor=4))
NORM = 3.0


class Halves(Cut):
    """Each process of the axis has its own slice of every weight, and the same biases."""

    def copies(self, parameter: nn.Parameter) -> int:
        return self.world.size if parameter.dim() == 1 else 1


def places() -> list[dict[str, Any]]:
    """Where this rank is in each mesh, and what its rows agree on and sum to."""
    whole = current_world()
    found = []
    for mesh in MESHES:
        world = current_world(mesh)
        rows = {"data": world.data, "tensor": world.tensor, "pipeline": world.pipeline}
        found.append(
            {
                "place": {name: (row.rank, row.size) for name, row in rows.items()},
                "members": {name: _members(row, whole.rank) for name, row in rows.items()},
                "first": {name: row.agreed(whole.rank) for name, row in rows.items()},
            }
        )
    return found


def _members(row: World, rank: int) -> list[int]:
    """The ranks of a row, from a sum of powers of two, on the CPU and on the device's group."""
    total = int(row.total(2.0**rank))
    if row.size > 1:
        sent = torch.tensor(2.0**rank)
        torch.distributed.all_reduce(sent, group=row.device_group)
        assert int(sent) == total
    return [number for number in range(8) if total & 1 << number]


def clipped() -> dict[str, Any]:
    """The norm of a model whose weights are sliced over the tensor axis, and the gradients after clipping to it."""
    world = current_world(Mesh(tensor=2))
    torch.manual_seed(0)
    weight, bias = torch.randn(4, 6), torch.randn(4)
    model = nn.Linear(6, 2)
    model.weight = nn.Parameter(torch.zeros(2, 6))
    model.bias = nn.Parameter(torch.zeros(4))
    training = Training(model, world=world)
    training.cuts.append(Halves(world.tensor))
    model.weight.grad = weight.chunk(2)[world.tensor.rank].clone()
    model.bias.grad = bias.clone()
    norm = training.clip_grad_norm(NORM)
    return {"norm": norm, "weight": model.weight.grad, "bias": model.bias.grad, "rank": world.tensor.rank}
