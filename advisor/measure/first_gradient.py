"""The whole gradient of a training's first step: caught where it exists, kept in a file, compared piece by piece.

Everything is computed on the host, one parameter at a time, so that the device's memory is not doubled. Of a very large
model every n-th element is kept: a sample of millions has the same relative error as the whole.
"""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from advisor.measure.fidelity import GradientError
from advisor.measure.sharded import whole
from advisor.methods.distribution import plain_names
from advisor.methods.host_step import device_parameter
from advisor.methods.training import Phase, Training

__all__ = ["FirstGradient"]

_MOST_ELEMENTS = 2**25
"""Elements that are kept at most: 128 MiB in float32."""


class FirstGradient:
    """Catches gradients by the model's plain parameter names, unscaled, before they are clipped or used.

    Args:
        training: Whose gradients; with several processes every one must catch them, and rank 0 has them.
    """

    def __init__(self, training: Training) -> None:
        self._training = training
        named = plain_names(dict(training.model.named_parameters()))
        self._parameters: dict[str, torch.Tensor] = {
            name: parameter for name, parameter in named.items() if parameter.requires_grad
        }
        total = sum(parameter.numel() for parameter in self._parameters.values())
        self._stride = max(1, math.ceil(total / _MOST_ELEMENTS))
        # numpy's, because on a CPU a meter may be counting torch's at that moment.
        self._caught: dict[str, npt.NDArray[np.float32]] = {}

    @contextlib.contextmanager
    def catching(self) -> Iterator[None]:
        """Catch the gradients of the steps in the block; of several steps (skipped ones) the last remains."""
        training = self._training
        hooks = []
        before = training.phase_listener

        def listen(phase: Phase) -> None:
            if before is not None:
                before(phase)
            if phase is Phase.OPTIMIZER:
                self._look()

        if training.steps_in_backward:
            # Each gradient is gone once used, and used as soon as it is complete: look before it is accumulated.
            for name, parameter in self._parameters.items():
                hooks.append(parameter.register_hook(self._catcher(name)))  # type: ignore[no-untyped-call]
        else:
            training.phase_listener = listen
        try:
            yield
        finally:
            training.phase_listener = before
            for hook in hooks:
                hook.remove()

    def save(self, path: Path) -> None:
        """Write what was caught, on rank 0: the old file or a whole new one is there at every moment."""
        if self._training.world.rank != 0:
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            gradient = {name: torch.from_numpy(caught) for name, caught in self._caught.items()}
            torch.save({"stride": self._stride, "gradient": gradient}, temporary)
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)

    def compare(self, path: Path) -> tuple[GradientError | None, str]:
        """Hold what was caught against a file that :meth:`save` wrote.

        Returns:
            The error, or ``None`` and why there is none.
        """
        if self._training.world.rank != 0:
            return None, "rank 0 has the gradient"
        if not path.exists():
            return None, "the exact run's gradient is not there"
        stored = torch.load(path, mmap=True, weights_only=True)
        exact: dict[str, torch.Tensor] = stored["gradient"]
        reason = self._why_not(exact, stored["stride"])
        if reason:
            return None, reason
        own_square = exact_square = product = difference = 0.0
        for name, expected in exact.items():
            own, other = torch.from_numpy(self._caught[name]).double(), expected.double()
            own_square += float(own.dot(own))
            exact_square += float(other.dot(other))
            product += float(own.dot(other))
            difference += float((own - other).square().sum())
        if exact_square == 0:
            return None, "the exact run's first gradient is zero"
        figures = (
            math.sqrt(difference / exact_square),
            product / math.sqrt(own_square * exact_square) if own_square else 0.0,
            math.sqrt(own_square / exact_square),
        )
        if not all(math.isfinite(figure) for figure in figures):
            return None, "the first gradient is not finite"
        error, cosine, ratio = figures
        return GradientError(error=error, cosine=min(cosine, 1.0), norm_ratio=ratio), ""

    def _why_not(self, exact: dict[str, torch.Tensor], stride: int) -> str:
        other = self._parameters.keys() ^ exact.keys()
        # A parameter that the exact run's loss does not depend on has no gradient there, and need not have one here.
        trained = [name for name in other if name in exact or name in self._caught]
        shapes = [name for name in exact if name in self._caught and self._caught[name].size != exact[name].numel()]
        if trained or shapes or stride != self._stride:
            names = sorted(trained) or sorted(shapes)
            example = f" ({names[0]})" if names else ""
            return f"it trains other parameters than plain training{example}"
        missing = sorted(exact.keys() - self._caught.keys())
        if missing:
            return f"{missing[0]} had no gradient at the end of the backward pass"
        return ""

    def _look(self) -> None:
        training = self._training
        training.complete_gradients()
        # An optimizer on the host has its gradients there, and the device none.
        members = (member for group in training.optimizer.param_groups for member in group["params"])
        held = {id(device_parameter(member)): member for member in members}
        for name, parameter in self._parameters.items():
            gradient = held.get(id(parameter), parameter).grad
            if gradient is not None:
                self._keep(name, gradient)

    def _catcher(self, name: str) -> Callable[[torch.Tensor], None]:
        def caught(gradient: torch.Tensor) -> None:
            self._keep(name, gradient)

        return caught

    def _keep(self, name: str, gradient: torch.Tensor) -> None:
        full = whole(gradient.detach())
        if self._training.world.rank != 0:
            return
        if full.is_sparse:
            full = full.to_dense()
        scaler = self._training.gradient_scaler
        scale = 1.0 if scaler is None else scaler.get_scale()
        values: npt.NDArray[np.float32] = full.cpu().float().flatten().numpy()
        self._caught[name] = values[:: self._stride] / np.float32(scale)
