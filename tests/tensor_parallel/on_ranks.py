"""What the ranks do; the tests judge what they bring back."""

from __future__ import annotations

import copy
import functools
import itertools
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

from advisor.errors import MethodRefusedError
from advisor.hardware.mesh import Mesh
from advisor.methods.tensor_parallel._collectives import ALL_GATHER, ALL_REDUCE, REDUCE_SCATTER
from advisor.methods.tensor_parallel._derivation import derive
from advisor.methods.tensor_parallel._tensor_parallel import TensorParallel
from advisor.methods.tensor_parallel._vocabulary_loss import vocabulary_loss
from advisor.training.processes.cut import clip_across_cuts
from advisor.training.processes.distribution import plain_names
from advisor.training.processes.world import World, current_world
from advisor.training.recompute import recompute_modules
from advisor.training.structure import find_attention, find_blocks
from benchmarks.block_activations.kept import of_all_forms
from tests.distributed.models import movement_error
from tests.pipeline_parallel import staged_models
from tests.tensor_parallel import other_blocks
from tests.tensor_parallel.models import HEADS, HIDDEN, Block, Dropout, Model, build, loss_of, tokens

KINDS = ("by hand", "by width", "gpt2", "llama", "neox", "opt", "bert", "qwen3", "phi3", "mixtral", "vit")
KINDS_ON_FOUR = ("by hand", "by width", "gpt2", "neox", "bert")


def sliced(
    model: nn.Module, run: Callable[[nn.Module], Any], *, sequence: bool, degree: int | None = None
) -> TensorParallel:
    """A model whose blocks are shared by all ranks, which drew other parameters than the first."""
    blocks = find_blocks(model)
    derivation = derive(model, blocks, run, degree or dist.get_world_size())
    if dist.get_rank():
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(1.0)
    return TensorParallel(model, blocks, derivation, world_of(derivation.degree), sequence=sequence)


def world_of(degree: int) -> World:
    """The ranks that share a model with this one."""
    return current_world(Mesh(tensor=degree)).tensor


def state_of(model: nn.Module, parallel: TensorParallel) -> dict[str, Any]:
    """The whole state, on the first rank."""
    return parallel.whole_model_state(plain_names(model.state_dict()))


def whole_of(parallel: TensorParallel, name: str, value: Any) -> Any:
    """A whole tensor of a parameter's slices, on the first rank."""
    return parallel.whole_model_state({name: value}).get(name)


def tried(function: Callable[[], Any]) -> Any:
    """What a case brings back, or its traceback: one case must not hide the others."""
    try:
        return function()
    except Exception:
        return traceback.format_exc()


@functools.cache
def alone(
    kind: str, build: Callable[[str], nn.Module], loss_of: Callable[[str], Callable[[nn.Module], torch.Tensor]]
) -> tuple[nn.Module, float]:
    """A model after a step in one process, which still has its gradients, and its loss: once for all ways to slice."""
    plain = build(kind)
    loss = loss_of(kind)(plain)
    loss.backward()
    torch.optim.SGD(plain.parameters(), lr=0.1).step()
    return plain, float(loss.detach())


def stepped(
    kind: str,
    sequence: bool,
    prepare: Callable[[nn.Module], None] = lambda model: None,
    build: Callable[[str], nn.Module] = build,
    loss_of: Callable[[str], Callable[[nn.Module], torch.Tensor]] = loss_of,
) -> dict[str, Any]:
    """One step of SGD of a model, and of the same model in one process: how far gradients and parameters are off."""
    run, model = loss_of(kind), build(kind)
    plain, expected = alone(kind, build, loss_of)
    parallel = sliced(model, run, sequence=sequence)
    prepare(model)
    with parallel.forward_context():
        loss = run(model)
    loss.backward()
    parallel.complete_gradients()
    errors = gradient_errors(model, parallel, plain)
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    state, wanted = state_of(model, parallel), plain.state_dict()
    return {
        "loss": abs(float(loss.detach()) - expected),
        "gradients": max(errors.values(), default=0.0),
        "names": list(state) == list(wanted) if state else True,
        "parameters": movement_error(state, wanted, build(kind)) if state else 0.0,
        "held": sum(one.numel() for one in model.parameters()) / sum(one.numel() for one in plain.parameters()),
    }


def gradient_errors(model: nn.Module, parallel: TensorParallel, plain: nn.Module) -> dict[str, float]:
    """Relative error of each gradient, on the first rank; those that are zero but for rounding have none."""
    wanted = {name: one.grad for name, one in plain.named_parameters() if one.grad is not None}
    total = torch.stack([each.norm() for each in wanted.values()]).norm()
    found = plain_gradients(model)
    assert {name for name, each in found.items() if each is not None} == set(wanted)
    errors = {}
    for name, gradient in wanted.items():
        whole = whole_of(parallel, name, found[name])
        if whole is not None and gradient.norm() > 1e-6 * total:
            errors[name] = relative(whole, gradient)
    return errors


def plain_gradients(model: nn.Module) -> dict[str, torch.Tensor | None]:
    return {name.replace("_checkpoint_wrapped_module.", ""): one.grad for name, one in model.named_parameters()}


def relative(found: torch.Tensor, expected: torch.Tensor) -> float:
    found, expected = found.double(), expected.double()
    return float((found - expected).norm() / expected.norm().clamp_min(1e-30))


def steps(kinds: Sequence[str]) -> dict[str, Any]:
    return {
        f"{kind}, sequence={sequence}": tried(lambda kind=kind, sequence=sequence: stepped(kind, sequence))
        for kind in kinds
        for sequence in (False, True)
    }


def keeping(*operators: Any) -> Callable[[], Any]:
    """Contexts of selective checkpointing that keep what these return."""

    def policy(context: Any, operator: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
        return CheckpointPolicy.MUST_SAVE if operator in operators else CheckpointPolicy.PREFER_RECOMPUTE

    return lambda: create_selective_checkpoint_contexts(policy)


PRODUCTS = (torch.ops.aten.mm.default, torch.ops.aten.addmm.default, torch.ops.aten.bmm.default)
SUMS = (ALL_REDUCE, REDUCE_SCATTER)

RECOMPUTE: dict[str, Callable[[nn.Module], None]] = {
    "nothing": lambda model: None,
    "blocks": lambda model: recompute_modules(model, find_blocks(model)),
    "attention": lambda model: recompute_modules(model, find_attention(model)),
    "but products": lambda model: recompute_modules(model, find_blocks(model), keeping(*PRODUCTS, *SUMS)),
    "but sums": lambda model: recompute_modules(model, find_blocks(model), keeping(*SUMS)),
    "but own products": lambda model: recompute_modules(model, find_blocks(model), keeping(*PRODUCTS)),
}


def recomputed() -> dict[str, Any]:
    return {
        f"{kind}, {what}, sequence={sequence}": tried(
            lambda kind=kind, sequence=sequence, what=what: stepped(kind, sequence, RECOMPUTE[what])
        )
        for kind in ("by hand", "by width", "gpt2", "llama")
        for what in RECOMPUTE
        if what != "nothing"
        for sequence in (False, True)
    }


class Collectives(TorchDispatchMode):
    """Counts what is really sent."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if operator in (ALL_GATHER, *SUMS):
            self.counts[operator._schema.name.rpartition("::")[2]] += 1
        return operator(*args, **(kwargs or {}))


def collectives() -> dict[str, dict[str, int]]:
    """How often a step of a model of two blocks communicates, by what is recomputed."""
    found = {}
    for sequence in (False, True):
        for what, prepare in RECOMPUTE.items():
            run, model = loss_of("llama"), build("llama")
            sliced(model, run, sequence=sequence)
            prepare(model)
            with Collectives() as counted:
                run(model).backward()
            found[f"{what}, sequence={sequence}"] = dict(counted.counts)
    return found


def dropped() -> dict[str, Any]:
    """With dropout: gradients with and without recomputation, and where random numbers stand after a forward pass."""
    found = {}
    for kind, sequence in itertools.product(("by hand", "gpt2", "opt", "bert"), (False, True)):
        base: dict[str, torch.Tensor | None] = {}
        for what, choose in {
            **RECOMPUTE,
            "half of a region": lambda model: recompute_modules(
                model, [one for name, one in model.named_modules() if name.endswith((".self", "attention.output"))]
            ),
        }.items():
            if what == "half of a region" and kind != "bert":
                continue
            run, model = loss_of(kind), build(kind, 0.3)
            parallel = sliced(model, run, sequence=sequence)
            choose(model)
            model.train()
            torch.manual_seed(7)
            with parallel.forward_context():
                loss = run(model)
            stands = torch.get_rng_state()
            loss.backward()
            gradients = plain_gradients(model)
            base = base or gradients
            found[f"{kind}, {what}, sequence={sequence}"] = {
                "loss": loss.item(),
                "error": max(relative(gradients[name], each) for name, each in base.items() if each is not None),
                "stands": stands,
                "stands after backward": torch.get_rng_state(),
            }
    return found


def masks() -> dict[str, Any]:
    """The masks that a rank draws, by module; twice those of what is recomputed."""
    found: dict[str, Any] = {}
    for sequence in (False, True):
        model = Model(lambda: Block(HIDDEN, HEADS, 0.3, 0.3), layers=2, dropout=0.3)
        run = lambda model: model(tokens(8, 16))  # noqa: E731
        parallel = sliced(model, run, sequence=sequence)
        recompute_modules(model, find_blocks(model))
        drawn: dict[str, list[torch.Tensor]] = {}
        for name, module in model.named_modules():
            if isinstance(module, Dropout):
                known = drawn.setdefault(name.replace("_checkpoint_wrapped_module.", ""), [])
                module.register_forward_hook(
                    lambda module, args, output, known=known: known.append(output.detach() == 0)
                )
        torch.manual_seed(3)
        with parallel.forward_context():
            loss = run(model)
        forward = {name: [each.clone() for each in known] for name, known in drawn.items()}
        for known in drawn.values():
            known.clear()
        loss.backward()
        found[f"sequence={sequence}"] = {"forward": forward, "again": dict(drawn)}
    return found


def trained() -> dict[str, Any]:
    """Steps of fused AdamW with clipping, a stop in between, and the same in one process."""
    run, plain, model = loss_of("qwen3"), build("qwen3"), build("qwen3")
    parallel = sliced(model, run, sequence=True)
    start = copy.deepcopy(plain)
    options = {"lr": 1e-2, "eps": 1e-3, "fused": True}
    optimizers = [torch.optim.AdamW(each.parameters(), **options) for each in (plain, model)]
    norms = []
    for step in range(4):
        if step == 2:  # Go on in another model from the gathered state.
            state = _sent(state_of(model, parallel))
            optimizer_state = _sent(parallel.whole_optimizer_state(optimizers[1].state_dict(), optimizers[1]))
            model = build("qwen3")
            parallel = sliced(model, run, sequence=True)
            optimizers[1] = torch.optim.AdamW(model.parameters(), **options)
            model.load_state_dict(parallel.own_model_state(state))
            optimizers[1].load_state_dict(parallel.own_optimizer_state(optimizer_state, optimizers[1]))
        for optimizer in optimizers:
            optimizer.zero_grad()
        run(plain).backward()
        with parallel.forward_context():
            loss = run(model)
        loss.backward()
        parallel.complete_gradients()
        expected = torch.nn.utils.clip_grad_norm_(plain.parameters(), 0.1)
        norms.append(relative(clip_across_cuts(list(model.parameters()), 0.1, [parallel]), expected))
        for optimizer in optimizers:
            optimizer.step()
    final = state_of(model, parallel)
    return {"norm": max(norms), "movement": movement_error(final, plain.state_dict(), start) if final else 0.0}


def _sent(state: Any) -> Any:
    held = [state]
    dist.broadcast_object_list(held, src=0)
    return held[0]


def refused_tokens() -> dict[str, Any]:
    """A batch whose tokens cannot be shared, after one whose tokens can; and one again."""
    model = build("by hand")
    parallel = sliced(model, loss_of("by hand"), sequence=True)
    said = []
    for length in (16, 17, 18):
        before = torch.get_rng_state()
        try:
            with parallel.forward_context():
                model(tokens(2, length)).backward()
            said.append("")
        except MethodRefusedError as error:
            assert torch.equal(before, torch.get_rng_state())
            said.append(str(error))
    return {"said": said}


def mixed() -> dict[str, float]:
    """Gradients under autocast against those in float32, of one process and of the ranks; and after a deep copy."""
    run, whole = loss_of("llama"), build("llama")
    run(whole).backward()
    wanted = {name: one.grad for name, one in whole.named_parameters()}
    found = {}
    for sequence in (False, True):
        plain, model = build("llama"), build("llama")
        parallel = sliced(model, run, sequence=sequence)
        for each in (plain, model):
            with torch.autocast("cpu", torch.bfloat16):
                loss = run(each)
            loss.backward()
        parallel.complete_gradients()
        ours = {name: whole_of(parallel, name, one) for name, one in plain_gradients(model).items()}
        if dist.get_rank() == 0:
            for label, other in (("ranks", ours), ("one process", plain_gradients(plain))):
                errors = [relative(other[name], each) for name, each in wanted.items()]
                found[f"{label}, sequence={sequence}"] = max(errors)
        copied = copy.deepcopy(model)
        model.zero_grad()
        copied.zero_grad()
        run(copied).backward()
        assert all(one.grad is None for one in model.parameters())
        copied.load_state_dict(parallel.own_model_state(_sent(state_of(copied, parallel))))
    return found


def block_bytes() -> dict[str, int]:
    """What one block in 16 bits keeps for its backward pass on each rank."""
    return {name: sum(size for _, size in tensors) for name, tensors in of_all_forms().items()}


def different_plans() -> dict[str, str]:
    """A rank whose plans are those of another model; what each hears."""
    kinds = ("gpt2", "by hand") if dist.get_rank() else ("gpt2", "gpt2")
    model, of = (build(kind) for kind in kinds)
    derivation = derive(of, find_blocks(of), loss_of(kinds[1]), 2)
    try:
        TensorParallel(model, find_blocks(model), derivation, world_of(2))
    except MethodRefusedError as error:
        return {"said": str(error)}
    return {"said": ""}


def with_vocabulary() -> dict[str, Any]:
    """One step with embedding and output layer sliced by rows, with the model's own loss and with the sliced one."""
    found = {}
    for kind, own_loss, sequence in itertools.product(("gpt2", "llama"), (True, False), (False, True)):
        run, plain, model = loss_of(kind), build(kind), build(kind)
        expected = run(plain)
        expected.backward()
        blocks = find_blocks(model)
        derivation = derive(model, blocks, run, dist.get_world_size())
        weights = [model.get_input_embeddings().weight, model.get_output_embeddings().weight]
        parallel = TensorParallel(model, blocks, derivation, world_of(2), sequence=sequence, vocabulary=weights)
        if own_loss:
            loss = run(model)
        else:
            given = tokens()
            targets = nn.functional.pad(given, (0, 1), value=-100)[..., 1:]
            hidden = model.base_model(input_ids=given).last_hidden_state
            head = model.get_output_embeddings()
            loss = vocabulary_loss(hidden, head.weight, head.bias, targets, parallel.ranks)
        loss.backward()
        parallel.complete_gradients()
        errors = gradient_errors(model, parallel, plain)
        state = state_of(model, parallel)
        found[f"{kind}, own_loss={own_loss}, sequence={sequence}"] = {
            "loss": relative(loss.detach(), expected.detach()),
            "gradients": max(errors.values(), default=0.0),
            "state": max(
                (relative(state[name], each) for name, each in plain.state_dict().items() if state), default=0.0
            ),
            "tied": model.get_input_embeddings().weight is model.get_output_embeddings().weight,
            "rows": model.get_input_embeddings().weight.size(0),
        }
    return found


def on_other_blocks() -> dict[str, Any]:
    """A step of models around other blocks, as far as they are sliced."""
    return {
        f"{kind}, sequence={sequence}": tried(
            lambda kind=kind, sequence=sequence: stepped(
                kind, sequence, build=staged_models.build, loss_of=other_blocks.loss_of
            )
        )
        for kind, refusals in other_blocks.SLICED.items()
        for sequence in (False, True)
        if not refusals[sequence]
    }


def on_two() -> dict[str, Any]:
    return {
        "steps": steps(KINDS),
        "recomputed": recomputed(),
        "collectives": tried(collectives),
        "dropped": tried(dropped),
        "masks": tried(masks),
        "trained": tried(trained),
        "refused tokens": tried(refused_tokens),
        "bytes": tried(block_bytes),
        "vocabulary": tried(with_vocabulary),
        "mixed": tried(mixed),
        "different plans": tried(different_plans),
    }


def degrees() -> dict[str, Any]:
    """A state gathered from four ranks, loaded by two pairs of them, and gathered from each pair."""
    run, model = loss_of("gpt2"), build("gpt2")
    of_four = sliced(model, run, sequence=True)
    state = _sent(state_of(model, of_four))
    world = current_world(Mesh(tensor=2))
    other = build("gpt2")
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.zero_()
    blocks = find_blocks(other)
    of_two = TensorParallel(other, blocks, derive(other, blocks, run, 2), world.tensor, sequence=True)
    other.load_state_dict(of_two.own_model_state(state))
    gathered = state_of(other, of_two)
    errors = {"state": max((relative(gathered[name], state[name]) for name in gathered), default=0.0)}
    errors["plain"] = max((relative(state[name], each) for name, each in build("gpt2").state_dict().items()))
    wrapped = DistributedDataParallel(other, process_group=world.data.device_group)
    plain = build("gpt2")
    run(plain).backward()
    run(wrapped).backward()
    of_two.complete_gradients()
    found = gradient_errors(other, of_two, plain)
    return {**errors, "ddp": max(found.values(), default=0.0), "fsdp": _fully_sharded(run)}


def _fully_sharded(run: Callable[[nn.Module], torch.Tensor]) -> float:
    """How far a fused step is off that fully_shard makes over pairs of tensor-parallel ranks."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))
    plain, model = build("gpt2"), build("gpt2")
    blocks = find_blocks(model)
    parallel = TensorParallel(model, blocks, derive(model, blocks, run, 2), world_of(2), sequence=True)
    local = {name: part.indices[parallel.ranks.rank] for name, part in parallel.slices.items()}
    for block in blocks:
        fully_shard(block, mesh=mesh["data"])
    fully_shard(model, mesh=mesh["data"])
    optimizers = [torch.optim.AdamW(each.parameters(), lr=1e-2, eps=1e-3, fused=True) for each in (plain, model)]
    run(plain).backward()
    run(model).backward()
    parallel.complete_gradients()
    for optimizer in optimizers:
        optimizer.step()
    moved = wrong = 0.0
    begin = build("gpt2").state_dict()
    expected = plain.state_dict()
    for name, parameter in plain_names(dict(model.named_parameters())).items():
        whole, start, end = parameter.full_tensor(), begin[name], expected[name]
        if name in local:
            start, end = (each.index_select(parallel.slices[name].dim, local[name]) for each in (start, end))
        wrong += float((whole - end).square().sum())
        moved += float((end - start).square().sum())
    return (wrong / moved) ** 0.5


def on_four() -> dict[str, Any]:
    return {"steps": steps(KINDS_ON_FOUR), "degrees": tried(degrees), "bytes": tried(block_bytes)}
