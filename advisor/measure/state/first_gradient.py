"""The whole gradient of a training's first step: caught where it exists, kept in a file, compared in parts.

Everything is computed on the host, one parameter at a time, so that the device's memory is not doubled. Of a very large
model every n-th element is kept: a sample of millions has the same relative error as the whole.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from advisor.files import write_whole
from advisor.measure.fidelity import GradientError
from advisor.measure.memory.meter import listening
from advisor.measure.state.sharded import whole
from advisor.training.optimizer.device_parameter import device_parameter
from advisor.training.processes.distribution import plain_names
from advisor.training.training import Phase, Training

__all__ = ["FirstGradient", "compare_gradient", "every_nth", "save_gradient", "save_whole", "stride_of"]

_MOST_ELEMENTS = 2**25
"""Elements that are kept at most: 128 MiB in float32."""

_Values = dict[str, npt.NDArray[Any]]


class FirstGradient:
    """Catches gradients by the model's plain parameter names, unscaled, before they are clipped or used.

    With several processes every one must catch them, and rank 0 has them.
    """

    def __init__(self, training: Training) -> None:
        self._training = training
        named = plain_names(dict(training.model.named_parameters()))
        self._parameters: dict[str, torch.Tensor] = {
            name: parameter for name, parameter in named.items() if parameter.requires_grad
        }
        self._stride = stride_of(self._parameters.values(), _MOST_ELEMENTS)
        self._caught: _Values = {}

    @contextlib.contextmanager
    def catching(self) -> Iterator[None]:
        """Catch the gradients of the steps in the block; of several steps (skipped ones) the last remains."""
        training = self._training
        before = training.phase_listener

        def listen(phase: Phase) -> None:
            if before is not None:
                before(phase)
            if phase is Phase.OPTIMIZER:
                self._look()

        with contextlib.ExitStack() as undone:
            if training.steps_in_backward:
                # Each gradient is gone once used, and used as soon as it is complete: look before it is accumulated.
                for name, parameter in self._parameters.items():
                    hook = parameter.register_hook(functools.partial(self._keep, name))  # type: ignore[no-untyped-call]
                    undone.callback(hook.remove)
            else:
                undone.enter_context(listening(training, listen))
            yield

    def save(self, path: Path) -> None:
        """Write what was caught, on rank 0."""
        if self._training.world.rank == 0:
            _write(path, self._stride, self._caught)

    def compare(self, path: Path) -> tuple[GradientError | None, str]:
        """Compare what was caught with a file that :meth:`save` wrote: the error, or ``None`` and why there is none."""
        if self._training.world.rank != 0:
            return None, "rank 0 has the gradient"
        return _compared(self._parameters, self._caught, self._stride, path)

    def _look(self) -> None:
        training = self._training
        training.complete_gradients()
        # An optimizer on the host has its gradients there, and the device none.
        members = (member for group in training.optimizer.param_groups for member in group["params"])
        held = {id(device_parameter(member)): member for member in members}
        found = {name: held.get(id(parameter), parameter).grad for name, parameter in self._parameters.items()}
        gradients = {name: gradient for name, gradient in found.items() if gradient is not None}
        if training.cuts:
            gradients = self._put_together(gradients)
        for name, gradient in gradients.items():
            self._keep(name, gradient)

    def _put_together(self, gradients: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """The gradients of a model that processes hold together, on rank 0: they are gathered as its state is."""
        training = self._training
        state: dict[str, torch.Tensor] = {name: whole(gradient.detach()) for name, gradient in gradients.items()}
        if training.world.data.rank == 0:
            for cut in reversed(training.cuts):
                state = cut.whole_model_state(state)
        if training.world.rank == 0:
            self._parameters = dict(state)
            self._stride = stride_of(state.values(), _MOST_ELEMENTS)
        return state if training.world.rank == 0 else {}

    def _keep(self, name: str, gradient: torch.Tensor) -> None:
        full = whole(gradient.detach())
        if self._training.world.rank == 0:
            scaler = self._training.gradient_scaler
            scale = 1.0 if scaler is None else scaler.get_scale()
            self._caught[name] = every_nth(full, self._stride) / np.float32(scale)


def save_gradient(model: torch.nn.Module, path: Path) -> None:
    """Save the gradients of a plain model, between its backward pass and its optimizer step, as the reference run's."""
    _write(path, *_gradients_of(model))


def compare_gradient(model: torch.nn.Module, path: Path) -> tuple[GradientError | None, str]:
    """Compare the gradients that a plain model has now with a file, as :meth:`FirstGradient.compare` does."""
    stride, caught = _gradients_of(model)
    return _compared(dict(model.named_parameters()), caught, stride, path)


def _gradients_of(model: torch.nn.Module) -> tuple[int, _Values]:
    trained = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    stride = stride_of(trained.values(), _MOST_ELEMENTS)
    return stride, {name: every_nth(one.grad, stride) for name, one in trained.items() if one.grad is not None}


def _compared(parameters: Iterable[str], caught: _Values, stride: int, path: Path) -> tuple[GradientError | None, str]:
    if not path.exists():
        return None, "the reference run's gradient is missing"
    stored = torch.load(path, mmap=True, weights_only=True)
    exact: dict[str, torch.Tensor] = stored["gradient"]
    reason = _why_not(set(parameters), caught, exact)
    if stride != stored["stride"]:
        reason = reason or "it trains other parameters than plain training"
    if reason:
        return None, reason
    own_square = exact_square = product = difference = 0.0
    for name, expected in exact.items():
        own, other = torch.from_numpy(caught[name]).double(), expected.double()
        own_square += float(own.dot(own))
        exact_square += float(other.dot(other))
        product += float(own.dot(other))
        difference += float((own - other).square().sum())
    if exact_square == 0:
        return None, "the reference run's first gradient is zero"
    error, ratio = math.sqrt(difference / exact_square), math.sqrt(own_square / exact_square)
    cosine = product / math.sqrt(own_square * exact_square) if own_square else 0.0
    if not all(map(math.isfinite, (error, cosine, ratio))):
        return None, "the first gradient is not finite"
    return GradientError(error=error, cosine=min(cosine, 1.0), norm_ratio=ratio), ""


def _why_not(parameters: set[str], caught: _Values, exact: dict[str, torch.Tensor]) -> str:
    # A parameter that the reference run's loss does not depend on has no gradient there, and need not have one here.
    trained = [name for name in parameters ^ exact.keys() if name in exact or name in caught]
    shapes = [name for name in exact if name in caught and caught[name].size != exact[name].numel()]
    if trained or shapes:
        return f"it trains other parameters than plain training ({(sorted(trained) or sorted(shapes))[0]})"
    missing = sorted(exact.keys() - caught.keys())
    return f"{missing[0]} had no gradient at the end of the backward pass" if missing else ""


def stride_of(tensors: Iterable[torch.Tensor], most: int) -> int:
    """How far apart the elements are that are kept, so that they are not many more than ``most``."""
    return max(1, math.ceil(sum(tensor.numel() for tensor in tensors) / most))


def every_nth(tensor: torch.Tensor, stride: int) -> npt.NDArray[Any]:
    """A copy of a part of a tensor, in float32 where it has fewer bits, complex numbers as pairs.

    It is in numpy's memory: on a CPU a meter may be counting torch's.
    """
    plain = tensor.detach()
    if plain.is_sparse and not plain.is_complex():
        return _every_nth_of_sparse(plain.coalesce(), stride)
    if plain.is_sparse:
        plain = plain.to_dense()
    if plain.is_complex():
        plain = torch.view_as_real(plain.resolve_conj())
    part = plain.reshape(-1)[::stride].cpu()
    return np.array((part.float() if part.is_floating_point() and part.element_size() < 4 else part).numpy())


def _every_nth_of_sparse(tensor: torch.Tensor, stride: int) -> npt.NDArray[Any]:
    """The same of a gradient of few rows, without the others: a table may take most of the memory."""
    values, indices = tensor.values(), tensor.indices()
    rows = torch.zeros_like(indices[0])
    for place, size in zip(indices, tensor.shape, strict=False):
        rows = rows * size + place
    each = math.prod(values.shape[1:])
    flat = (rows[:, None] * each + torch.arange(each, device=rows.device)).reshape(-1)
    kept = flat % stride == 0
    found = every_nth(values.reshape(-1)[kept], 1)
    part = np.zeros(math.ceil(tensor.numel() / stride), dtype=found.dtype)
    part[(flat[kept] // stride).cpu().numpy()] = found
    return part


def save_whole(path: Path, content: Mapping[str, Any]) -> None:
    """Save numbers and tensors: the old file or a whole new one is there at every moment."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, functools.partial(torch.save, content))


def _write(path: Path, stride: int, caught: _Values) -> None:
    gradient = {name: torch.from_numpy(values.astype(np.float32)) for name, values in caught.items()}
    save_whole(path, {"stride": stride, "gradient": gradient})
