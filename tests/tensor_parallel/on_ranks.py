"""What the ranks do; the tests judge what they bring back."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from advisor.methods.tensor_parallel._derivation import derive
from advisor.methods.tensor_parallel._tensor_parallel import TensorParallel
from advisor.training.structure import find_blocks
from tests.tensor_parallel.models import build, loss_of

KINDS = ("by hand", "gpt2", "llama", "neox", "opt", "bert", "qwen3", "phi3", "mixtral", "vit")
KINDS_ON_FOUR = ("by hand", "gpt2", "neox", "bert")


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
    return TensorParallel(model, blocks, derivation, dist.group.WORLD, sequence=sequence)


def tried(function: Callable[[], Any]) -> Any:
    """What a case brings back, or its traceback: one case must not hide the others."""
    try:
        return function()
    except Exception:
        return traceback.format_exc()


def stepped(kind: str, sequence: bool, prepare: Callable[[nn.Module], None] = lambda model: None) -> dict[str, Any]:
    """One step of SGD of a model, and of the same model in one process: how far gradients and parameters are off."""
    run = loss_of(kind)
    plain, model = build(kind), build(kind)
    expected = run(plain)
    expected.backward()
    parallel = sliced(model, run, sequence=sequence)
    prepare(model)
    with parallel.forward_context():
        loss = run(model)
    loss.backward()
    parallel.complete_gradients()
    errors = gradient_errors(model, parallel, plain)
    for each in (plain, model):
        torch.optim.SGD(each.parameters(), lr=0.1).step()
    state, wanted = parallel.state.gather_state(model), plain.state_dict()
    return {
        "loss": abs(float(loss.detach() - expected.detach())),
        "gradients": max(errors.values(), default=0.0),
        "names": list(state) == list(wanted) if state else True,
        "parameters": max((relative(state[name], wanted[name]) for name in state), default=0.0),
        "held": sum(one.numel() for one in model.parameters()) / sum(one.numel() for one in plain.parameters()),
    }


def gradient_errors(model: nn.Module, parallel: TensorParallel, plain: nn.Module) -> dict[str, float]:
    """Relative error of each gradient, on the first rank; those that are zero but for rounding have none."""
    wanted = {name: one.grad for name, one in plain.named_parameters() if one.grad is not None}
    total = torch.stack([each.norm() for each in wanted.values()]).norm()
    found = {name.replace("_checkpoint_wrapped_module.", ""): one.grad for name, one in model.named_parameters()}
    assert {name for name, each in found.items() if each is not None} == set(wanted)
    errors = {}
    for name, gradient in wanted.items():
        whole = parallel.state.whole(name, found[name])
        if whole is not None and gradient.norm() > 1e-6 * total:
            errors[name] = relative(whole, gradient)
    return errors


def relative(found: torch.Tensor, expected: torch.Tensor) -> float:
    found, expected = found.double(), expected.double()
    return float((found - expected).norm() / expected.norm().clamp_min(1e-30))


def steps_on_two() -> dict[str, Any]:
    return {
        f"{kind}, sequence={sequence}": tried(lambda kind=kind, sequence=sequence: stepped(kind, sequence))
        for kind in KINDS
        for sequence in (False, True)
    }
