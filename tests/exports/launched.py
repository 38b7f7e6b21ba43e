"""What a rank that a trainer's own launcher started trains: samples and parameters, which it leaves for a test.

Python runs :func:`watch` as it starts, from a ``sitecustomize`` that the test writes: the command is the trainer's own.
"""

from __future__ import annotations

import os
import sys
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import torch

__all__ = ["Rank", "read", "watch"]

State = dict[str, torch.Tensor]


class Rank(NamedTuple):
    """What one of them did.

    Attributes:
        count: How many there are, as it was told.
        device: Where its parameters are.
        steps: For each optimizer step, the rows of each micro-batch, and the parameters after it.
        expandable: Whether the device's memory is in expandable segments.
        rounded: Whether it is given out in rounded sizes.
    """

    count: int
    device: str
    steps: list[tuple[list[torch.Tensor], State]]
    expandable: bool
    rounded: bool


def watch(folder: Path) -> None:
    """Leave what this rank trains in a folder, after each step of an optimizer."""
    from torch.nn.modules.module import register_module_forward_pre_hook
    from torch.optim.optimizer import register_optimizer_step_post_hook

    if find_spec("torchaudio") is None:  # LLaMA-Factory imports it, and this environment has none.
        sys.modules["torchaudio"] = ModuleType("torchaudio")
        sys.modules["torchaudio"].__spec__ = ModuleSpec("torchaudio", None)
    seen: list[torch.Tensor] = []
    steps: list[tuple[list[torch.Tensor], State]] = []
    models: list[torch.nn.Module] = []

    def forward(module: torch.nn.Module, given: tuple[Any, ...]) -> None:
        if isinstance(module, torch.nn.Embedding):
            seen.append(given[0].detach().cpu().clone())
        elif type(module).__name__ == "LlamaForCausalLM":
            models[:] = [module]

    def stepped(*_: Any) -> None:
        state = {name: tensor.detach().cpu().clone() for name, tensor in models[0].named_parameters()}
        steps.append((seen.copy(), state))
        seen.clear()
        settings = torch.cuda.memory._snapshot()["allocator_settings"]
        rank = Rank(
            count=int(os.environ["WORLD_SIZE"]),
            device=str(next(models[0].parameters()).device),
            steps=steps,
            expandable=settings["expandable_segments"],
            rounded=any(settings["roundup_power2_divisions"].values()),
        )
        torch.save(tuple(rank), folder / f"{os.environ['RANK']}.pt")

    register_module_forward_pre_hook(forward)
    register_optimizer_step_post_hook(stepped)


def read(folder: Path) -> list[Rank]:
    """What all ranks left, in their order."""
    found = {int(path.stem): Rank(*torch.load(path)) for path in folder.glob("*.pt")}
    assert list(range(len(found))) == sorted(found)
    return [found[number] for number in range(len(found))]
