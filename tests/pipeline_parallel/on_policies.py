"""Trainings by policies with a pipeline, on ranks; the tests judge what they bring back."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from advisor.hardware.mesh import Mesh
from advisor.methods.compose import apply_uses
from advisor.methods.use import MethodUse, use
from advisor.training.training import Training
from advisor.training.world import World, current_world
from tests.distributed.models import movement_error, padded_text, sgd, two_groups
from tests.distributed.ranks import share
from tests.methods.tiny import gpt2
from tests.pipeline_parallel.on_stages import tried

STEPS = 3
LAYERS = 4


def transformer() -> nn.Module:
    return gpt2(LAYERS, dropout=0.0)


def trained(
    uses: tuple[MethodUse, ...],
    *,
    mesh: Mesh | None,
    steps: int = STEPS,
    micro_batch: int = 2,
    max_grad_norm: float | None = 0.1,
    build_optimizer: Any = sgd,
    seed: int = 0,
) -> tuple[Training, list[float]]:
    """A training after some steps: of one process if there is no mesh, otherwise of the ranks of the mesh."""
    world = World() if mesh is None else current_world(mesh)
    model = transformer()
    training = Training(
        model,
        build_optimizer=build_optimizer,
        micro_batch=micro_batch,
        max_grad_norm=max_grad_norm,
        world=world,
    )
    apply_uses(training, uses)
    losses = []
    for step in range(steps):
        batch = padded_text(seed + step)
        losses.append(float(training.step(share_of(batch, world))))
    return training, losses


def share_of(batch: Any, world: World) -> Any:
    """The part of a batch that this rank's place on the data axis has."""
    size, rank = world.data.size, world.data.rank
    return torch.utils._pytree.tree_map(lambda tensor: tensor.chunk(size)[rank], batch)


def against_one_process(
    uses: tuple[MethodUse, ...], plain: tuple[MethodUse, ...] = (), *, mesh: Mesh, **options: Any
) -> dict[str, Any]:
    """Steps of a policy on a mesh, and those of one process."""
    micro_batch = options.pop("micro_batch", 2)
    expected, wanted = trained(plain, mesh=None, micro_batch=micro_batch, **options)
    training, losses = trained(uses, mesh=mesh, micro_batch=micro_batch, **options)
    state = training.state_dict()
    total = torch.tensor(losses, dtype=torch.float64)
    if training.world.data.size > 1:
        dist.all_reduce(total, group=training.world.data.device_group)
        total /= training.world.data.size
    found = {
        "losses": max(abs(one - other) for one, other in zip(total.tolist(), wanted, strict=True)),
        "movement": movement_error(state["model"], expected.state_dict()["model"], transformer())
        if state["model"]
        else 0.0,
        "names": not state["model"] or list(state["model"]) == list(expected.state_dict()["model"]),
    }
    training.close()
    expected.close()
    return found


def piped(schedule: str = "1f1b") -> MethodUse:
    return use("pipeline", schedule=schedule)


def on_two() -> dict[str, Any]:
    warnings.simplefilter("ignore")
    mesh = Mesh(pipeline=2)
    found = {
        schedule: tried(lambda schedule=schedule: against_one_process((piped(schedule),), mesh=mesh))
        for schedule in ("1f1b", "gpipe", "interleaved", "zero_bubble")
    }
    found["two groups"] = tried(lambda: against_one_process((piped(),), mesh=mesh, build_optimizer=two_groups))
    found["bf16"] = tried(
        lambda: against_one_process(
            (piped(), use("precision", dtype="bf16")), (use("precision", dtype="bf16"),), mesh=mesh
        )
    )
    return found
