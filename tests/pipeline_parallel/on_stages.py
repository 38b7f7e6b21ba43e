"""What the ranks of a pipeline do; the tests judge what they bring back."""

from __future__ import annotations

import itertools
import traceback
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from advisor.methods.pipeline._pipeline_parallel import PipelineParallel
from advisor.training.distribution import plain_names
from advisor.training.structure import find_blocks
from tests.distributed.models import movement_error
from tests.pipeline_parallel.staged_models import batch_of, build, loss_of, targets

KINDS = ("by hand", "conditioned", "gpt2", "llama", "bert", "vit")
SCHEDULES = ("gpipe", "1f1b", "interleaved", "zero_bubble")
CASES = tuple(itertools.product(KINDS, SCHEDULES))
CASES_ON_FOUR = (
    *itertools.product(("by hand",), SCHEDULES),
    ("conditioned", "interleaved"),
    *itertools.product(("gpt2", "llama", "bert", "vit"), ("1f1b", "zero_bubble")),
)


def tried(function: Callable[[], Any]) -> Any:
    """What a case brings back, or its traceback: one case must not hide the others."""
    try:
        return function()
    except Exception:
        return traceback.format_exc()


def cut(batch: Any, count: int) -> list[Any]:
    return [{name: each.chunk(count)[number] for name, each in batch.items()} for number in range(count)]


def piped(model: nn.Module, schedule: str, **options: Any) -> PipelineParallel:
    """A model in stages; the ranks drew other parameters than the first."""
    if dist.get_rank():
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(1.0)
    group = dist.group.WORLD
    assert group is not None
    return PipelineParallel(model, find_blocks(model), group, schedule=schedule, **options)


def run_step(pipeline: PipelineParallel, kind: str, batch: Any, count: int) -> torch.Tensor:
    """Gradients of a batch in micro-batches, weighed by their targets."""
    total, loss = targets(kind, batch), loss_of(kind)
    found = pipeline.step(cut(batch, count), lambda each: loss(pipeline.model, each) * (targets(kind, each) / total))
    pipeline.complete_gradients()
    return found


def whole_gradients(pipeline: PipelineParallel) -> dict[str, torch.Tensor]:
    """The gradients of all ranks by plain names; of parameters in several stages, that of the first."""
    own = {name: one.grad for name, one in pipeline._names.of(pipeline.model).items() if one.grad is not None}
    every: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(every, own)
    return {name: gradient for rank in reversed(every) for name, gradient in rank.items()}


def relative(found: torch.Tensor, expected: torch.Tensor) -> float:
    found, expected = found.double(), expected.double()
    return float((found - expected).norm() / expected.norm().clamp_min(1e-30))


def gradient_error(found: dict[str, torch.Tensor], plain: nn.Module) -> float:
    """The worst relative error of a gradient; those that are zero but for rounding have none."""
    wanted = {name: one.grad for name, one in plain.named_parameters() if one.grad is not None}
    assert set(found) == set(wanted), set(found) ^ set(wanted)
    total = torch.stack([each.norm() for each in wanted.values()]).norm()
    return max(relative(found[name], each) for name, each in wanted.items() if each.norm() > 1e-6 * total)


def stepped(kind: str, schedule: str, count: int = 4, prepare: Callable[[nn.Module], None] = lambda m: None) -> Any:
    """A step of a model in stages, against one of the same model in one process."""
    batch = batch_of(kind)
    plain, model = build(kind), build(kind)
    expected = loss_of(kind)(plain, batch)
    expected.backward()
    pipeline = piped(model, schedule)
    prepare(model)
    loss = run_step(pipeline, kind, batch, count)
    error = gradient_error(whole_gradients(pipeline), plain)
    for each in (plain, model):
        torch.optim.SGD(each.parameters(), lr=0.1, momentum=0.9).step()
    state, wanted = pipeline.state.whole_model_state(plain_names(model.state_dict())), plain.state_dict()
    return {
        "loss": abs(float(loss) - float(expected.detach())),
        "gradients": error,
        "names": list(state) == list(wanted) if state else True,
        "state": movement_error(state, wanted, build(kind)) if state else 0.0,
        "held": sum(one.numel() for one in model.parameters()) / sum(one.numel() for one in plain.parameters()),
    }


def steps(cases: Sequence[tuple[str, str]]) -> dict[str, Any]:
    return {
        f"{kind}, {schedule}": tried(lambda kind=kind, schedule=schedule: stepped(kind, schedule))
        for kind, schedule in cases
    }


def on_two() -> dict[str, Any]:
    return {"steps": steps(CASES)}


def on_four() -> dict[str, Any]:
    return {"steps": steps(CASES_ON_FOUR)}
