"""What the ranks do with tensor_parallel and other methods, as a policy has them; the tests judge it."""

from __future__ import annotations

import copy
import traceback
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from advisor.errors import MethodRefusedError
from advisor.goal import Fidelity
from advisor.hardware.mesh import Mesh, MeshAxis
from advisor.methods.base import Stage
from advisor.methods.catalogue import CATALOGUE
from advisor.methods.compose import conflict_between, fidelity_of, settings_of
from advisor.methods.setting import use
from advisor.training.moving import listening_to_moves
from advisor.training.processes.world import World, current_world
from advisor.training.training import Training
from tests.contract.expected import expected
from tests.distributed.models import DDP, FEWER_STEPS, ZERO_1, ZERO_2, ZERO_3, Case, started, two_groups
from tests.methods.quick_compiler import quick_compiler
from tests.methods.tiny import adamw, gpt2, import_bitsandbytes, text, uncompiled_optimizers
from tests.tensor_parallel.models import VOCABULARY, build

WHOLE, SPLIT = (use("tensor_parallel", sequence=sequence, vocabulary=False) for sequence in (False, True))
SLICED_VOCABULARY = use("tensor_parallel", sequence=True, vocabulary=True)
WAYS = (WHOLE, SPLIT, SLICED_VOCABULARY)
EVERY, ATTENTION, ELEMENTWISE, NORMALIZATION = (
    use("checkpoint", every=1),
    *(use("selective_checkpoint", recompute=what) for what in ("attention", "elementwise", "normalization")),
)

_TOLERANCES = {
    Fidelity.EXACT: 1e-4,
    Fidelity.ROUNDING: 1e-3,
    Fidelity.PRECISION: 0.05,
    Fidelity.LOSSY: 0.6,
    Fidelity.MODEL: 0.1,
}
"""Of how far parameters moved, as for other ways to distribute."""

_DRAWS = ("pure_bf16", "randomized_linear", "compress_activations")
"""Methods that draw other random numbers where tensors have other shapes."""


def _transformer() -> nn.Module:
    return gpt2(4, dropout=0.0)


def _few_words(step: int) -> dict[str, torch.Tensor]:
    tokens = torch.randint(0, VOCABULARY, (8, 16), generator=torch.Generator().manual_seed(step))
    return {"input_ids": tokens, "labels": tokens.clone()}


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[int], dict[str, torch.Tensor]]]] = {
    "gpt2": (_transformer, lambda step: text(8, 32, seed=step)),
    "llama": (lambda: build("llama"), _few_words),
    "bert": (lambda: build("bert"), _few_words),
}


def _over_the_catalogue() -> list[Case]:
    """Every method for one device beside tensor parallelism, where neither declares a conflict."""
    found = []
    for method in CATALOGUE:
        if method.distributes or method.builds_on or method.one_device_only:
            continue
        able = [each for each in settings_of(method) if "gpt2" not in expected(each).refused]
        if not able or (fidelity_of(able[0]) is Fidelity.MODEL and method.stage is not Stage.OPTIMIZER):
            continue
        pair = tuple(sorted((able[0], SPLIT), key=lambda each: each.name))
        if conflict_between(pair) is None:
            found.append(
                Case(
                    pair,
                    micro_batch=4,
                    tolerance=1.0 if method.name in _DRAWS else _TOLERANCES[fidelity_of(able[0])],
                    **({"build_optimizer": adamw} if method.stage is Stage.OPTIMIZER else {}),
                )
            )
    return found


def _cases() -> dict[tuple[str, str], Case]:
    halves = [(use("precision", dtype=dtype), way) for dtype in ("bf16", "fp16") for way in (WHOLE, SPLIT)]
    inputs = use("residual_checkpoint", blocks=2, inside="inputs")
    on_all = [
        *(Case((way,)) for way in WAYS),
        *(Case((way,), micro_batch=2, clip=0.1) for way in WAYS),
        *(Case((recomputing, WHOLE), micro_batch=4) for recomputing in (EVERY, ATTENTION, ELEMENTWISE)),
        *(Case((recomputing, SPLIT), micro_batch=4) for recomputing in (EVERY, ATTENTION, ELEMENTWISE)),
    ]
    on_gpt2 = [
        *_over_the_catalogue(),
        *(Case((recomputing, SPLIT), micro_batch=4) for recomputing in (NORMALIZATION, inputs)),
        *(Case(pair, micro_batch=4, clip=0.1, tolerance=0.05) for pair in halves),
        Case((use("precision", dtype="bf16"), ELEMENTWISE, SPLIT), micro_batch=4, tolerance=0.05),
        Case((use("fused_optimizer"), SLICED_VOCABULARY), micro_batch=4, clip=0.1, build_optimizer=adamw),
        Case((SPLIT,), micro_batch=4, build_optimizer=two_groups),
        Case((use("half_weights", rounding="nearest"), SPLIT), micro_batch=4, clip=0.1, tolerance=0.05),
        Case((use("pure_bf16", rounding="nearest"), SPLIT), micro_batch=4, clip=1.0, tolerance=0.1),
    ]
    found = {("gpt2", case.name): case for case in on_gpt2}
    for model in MODELS:
        for case in on_all:
            if not (model == "bert" and SLICED_VOCABULARY in case.settings):  # its output layer has a tied bias
                found[model, case.name] = case
    return found


CASES = _cases()

ON_FOUR = {
    f"{way.label}, tensor=2": (Case((SPLIT, way), micro_batch=2, clip=0.1), Mesh(tensor=2))
    for way in (DDP, ZERO_1, ZERO_2, ZERO_3)
}
ON_FOUR["tensor=4"] = (Case((SPLIT,), micro_batch=2, clip=0.1), Mesh(tensor=4))
ON_FOUR["fsdp in bf16"] = (
    Case((use("fsdp", reshard=True, mixed_precision="bf16", offload=False), SPLIT), micro_batch=2, tolerance=0.05),
    Mesh(tensor=2),
)
ON_FOUR["checkpoint, fsdp"] = (Case((EVERY, ZERO_3, SPLIT), micro_batch=2), Mesh(tensor=2))
ON_FOUR["contexts, ddp"] = (Case((DDP, ELEMENTWISE, SLICED_VOCABULARY), micro_batch=2), Mesh(tensor=2))


def begun(model: str, case: Case, world: World | None) -> Training:
    make, batch = MODELS[model]
    return started(
        case.settings if world else case.single,
        world,
        build=make,
        build_optimizer=case.build_optimizer,
        micro_batch=case.micro_batch,
        max_grad_norm=case.clip,
        **({"example_batch": {name: each[:2] for name, each in batch(0).items()}} if world else {}),
    )


def share(batch: dict[str, torch.Tensor], world: World | None) -> dict[str, torch.Tensor]:
    """What ranks that hold one model are given of a batch."""
    if world is None:
        return batch
    return {name: each.chunk(world.data.size)[world.data.rank] for name, each in batch.items()}


def trained(model: str, case: Case, world: World | None) -> dict[str, Any]:
    """The whole state after some steps: of one process, or on the first rank."""
    training = begun(model, case, world)
    for step in range(FEWER_STEPS):
        training.step(share(MODELS[model][1](step), world))
    state = training.state_dict()
    if world is not None:
        state["same"] = _same(training)
    training.close()
    return state


def _same(training: Training) -> bool:
    """Whether what the ranks of a tensor axis do not slice is the same on each, to the bit."""
    (cut,) = training.cuts
    for parameter in training.model.parameters():
        if cut.copies(parameter) > 1:
            own = parameter.detach()
            own = own.to_local() if isinstance(own, torch.distributed.tensor.DTensor) else own
            parts = [torch.empty_like(own) for _ in range(cut.world.size)]
            dist.all_gather(parts, own.contiguous(), group=cut.world.device_group)
            if not all(torch.equal(part, own) for part in parts):
                return False
    return True


def on_two() -> dict[Any, Any]:
    """Every case on two ranks: its state, why it was refused, or what went wrong."""
    import_bitsandbytes()
    world = current_world(Mesh(tensor=2))
    with uncompiled_optimizers(), quick_compiler():
        return {key: _tried(lambda key=key, case=case: trained(key[0], case, world)) for key, case in CASES.items()}


def on_four() -> dict[Any, Any]:
    """Meshes of four ranks; and a state that goes from mesh to mesh."""
    found: dict[Any, Any] = {
        name: _tried(lambda case=case, mesh=mesh: trained("gpt2", case, current_world(mesh)))
        for name, (case, mesh) in ON_FOUR.items()
    }
    found["from mesh to mesh"] = _tried(_from_mesh_to_mesh)
    return found


def _from_mesh_to_mesh() -> dict[str, Any]:
    """A step on each mesh, each from the state of the one before, as it is saved."""
    optimizer = Case((SPLIT,), build_optimizer=two_groups)
    state = None
    for settings, mesh in (
        ((ZERO_3, SPLIT), Mesh(tensor=2)),
        ((WHOLE,), Mesh(tensor=4)),
        ((DDP, SPLIT), Mesh(tensor=2)),
    ):
        world = current_world(mesh)
        training = begun("gpt2", Case(settings, build_optimizer=optimizer.build_optimizer), world)
        if state is not None:
            training.load_state_dict(state)
        training.step(share(MODELS["gpt2"][1](0), world))
        held = [copy.deepcopy(training.state_dict())]
        dist.broadcast_object_list(held, src=0)
        state = held[0]
        training.close()
    assert state is not None
    return state


def _tried(function: Callable[[], Any]) -> Any:
    try:
        return function()
    except MethodRefusedError as error:
        return f"refused: {error}"
    except Exception:
        return traceback.format_exc()


def guards() -> dict[str, Any]:
    """What is refused on every rank alike, and what one rank's trouble does to the others."""
    world = current_world(Mesh(tensor=2))
    return {
        "other samples": _refusal(lambda: _other_samples(world)),
        "no batch": _refusal(lambda: started((SPLIT,), world, build=_transformer)),
        "rank without a batch": _refusal(lambda: _batch_on_first_rank(world)),
        "heads": _refusal(lambda: begun("gpt2", Case((SPLIT,)), _as_if(world, 3))),
        "overflow": _overflow(world),
        "moved": _moved(world),
    }


def _refusal(function: Callable[[], Any]) -> str:
    try:
        function()
    except MethodRefusedError as error:
        return str(error)
    return ""


def _other_samples(world: World) -> None:
    """A step in which the ranks have other samples, as those of a data axis would."""
    training = begun("gpt2", Case((SPLIT,)), world)
    training.step(text(8, 32, seed=world.tensor.rank))


def _batch_on_first_rank(world: World) -> None:
    """The first rank's batch is enough."""
    example = text(2, 32) if world.rank == 0 else None
    started((SPLIT,), world, build=_transformer, example_batch=example).step(text(8, 32))


def _as_if(world: World, degree: int) -> World:
    """The same ranks, that say to be more."""
    tensor = copy.copy(world.tensor)
    tensor.size = degree
    pretending = copy.copy(world)
    pretending._axes = {**world._axes, MeshAxis.TENSOR: tensor}
    return pretending


def _overflow(world: World) -> dict[str, Any]:
    """A slice of a gradient overflows on the second rank alone; whether anything was updated."""
    training = begun("gpt2", Case((use("precision", dtype="fp16"), SPLIT)), world)
    batch = MODELS["gpt2"][1](0)
    training.step(batch)
    before = {name: one.detach().clone() for name, one in training.model.named_parameters()}
    scale = training.gradient_scaler.get_scale()
    training.backward(training.forward(batch))
    sliced = next(one for one in training.model.parameters() if training.cuts[0].copies(one) == 1)
    if world.rank:
        sliced.grad.fill_(torch.inf)
    training.optimizer_step()
    still = all(torch.equal(one, before[name]) for name, one in training.model.named_parameters())
    return {"still": still, "scale": training.gradient_scaler.get_scale() / scale}


def _moved(world: World) -> float:
    """Share of the whole model's numbers that are moved to the device."""
    moved: list[int] = []
    with listening_to_moves(lambda model: moved.append(sum(one.numel() for one in model.parameters()))):
        begun("gpt2", Case((SLICED_VOCABULARY,)), world)
    assert len(moved) == 1, "it is moved once"
    return max(moved) / sum(one.numel() for one in _transformer().parameters())
