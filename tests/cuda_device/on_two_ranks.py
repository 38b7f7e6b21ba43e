"""What two ranks do on two devices that compute values; the tests judge what they bring back.

``python -m tests.cuda_device.on_two_ranks FOLDER``: imports are made once, ranks are forked from there.
"""

from __future__ import annotations

import functools
import multiprocessing
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from advisor.hardware.mesh import Mesh
from advisor.methods.setting import use
from advisor.training.processes.world import current_world
from tests.distributed.models import DDP, FEWER_STEPS, STATIC, ZERO_1, ZERO_2, ZERO_3, Case, padded_text, started
from tests.distributed.ranks import share
from tests.methods.tiny import gpt2

SIZE = 2
TRAININGS = {
    "one device": Case(()),
    "ddp": Case((DDP,)),
    "ddp, static, accumulating": Case((STATIC,), micro_batch=2, clip=0.1),
    "one device, accumulating": Case((), micro_batch=2, clip=0.1),
    "zero_1": Case((ZERO_1,)),
    "zero_2": Case((ZERO_2,)),
    "zero_3": Case((ZERO_3,)),
    "zero_3 of a checkpointed model": Case(
        tuple(sorted((ZERO_3, use("checkpoint", every=1)), key=lambda each: each.name))
    ),
    "zero_3, offloaded": Case((use("fsdp", reshard=True, mixed_precision="none", offload=True),)),
    "zero_3 in bf16": Case((use("fsdp", reshard=True, mixed_precision="bf16", offload=False),)),
}

ON_MESHES = {
    **{
        f"tensor_parallel(sequence={sequence})": (
            use("tensor_parallel", sequence=sequence, vocabulary=False),
            Mesh(tensor=2),
        )
        for sequence in (False, True)
    },
    "tensor_parallel(vocabulary=True)": (use("tensor_parallel", sequence=True, vocabulary=True), Mesh(tensor=2)),
    **{
        f"pipeline(schedule={schedule})": (use("pipeline", schedule=schedule), Mesh(pipeline=2))
        for schedule in ("gpipe", "1f1b", "zero_bubble")
    },
}


def on_meshes() -> dict[str, Any]:
    """Parameters and losses of trainings in which two devices have a part of each sample's work."""
    found = {}
    for name, (setting, mesh) in ON_MESHES.items():
        case = Case((setting,), micro_batch=2, clip=0.1)
        training = started(
            case.settings,
            current_world(mesh),
            case,
            build=lambda: gpt2(4, dropout=0.0),
            device=f"cuda:{dist.get_rank()}",
            example_batch={name: one[:2] for name, one in padded_text(0).items()},
        )
        losses = [float(training.step(padded_text(step))) for step in range(FEWER_STEPS)]
        found[name] = ({key: one.cpu() for key, one in training.state_dict()["model"].items()}, losses)
        training.close()
    return found


def alone() -> dict[str, Any]:
    """The same on one device, on the first rank."""
    if dist.get_rank():
        return {}
    case = Case((), micro_batch=2, clip=0.1)
    training = started((), None, case, build=lambda: gpt2(4, dropout=0.0), device="cuda:0")
    losses = [float(training.step(padded_text(step))) for step in range(FEWER_STEPS)]
    return {"model": {name: one.cpu() for name, one in training.state_dict()["model"].items()}, "losses": losses}


def collectives() -> dict[str, Any]:
    """Each collective of NCCL; of this rank's numbers, which are 0 to 4 and 10 to 14."""
    rank = dist.get_rank()
    mine = torch.arange(5.0, device="cuda") + 10 * rank
    found: dict[str, Any] = {}

    def keep(name: str, collective: Callable[[torch.Tensor], Any], own: torch.Tensor = mine) -> None:
        kept = own.clone()
        result = collective(kept)
        found[name] = (kept if result is None or isinstance(result, dist.Work) else result).tolist()

    def gathered(own: torch.Tensor) -> torch.Tensor:
        every = own.new_empty(SIZE * own.numel())
        dist.all_gather_into_tensor(every, own)
        return every

    def scattered(own: torch.Tensor) -> torch.Tensor:
        part = own.new_empty(own.numel() // SIZE)
        dist.reduce_scatter_tensor(part, own)
        return part

    def exchanged(own: torch.Tensor) -> torch.Tensor:
        other = torch.empty_like(own)
        tasks = [dist.P2POp(dist.isend, own, 1 - rank), dist.P2POp(dist.irecv, other, 1 - rank)]
        for work in dist.batch_isend_irecv(tasks):
            work.wait()
        return other

    def swapped(own: torch.Tensor) -> torch.Tensor:
        every = torch.empty_like(own)
        dist.all_to_all_single(every, own)
        return every

    for name, operation in {"sum": dist.ReduceOp.SUM, "product": dist.ReduceOp.PRODUCT, "max": dist.ReduceOp.MAX,
                            "min": dist.ReduceOp.MIN, "avg": dist.ReduceOp.AVG}.items():  # fmt: skip
        keep(name, functools.partial(dist.all_reduce, op=operation))
    halved = getattr(dist, "_make_nccl_premul_sum")(0.5)  # noqa: B009  # torch does not export it to mypy
    keep("premul", lambda own: dist.all_reduce(own, op=halved))
    for dtype in (
        torch.float64,
        torch.float16,
        torch.bfloat16,
        torch.float8_e4m3fn,
        torch.int32,
        torch.int64,
        torch.uint8,
    ):
        keep(str(dtype), lambda own: dist.all_reduce(own), mine.to(dtype))
    keep("broadcast", lambda own: dist.broadcast(own, src=1))
    keep("reduce", lambda own: dist.reduce(own, dst=1))
    keep("all-gather", gathered)
    keep("reduce-scatter", scattered, mine[:4])
    keep("send and receive", exchanged)
    keep("all-to-all", swapped, mine[:4])
    keep("in a group of its own", lambda own: dist.all_reduce(own, group=dist.new_group([0, 1])))
    large = torch.full((1_000_001,), rank + 1.0, device="cuda")
    dist.all_reduce(large)
    found["large"] = [large.min().item(), large.max().item()]
    return found


def trainings() -> dict[str, Any]:
    """Parameters and losses of trainings on both ranks; those on one device on the first alone."""
    world = current_world()
    found = {}
    for name, case in TRAININGS.items():
        alone = name.startswith("one device")
        if alone and dist.get_rank():
            continue
        training = started(case.settings, None if alone else world, case, device=f"cuda:{dist.get_rank()}")
        batches = [padded_text(step) if alone else share(padded_text(step)) for step in range(FEWER_STEPS)]
        losses = [float(training.step(batch)) for batch in batches]
        model = {key: value.cpu() for key, value in training.state_dict()["model"].items()}
        found[name] = (model, losses)
        training.close()
    return found


def left_alone() -> dict[str, Any]:
    """What a rank is told when the other has gone, and after how many seconds."""
    mine = torch.ones(3, device="cuda")
    dist.all_reduce(mine)
    if dist.get_rank() == 1:
        os._exit(3)
    begin = time.monotonic()
    try:
        dist.all_reduce(mine)
        said = ""
    except RuntimeError as error:  # a DistBackendError before torch 2.15
        said = str(error)
    return {"said": said, "seconds": time.monotonic() - begin}


def _run(rank: int, folder: Path) -> None:
    torch.cuda.set_device(rank)
    dist.init_process_group("cpu:gloo,cuda:nccl", init_method=f"file://{folder}/store", rank=rank, world_size=SIZE)
    for act in (collectives, trainings, alone, on_meshes, left_alone):
        torch.save(act(), folder / f"{act.__name__}-{rank}.pt")
    os._exit(0)  # nobody is there any more to take leave of


def main() -> None:
    """Fork the ranks, and wait for them."""
    folder = Path(sys.argv[1])
    ranks = [multiprocessing.get_context("fork").Process(target=_run, args=(rank, folder)) for rank in range(SIZE)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join()
    sys.exit([rank.exitcode for rank in ranks] != [0, 3])


if __name__ == "__main__":
    main()
