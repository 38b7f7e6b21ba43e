"""What the ranks do; the tests judge what they bring back. Many checks in one launch: importing torch takes seconds."""

from __future__ import annotations

import contextlib
import copy
import functools
import traceback
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.nn.parallel import DistributedDataParallel

from advisor.errors import MomadviseError
from advisor.measure.measurement import StopReason
from advisor.measure.memory.meters import memory_meter
from advisor.measure.memory.storages import HostData
from advisor.methods.distributed import _data_parallel
from advisor.methods.recompute.optimal_plan import Unit
from advisor.methods.setting import MethodSetting, use
from advisor.policy.apply import apply_policy
from advisor.policy.policy import Policy
from advisor.training.processes.world import World, current_world
from advisor.training.training import Training
from tests.distributed.models import (
    CASES,
    DDP,
    FEWER_STEPS,
    STATIC,
    ZERO_1,
    ZERO_2,
    ZERO_3,
    Branching,
    Case,
    Choosing,
    Convolving,
    Late,
    padded_text,
    pictures,
    sgd,
    started,
    trained,
    transformer,
    two_groups,
    vectors,
)
from tests.distributed.ranks import share
from tests.methods import perceptron
from tests.methods.perceptron import Perceptron
from tests.methods.quick_compiler import quick_compiler
from tests.methods.tiny import adamw, convnet, images, import_bitsandbytes, text, uncompiled_optimizers

DISTRIBUTING = {"ddp": DDP, "ddp static": STATIC, "zero_1": ZERO_1, "zero_2": ZERO_2, "zero_3": ZERO_3}


def all_cases() -> dict[str, Any]:
    """Every case, trained."""
    import_bitsandbytes()
    world = current_world()
    with uncompiled_optimizers(), quick_compiler():
        return {name: _tried(case, world) for name, case in CASES.items()}


def _tried(case: Case, world: World) -> Any:
    """State and losses, or the traceback of what went wrong on every rank alike: one case must not hide the others."""
    try:
        return trained(case, world, share, steps=FEWER_STEPS)
    except Exception:
        return traceback.format_exc()


def few_cases() -> dict[str, Any]:
    """One of each kind, and a model that four do not divide."""
    world = current_world()
    found: dict[str, Any] = {}
    for name, setting in DISTRIBUTING.items():
        case = Case((setting,), micro_batch=1)
        found[name] = trained(case, world, share)
        found[f"{name}, odd"] = trained(case, world, share, build=Branching, data=vectors)
    return found


def everything_else() -> dict[str, Any]:
    """The checks that are no comparison of parameters after some steps."""
    return {
        "states": {name: _states(setting) for name, setting in DISTRIBUTING.items()},
        "loops": {name: _loops(setting) for name, setting in DISTRIBUTING.items()},
        "evaluated": {name: _evaluated(setting) for name, setting in DISTRIBUTING.items()},
        "bytes": {name: _bytes(setting) for name, setting in DISTRIBUTING.items()},
        "measured": {name: _measured(setting) for name, setting in DISTRIBUTING.items()},
        "unused": {name: _with(setting, Branching, micro_batch=1) for name, setting in DISTRIBUTING.items()},
        "unused on one rank": {
            f"{name}, {kind.__name__}": _with(setting, lambda kind=kind: kind(lambda: dist.get_rank() == 0))
            for name, setting in DISTRIBUTING.items()
            for kind in (Branching, Choosing)
            if name != "ddp static"  # it promises that there is no such thing
        },
        "unused on one rank, in an older torch": [_in_an_older_torch(rank=rank) for rank in (None, 0)],
        "changing": {name: _changing(setting) for name, setting in (("ddp", DDP), ("zero_1", ZERO_1))},
        "unfrozen": {name: _unfrozen(setting) for name, setting in (("ddp", DDP), ("zero_1", ZERO_1))},
        "batchnorm": {name: _batchnorm(setting) for name, setting in DISTRIBUTING.items()},
        "overflow": {name: _overflow(setting) for name, setting in DISTRIBUTING.items()},
        "no target in a micro-batch": {name: _no_target(setting, [0]) for name, setting in DISTRIBUTING.items()},
        "no target on a rank": _refused(lambda: _no_target(DDP, [0, 1, 2, 3])),
        "fused shards": {build.__name__: _fused_shards(build) for build in (sgd, adamw)},
        "late in fused shards": _late_in_fused_shards(),
        "fused, in channels last": {name: _in_channels_last(DISTRIBUTING[name]) for name in ("ddp", "zero_1")},
        "rounded": _rounded(),
        "float8": {name: _float8(DISTRIBUTING[name]) for name in ("ddp", "zero_1", "zero_3")},
        "sent": {hook: _sent(hook) for hook in ("fp16", "powersgd_rank_1", "powersgd_rank_4")},
        "buckets": [_in_buckets(setting) for setting in (DDP, STATIC)],
        "applied": _applied(),
        "agreed": _agreed(),
    }


def _agreed() -> list[Any]:
    """Decisions of kinds that trials take, of which every rank would take its own."""
    world = current_world()
    own, nothing = float(world.rank), [None, 8][world.rank]
    costs = [Unit(seconds=0.1 + own, kept=2**40, output=1)]
    reason = [StopReason.STEADY, None][world.rank]
    return [
        world.agreed(own),
        world.agreed(nothing, int | None),
        world.agreed(costs, list[Unit]),
        world.agreed(reason, StopReason | None),
        world.agreed("a" * 10_000 if world.rank == 0 else ""),
    ]


def _states(setting: MethodSetting) -> dict[str, Any]:
    """A state after two steps and the parameters after three; and the third step from a single process's state."""
    world = current_world()
    training = started((setting,), world, build_optimizer=two_groups)
    for step in range(2):
        training.step(share(padded_text(step)))
    state = copy.deepcopy(training.state_dict())
    training.step(share(padded_text(2)))
    final = training.state_dict()["model"]

    single = started((), None, build_optimizer=two_groups)
    for step in range(2):
        single.step(padded_text(step))
    resumed = started((setting,), world, build_optimizer=two_groups)
    resumed.load_state_dict(single.state_dict())
    resumed.step(share(padded_text(2)))
    return {"state": state, "final": final, "resumed": resumed.state_dict()}


def _loops(setting: MethodSetting) -> dict[str, Any]:
    """A loop of one's own over micro-batches, averaging in every pass or in the last one only."""
    found = {}
    for name in ("every pass", "last pass"):
        training = started((setting,), current_world(), micro_batch=2)
        for step in range(3):
            pieces = training.split(share(text(8, 32, seed=step)))
            for number, piece in enumerate(pieces):
                last = name == "every pass" or number == len(pieces) - 1
                with contextlib.nullcontext() if last else training.accumulating():
                    training.backward(training.forward(piece))
            training.optimizer_step()
        found[name] = training.state_dict()["model"]
    return found


def _evaluated(setting: MethodSetting) -> dict[str, Any]:
    training = started((setting,), current_world())
    batch = text(2, 32)
    before = float(training.evaluate(lambda model: model(**batch).loss))
    training.step(share(padded_text(0)))
    after = float(training.evaluate(lambda model: model(**batch).loss))
    training.step(share(padded_text(1)))
    return {"before": before, "after": after, "model": training.state_dict()["model"]}


def _bytes(setting: MethodSetting) -> dict[str, int]:
    training = started((setting,), current_world(), build_optimizer=adamw)
    training.step(share(padded_text(0)))
    states = training.optimizer.state.values()
    moments = [t for state in states for name, t in state.items() if name != "step"]
    return {"optimizer": _size(moments), "parameters": _size(list(training.model.parameters()))}


def _measured(setting: MethodSetting) -> Any:
    """A step as a trial measures it, once the training has settled; the other ranks take it without instruments."""
    training = started((setting,), current_world(), build_optimizer=adamw)
    batch = share(text(8, 32))
    meter = memory_meter(torch.device("cpu"), 2**30, HostData())
    with meter, meter.guarding(batch):
        for _ in range(training.settling_steps):
            training.step(batch)
    if current_world().rank:
        training.step(batch)
        return None
    _, memory = meter.measured_step(training, batch)
    return memory


def _size(tensors: list[torch.Tensor]) -> int:
    own = [t.to_local() if isinstance(t, torch.distributed.tensor.DTensor) else t for t in tensors]
    return sum(tensor.numel() * tensor.element_size() for tensor in own)


def _with(setting: MethodSetting, build: Callable[[], nn.Module], micro_batch: int | None = None) -> Any:
    case = Case((setting,), micro_batch=micro_batch)
    return trained(case, current_world(), share, build=build, data=vectors)


def _in_an_older_torch(rank: int | None) -> str:
    """What is said where torch packs no zeros: of a branch that one rank alone takes, or every rank."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delattr(FSDPModule, "set_reduce_scatter_unused_params")
        training = started((ZERO_3,), current_world(), build=lambda: Choosing(lambda: rank in (None, dist.get_rank())))
    try:
        training.step(share(vectors(0)))
    except MomadviseError as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


def _changing(setting: MethodSetting) -> str:
    """A branch that takes part in the first step only."""
    part = [True]
    training = started((setting,), current_world(), build=lambda: _WithoutNever(lambda: part[0]))
    training.step(share(vectors(0)))
    part[0] = False
    return _refused(lambda: training.step(share(vectors(1))))


def _unfrozen(setting: MethodSetting) -> list[str]:
    """What is said of a parameter that is trained only after the policy was applied, or after the first step."""
    said = []
    for steps in (0, 1):
        training = started((setting,), current_world(), build=_Frozen)
        for step in range(steps):
            training.step(share(vectors(step)))
        training.model.sometimes.requires_grad_(True)  # type: ignore[union-attr]
        said.append(_refused(lambda training=training: training.step(share(vectors(1)))))
    return said


class _Frozen(Branching):
    def __init__(self) -> None:
        super().__init__()
        self.sometimes.requires_grad_(False)


class _WithoutNever(Branching):
    def __init__(self, takes_part: Callable[[], bool]) -> None:
        super().__init__(takes_part)
        del self.never


def _batchnorm(setting: MethodSetting) -> Any:
    training = started((use("checkpoint", every=1), setting), current_world(), build=lambda: convnet(0.0))
    training.step(share(images(8)))
    return training.state_dict()["model"]


def _overflow(setting: MethodSetting) -> dict[str, Any]:
    """An infinity in a gradient of the last rank alone, after averaging where that is possible."""
    world = current_world()
    training = started((setting, use("precision", dtype="fp16")), world)
    training.step(share(padded_text(0)))
    assert training.gradient_scaler is not None
    scale = training.gradient_scaler.get_scale()
    before = [_local(parameter).clone() for parameter in training.model.parameters()]
    loss = training.forward(share(padded_text(1)))
    training.backward(loss * (float("inf") if world.rank == world.size - 1 else 1.0))
    training.optimizer_step()
    after = [_local(parameter) for parameter in training.model.parameters()]
    return {
        "skipped": all(torch.equal(*pair) for pair in zip(before, after, strict=True)),
        "lowered": training.gradient_scaler.get_scale() < scale,
    }


def _fused_shards(build_optimizer: Callable[..., torch.optim.Optimizer]) -> dict[str, Any]:
    """Parts of a fused optimizer, in another memory layout, go on from a plain state; and what they save then."""
    plain = started((), None, build=Convolving, build_optimizer=build_optimizer)
    for step in range(2):
        plain.step(pictures(step))
    settings = (use("channels_last"), use("fused_optimizer"), ZERO_1)
    training = started(settings, current_world(), build=Convolving, build_optimizer=build_optimizer)
    training.load_state_dict(copy.deepcopy(plain.state_dict()))
    part = training.optimizer.optim  # type: ignore[attr-defined]
    fused = all(group["fused"] for group in (*training.optimizer.param_groups, *part.param_groups))
    for step in (2, 3):
        plain.step(pictures(step))
        training.step(share(pictures(step)))
    return {"fused": fused, "state": training.state_dict(), "expected": plain.state_dict()}


def _late_in_fused_shards() -> dict[str, Any]:
    """Parameters that get their first gradient after others of the same process's part."""
    part = [False]
    trainings = [
        started(settings, world, build=lambda: Late(lambda: part[0]))
        for settings, world in (((), None), ((use("fused_optimizer"), ZERO_1), current_world()))
    ]
    for step in range(3):
        part[0] = step > 0
        trainings[0].step(vectors(step))
        trainings[1].step(share(vectors(step)))
    return {"expected": trainings[0].state_dict()["model"], "model": trainings[1].state_dict()["model"]}


def _in_channels_last(setting: MethodSetting) -> Any:
    case = Case((use("channels_last"), use("fused_optimizer"), setting))
    return trained(case, current_world(), share, build=Convolving, data=pictures)


def _rounded() -> list[torch.Tensor]:
    """Parameters that were rounded at random in every rank by itself."""
    training = started((use("pure_bf16", rounding="stochastic"), DDP), current_world(), build_optimizer=adamw)
    for step in range(3):
        training.step(share(padded_text(step)))
    return [parameter.detach() for parameter in training.model.parameters()]


def _float8(setting: MethodSetting) -> Any:
    case = Case((use("float8", scale="rowwise"), setting))
    return trained(case, current_world(), share, build=Perceptron, data=lambda seed: perceptron.vectors(64, seed))


def _local(tensor: torch.Tensor) -> torch.Tensor:
    tensor = tensor.detach()
    return tensor.to_local() if isinstance(tensor, torch.distributed.tensor.DTensor) else tensor


def without_targets(seed: int, samples: list[int]) -> dict[str, torch.Tensor]:
    batch = padded_text(seed)
    for sample in samples:
        batch["labels"][sample] = -100
    return batch


def _no_target(setting: MethodSetting, samples: list[int]) -> Any:
    case = Case((setting,), micro_batch=1)
    return trained(case, current_world(), share, data=lambda seed: without_targets(seed, samples))


def _refused(attempt: Callable[[], Any]) -> str:
    with pytest.raises(MomadviseError) as caught:
        attempt()
    return f"{type(caught.value).__name__}: {caught.value}"


def _sent(hook: str) -> dict[str, Any]:
    """Bytes handed to all_reduce in one step once the training has settled, and losses on one repeated batch."""
    world = current_world()
    training = started((DDP, use("gradient_compression", hook=hook)), world, build_optimizer=adamw)
    batch = share(text(8, 32))
    losses = [float(training.step(batch)) for _ in range(training.settling_steps)]
    sent: list[int] = []
    plain = dist.all_reduce

    def counting(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        sent.append(tensor.numel() * tensor.element_size())
        return plain(tensor, *args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dist, "all_reduce", counting)
        losses.append(float(training.step(batch)))
        once = sum(sent)
        sent.clear()
        losses.append(float(training.step(batch)))
    losses += [float(training.step(batch)) for _ in range(5)]
    return {"sent": once, "next": sum(sent), "losses": losses, "settling": training.settling_steps}


def _in_buckets(setting: MethodSetting) -> dict[str, Any]:
    """PowerSGD on gradients in some ten buckets: losses, and a number that tells parameters apart."""
    with pytest.MonkeyPatch.context() as patch:
        small = functools.partial(DistributedDataParallel, bucket_cap_mb=0.02)
        patch.setattr(_data_parallel, "DistributedDataParallel", small)
        training = started((setting, use("gradient_compression", hook="powersgd_rank_4")), current_world())
        losses = [float(training.step(share(text(8, 32)))) for _ in range(12)]
    return {"losses": losses, "total": sum(float(one.detach().sum()) for one in training.model.parameters())}


def _applied() -> dict[str, Any]:
    def apply(count: int, *methods: MethodSetting) -> Training:
        policy = Policy(methods=methods, micro_batch=2, accumulation_steps=2, gpu_count=count)
        return apply_policy(policy, transformer(), device="cpu")

    training = apply(2, DDP)
    return {
        "one": _refused(lambda: apply(1)),
        "four": _refused(lambda: apply(4, DDP)),
        "nothing distributes": _refused(lambda: apply(2)),
        "loss": float(training.step(share(padded_text(0)))),
        "settling": {name: started((each,), current_world()).settling_steps for name, each in DISTRIBUTING.items()},
    }
