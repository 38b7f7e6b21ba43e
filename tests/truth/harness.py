"""Some steps of any workload under any methods, through an emitted wrapper, beside the same steps of a plain loop."""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import nn

from advisor.errors import MethodRefusedError
from advisor.measure.batches.batches import seed_everything
from advisor.measure.state.no_dropout import without_dropout
from advisor.methods.setting import MethodSetting
from advisor.policy.policy import Policy
from advisor.policy.wrapper import write_wrapper
from advisor.training.loss import default_loss
from advisor.training.processes.distribution import plain_names
from advisor.training.training import Training
from advisor.workload.batch_layout import BatchLayout

__all__ = ["STEPS", "Raised", "Refused", "Run", "loaded", "plain_run", "relative", "wrapped_run"]

STEPS = 3
_OPTIONS = ("compute_loss", "build_optimizer", "count_targets")
_NUMBERS = (bool, int, float)


@dataclass
class Run:
    """What a training did.

    Attributes:
        losses: Of every step.
        moved: After each step: how far each parameter is from where it began.
        state: At the end: buffers, and numbers and tensors that modules have as attributes.
    """

    losses: list[float] = field(default_factory=list)
    moved: list[dict[str, torch.Tensor]] = field(default_factory=list)
    state: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Raised:
    """What a step ended with: no training, and nobody who takes it for one.

    Attributes:
        error: As text.
    """

    error: str


@dataclass(frozen=True)
class Refused:
    """A policy that the wrapper refuses for this model."""

    reason: str


def plain_run(module: ModuleType, samples: int, *, dropout: bool = True) -> Run:
    """A loop over whole batches, with nothing but torch.

    Args:
        module: The workload.
        samples: In a batch.
        dropout: Whether it may draw.
    """
    model = _model(module)
    optimizer = getattr(module, "build_optimizer", sgd)([one for one in model.parameters() if one.requires_grad])
    loss_of = getattr(module, "compute_loss", default_loss)
    run, before = Run(), _parameters(model)
    with contextlib.nullcontext() if dropout else without_dropout(model):
        for step in range(STEPS):
            batch = _batch(module, samples, step)
            loss = loss_of(model, batch)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            _keep(run, loss, model.state_dict(), before)
    run.state = _state(model)
    return run


def wrapped_run(
    module: ModuleType,
    samples: int,
    micro_batch: int,
    settings: Sequence[MethodSetting],
    layout: BatchLayout | None,
    folder: Path,
    *,
    dropout: bool = True,
) -> Run | Refused | Raised:
    """The same steps through a wrapper, written and loaded as a user's.

    Args:
        module: The workload.
        samples: In a batch.
        micro_batch: In a piece of it at most.
        settings: The methods.
        layout: What a probe found of its batches.
        folder: For the wrapper.
        dropout: Whether it may draw.
    """
    policy = Policy(methods=tuple(sorted(settings, key=lambda setting: setting.name)), micro_batch=micro_batch)
    path = folder / "wrapper.py"
    write_wrapper(policy, path, headline="h", details="d", layout=layout)
    options = {name: getattr(module, name) for name in _OPTIONS if hasattr(module, name)}
    if hasattr(module, "Block"):
        options["blocks"] = (module.Block,)
    model = _model(module)
    before = _parameters(model)
    try:
        training: Training = loaded(path.read_text(), path).prepare(
            model, device="cpu", **{"build_optimizer": sgd, **options}
        )
    except MethodRefusedError as refusal:
        return Refused(str(refusal))
    run = Run()
    try:
        with contextlib.nullcontext() if dropout else without_dropout(model):
            for step in range(STEPS):
                loss = training.step(_batch(module, samples, step))
                _keep(run, loss, training.state_dict()["model"], before)
    except MethodRefusedError as refusal:
        return Refused(str(refusal))
    except RuntimeError as error:
        return Raised(str(error))
    finally:
        training.close()
    run.state = _state(training.model)
    return run


def loaded(source: str, path: Path) -> ModuleType:
    """A file as a module of its own."""
    path.write_text(source)
    spec = importlib.util.spec_from_file_location("truth_workload", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def sgd(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    """Unlike Adam it shows how long a gradient is."""
    return torch.optim.SGD(parameters, lr=0.1)


def relative(run: dict[str, torch.Tensor], plain: dict[str, torch.Tensor]) -> float:
    """Norm of the difference of two movements, relative to the second."""
    difference = sum(float((run[name] - plain[name]).square().sum()) for name in plain) ** 0.5
    size = sum(float(tensor.square().sum()) for tensor in plain.values()) ** 0.5
    assert size > 0, "the plain loop trains"
    return difference / size


def _model(module: ModuleType) -> nn.Module:
    seed_everything(0)
    return module.build_model()


def _batch(module: ModuleType, samples: int, step: int) -> Any:
    """The batch of a step; what the step draws follows from the same seed in every run."""
    seed_everything(1000 + step)
    batch = module.make_batch(samples)
    seed_everything(step)
    return batch


def _parameters(model: nn.Module) -> dict[str, torch.Tensor]:
    return _values(dict(model.named_parameters()))


def _values(state: dict[str, Any]) -> dict[str, torch.Tensor]:
    tensors = {name: tensor for name, tensor in state.items() if isinstance(tensor, torch.Tensor)}
    return {
        name: (torch.view_as_real(one.detach()) if one.is_complex() else one.detach()).double().clone()
        for name, one in tensors.items()
    }


def _keep(run: Run, loss: torch.Tensor, state: dict[str, Any], before: dict[str, torch.Tensor]) -> None:
    run.losses.append(float(loss.detach()))
    now = _values(state)
    run.moved.append({name: now[name] - value for name, value in before.items()})


def _state(model: nn.Module) -> dict[str, Any]:
    """What a user may look at in a model besides its parameters, by name."""
    found: dict[str, Any] = {name: buffer.detach().clone() for name, buffer in model.named_buffers()}
    for name, module in model.named_modules():
        for attribute, value in vars(module).items():
            counts = isinstance(value, _NUMBERS) and not attribute.startswith("_")
            if counts or (isinstance(value, torch.Tensor) and not isinstance(value, nn.Parameter)):
                found[f"{name}.{attribute}".lstrip(".")] = value.detach() if isinstance(value, torch.Tensor) else value
            elif isinstance(value, torch.Generator):
                found[f"{name}.{attribute}"] = value.get_state()
    return plain_names(found)
