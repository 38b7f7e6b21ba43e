"""Trainings by policies with a pipeline, on ranks; the tests judge what they bring back."""

from __future__ import annotations

import itertools
import warnings
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from advisor.hardware.mesh import Mesh
from advisor.methods.catalogue import CATALOGUE
from advisor.methods.compose import apply_settings, conflict_between, settings_of
from advisor.methods.setting import MethodSetting, use
from advisor.training.processes.world import World, current_world
from advisor.training.training import Training
from tests.distributed.models import movement_error, padded_text, sgd, two_groups
from tests.methods.tiny import adamw, gpt2, uncompiled_optimizers
from tests.pipeline_parallel.on_stages import tried
from tests.pipeline_parallel.staged_models import HIDDEN, ByHand, batch_of, loss_of
from tests.tensor_parallel.models import HEADS, Block, Dropout, Model, tokens

STEPS = 3
LAYERS = 8


def transformer() -> nn.Module:
    return gpt2(LAYERS, dropout=0.0)


def trained(
    settings: tuple[MethodSetting, ...],
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
        example_batch={name: each[:2] for name, each in padded_text(0).items()},
    )
    apply_settings(training, settings)
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
    settings: tuple[MethodSetting, ...], plain: tuple[MethodSetting, ...] = (), *, mesh: Mesh, **options: Any
) -> dict[str, Any]:
    """Steps of a policy on a mesh, and on its first rank how far they are from those of one process."""
    training, losses = trained(settings, mesh=mesh, **options)
    state = training.state_dict()
    total = torch.tensor(losses, dtype=torch.float64)
    if training.world.data.size > 1:
        dist.all_reduce(total, group=training.world.data.device_group)
        total /= training.world.data.size
    training.close()
    if dist.get_rank():
        return {}
    expected, wanted = alone(plain, **options)
    return {
        "losses": max(abs(one - other) for one, other in zip(total.tolist(), wanted, strict=True)),
        "movement": movement_error(state["model"], expected, transformer()),
        "names": list(state["model"]) == list(expected),
    }


_KNOWN: dict[str, tuple[dict[str, torch.Tensor], list[float]]] = {}


def alone(settings: tuple[MethodSetting, ...], **options: Any) -> tuple[dict[str, torch.Tensor], list[float]]:
    """What one process makes of the model, and its losses: once for all policies that differ only in their mesh."""
    key = repr(([each.label for each in settings], sorted(options.items(), key=lambda option: option[0])))
    if key not in _KNOWN:
        training, losses = trained(settings, mesh=None, **options)
        _KNOWN[key] = training.state_dict()["model"], losses
        training.close()
    return _KNOWN[key]


def piped(schedule: str = "1f1b") -> MethodSetting:
    return use("pipeline", schedule=schedule)


def on_two() -> dict[str, Any]:
    warnings.simplefilter("ignore")
    mesh = Mesh(pipeline=2)
    found = {
        schedule: tried(lambda schedule=schedule: against_one_process((piped(schedule),), mesh=mesh))
        for schedule in ("1f1b", "gpipe", "interleaved", "zero_bubble")
    }
    found["two groups"] = tried(lambda: against_one_process((piped(),), mesh=mesh, build_optimizer=two_groups))
    found["fp16"] = against_one_process(
        (piped(), use("precision", dtype="fp16")), (use("precision", dtype="fp16"),), mesh=mesh
    )
    with uncompiled_optimizers():
        found["partners"] = with_partners("1f1b")
    found["resumed"] = resumed()
    found["bounds"] = settled_bounds()
    found["below a limit"] = tried(cut_below_a_limit)
    found["bf16"] = tried(
        lambda: against_one_process(
            (piped(), use("precision", dtype="bf16")), (use("precision", dtype="bf16"),), mesh=mesh
        )
    )
    return found


CLOSE = (
    "precision(dtype=bf16)",
    "float8(scale=tensorwise)",
    "checkpoint(every=1)",
    "residual_checkpoint(blocks=2, inside=everything)",
    "sqrt_checkpoint",
    "recursive_checkpoint",
    "optimal_checkpoint(budget=0.6)",
    "selective_checkpoint(recompute=attention)",
    "fp8_activations(format=e4m3)",
    "few_bit_activation(bits=4)",
    "swap(min_bytes=1048576)",
    "overlapped_swap(ahead=0.1, min_bytes=1048576)",
    "fused_optimizer",
    "adafactor",
    "chunked_cross_entropy(chunks=8)",
    "attention_backend(kernel=flash)",
    "retain_freed_memory",
)
"""Beside these, a training in stages is as close to one process as without them."""

REFUSED = {
    "host_optimizer": "as soon as a backward pass has it",
    "optimizer_in_backward": "as soon as a backward pass has it",
    "momentum_residual(momentum=0.9)": "its blocks hand on a velocity",
    "lora(rank=8)": "saving merges",
    "qlora(rank=8)": "saving merges",
    "sparse_reparameterization(nonzero=0.3)": "saving merges",
}

_NOT_HERE = ("compile", "compile_budget", "channels_last", "expandable_segments", "glibc", "intraop_threads")
"""Methods that take long here, or are for convolutions and GPUs."""

_OF_ADAM = ("adam_8bit", "adam_low_bit", "adafactor", "muon", "host_optimizer")


def with_partners(schedule: str) -> dict[str, Any]:
    """Steps of every other method in stages, against the same method on one process; or why they do not go together."""
    found: dict[str, Any] = {}
    for method in CATALOGUE:
        if method.axis is not None or method.builds_on or method.name in _NOT_HERE:
            continue
        partner = settings_of(method)[0]
        settings = (piped(schedule), partner)
        if reason := conflict_between(settings):
            found[partner.label] = reason
            continue
        found[partner.label] = against_one_process(
            settings,
            (partner,),
            mesh=Mesh(pipeline=2),
            steps=2,
            max_grad_norm=None,
            build_optimizer=adamw if method.name in _OF_ADAM else sgd,
        )
    return found


def resumed() -> dict[str, Any]:
    """A training goes on from the state that another one, of other stages, has gathered; and what it evaluates."""
    mesh = Mesh(pipeline=2)
    expected, _ = trained((), mesh=None, steps=4)
    training, _ = trained((piped(),), mesh=mesh, steps=2)
    state = [training.state_dict()]
    dist.broadcast_object_list(state, src=0)
    transformer().load_state_dict(state[0]["model"])
    batch = padded_text(7)
    with torch.no_grad():
        own = training.evaluate(lambda model: float(model(**batch).loss))
    training.close()
    other = Training(transformer(), build_optimizer=sgd, micro_batch=2, max_grad_norm=0.1, world=current_world(mesh))
    apply_settings(other, (piped("zero_bubble"),))
    other.load_state_dict(state[0])
    for step in (2, 3):
        other.step(padded_text(step))
    final = other.state_dict()
    plain, _ = trained((), mesh=None, steps=2)
    found = {
        "movement": movement_error(final["model"], expected.state_dict()["model"], transformer())
        if final["model"]
        else 0.0,
        "evaluated": abs(own - plain.evaluate(lambda model: float(model(**batch).loss))),
        "apart": tried(lambda: other.forward(batch)),
        "backward": tried(lambda: other.backward(torch.zeros(()))),
        "settled": dict(training.settled),
    }
    other.close()
    return found


def settled_bounds() -> dict[str, Any]:
    """A policy that says where to cut, and ones that say nothing of use."""

    def bounded(text: str) -> list[int]:
        training = Training(transformer(), build_optimizer=sgd, micro_batch=2, world=current_world(Mesh(pipeline=2)))
        training.settled["pipeline"] = text
        apply_settings(training, (piped(),))
        training.step(padded_text(0))
        assert training.settled["pipeline"] == text
        return [block.numel() for block in training.model.parameters()]

    return {
        "own": len(bounded("0,1,8")),
        "even": len(bounded("0,4,8")),
        "wrong": tried(lambda: bounded("0,9,8")),
        "none": tried(lambda: bounded("halfway")),
    }


class Wordy(ByHand):
    """Its embedding holds as much as six blocks, and takes no time."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(6 * sum(one.numel() for one in self.blocks[0].parameters()) // HIDDEN, HIDDEN)


def cut_below_a_limit() -> list[int]:
    """How many blocks each stage gets where two beside the embedding fit, but not three."""
    torch.manual_seed(0)
    model = Wordy()
    block, whole, *last = (
        sum(one.numel() for one in part.parameters()) for part in (model.blocks[0], model, model.norm, model.head)
    )
    outside = whole - len(model.blocks) * block - sum(last)
    training = Training(
        model,
        build_optimizer=sgd,
        micro_batch=2,
        compute_loss=loss_of("by hand"),
        world=current_world(Mesh(pipeline=2)),
    )
    training.memory_limit_bytes = int(12 * (outside + 2.5 * block) / 0.9)  # values, gradient and momentum
    apply_settings(training, (piped(),))
    training.step(batch_of("by hand"))
    bounds = list(map(int, training.settled["pipeline"].split(",")))
    return [stop - start for start, stop in itertools.pairwise(bounds)]


DATA = {
    "ddp": use("ddp", bucket_views=True, static_graph=False),
    "zero_1": use("zero_1"),
    "zero_3": use("fsdp", reshard=True, mixed_precision="none", offload=False),
    "zero_2": use("fsdp", reshard=False, mixed_precision="none", offload=False),
}


def with_data() -> dict[str, Any]:
    """Data x pipeline on four ranks, against one process."""
    found = {}
    for (name, data), schedule in itertools.product(DATA.items(), ("1f1b", "zero_bubble")):
        settings = (data, piped(schedule))
        if conflict_between(settings) is None:
            found[f"{name}, {schedule}"] = against_one_process(settings, mesh=Mesh(pipeline=2))
    return found


def resumed_beside(data: MethodSetting) -> dict[str, Any]:
    """Data x pipeline goes on from the state that it has gathered."""
    mesh, settings = Mesh(pipeline=2), (data, piped())
    training, _ = trained(settings, mesh=mesh, steps=2)
    state = [training.state_dict()]
    dist.broadcast_object_list(state, src=0)
    training.close()
    other, _ = trained(settings, mesh=mesh, steps=0)
    other.load_state_dict(state[0])
    for step in (2, 3):
        other.step(share_of(padded_text(step), other.world))
    final = other.state_dict()
    other.close()
    if dist.get_rank():
        return {}
    expected, _ = alone((), steps=4)
    return {"movement": movement_error(final["model"], expected, transformer())}


def with_tensor() -> dict[str, Any]:
    """Tensor x pipeline on four ranks, against one process."""
    found = {}
    for sequence, schedule in itertools.product((False, True), ("1f1b", "zero_bubble")):
        settings = (use("tensor_parallel", sequence=sequence, vocabulary=False), piped(schedule))
        found[f"sequence={sequence}, {schedule}"] = against_one_process(settings, mesh=Mesh(tensor=2, pipeline=2))
    return found


def sliced(**parameters: bool) -> MethodSetting:
    return use("tensor_parallel", **{"sequence": True, "vocabulary": False, **parameters})


def with_vocabulary() -> dict[str, Any]:
    """Rows of embedding and output layer are shared by the ranks of a stage, and tied between the stages."""
    mesh = Mesh(tensor=2, pipeline=2)
    return {
        f"sequence={sequence}": tried(
            lambda sequence=sequence: against_one_process(
                (sliced(sequence=sequence, vocabulary=True), piped()), mesh=mesh
            )
        )
        for sequence in (False, True)
    }


def dropped(sequence: bool) -> dict[str, list[torch.Tensor]]:
    """What each dropout drops in the micro-batches of a step, tensor x pipeline."""
    torch.manual_seed(0)
    model = Model(lambda: Block(HIDDEN, HEADS, 0.3, 0.3), layers=4, dropout=0.3)
    names = {module: name for name, module in model.named_modules() if isinstance(module, Dropout)}
    batch = tokens(8, 32)
    training = Training(
        model,
        build_optimizer=sgd,
        micro_batch=2,
        compute_loss=lambda model, batch: model(batch),
        world=current_world(Mesh(tensor=2, pipeline=2)),
        example_batch=batch[:2],
    )
    apply_settings(training, (sliced(sequence=sequence), piped()))
    training.step(batch)
    drawn: dict[str, list[torch.Tensor]] = {}
    for module in training.model.modules():
        if module in names:
            known = drawn.setdefault(names[module], [])
            module.register_forward_hook(lambda module, args, output, known=known: known.append(output.detach() == 0))
    training.step(batch)
    training.close()
    return drawn


def on_four() -> dict[str, Any]:
    warnings.simplefilter("ignore")
    return {
        "data": with_data(),
        "resumed": {name: tried(lambda name=name: resumed_beside(DATA[name])) for name in ("zero_1", "zero_3")},
        "tensor": with_tensor(),
        "vocabulary": with_vocabulary(),
        "dropped": {
            f"sequence={sequence}": tried(lambda sequence=sequence: dropped(sequence)) for sequence in (False, True)
        },
    }


def on_eight() -> dict[str, Any]:
    """Data, layers and blocks divided at once."""
    warnings.simplefilter("ignore")
    mesh = Mesh(tensor=2, pipeline=2)
    return {
        name: tried(lambda data=data: against_one_process((data, sliced(), piped()), mesh=mesh, steps=2))
        for name, data in DATA.items()
        if name in ("ddp", "zero_3")
    }
