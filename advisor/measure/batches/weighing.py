"""Passes over a batch and over two chunks of it, and the weights with which the chunks add up to the whole."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from advisor.measure.state.first_gradient import every_nth, stride_of
from advisor.text.units import format_percent
from advisor.training.batch.targets import count_targets
from advisor.training.batch.tree import map_tensors
from advisor.training.training import Training
from advisor.workload.batch_layout import SampleDims
from advisor.workload.reduction import Reduction

__all__ = ["Looked", "Pass", "error_of", "is_number", "passed", "some_of"]

_MOST_ELEMENTS = 2**22
"""Number of gradient elements compared, spread evenly over every parameter."""

_BY_CHANCE_OF_LOSS = 3.0
"""Accepted difference of mean losses, in standard errors."""


class Pass(NamedTuple):
    """The result of one pass.

    Attributes:
        loss: Value of the loss.
        gradient: Every n-th element of the gradient.
    """

    loss: float
    gradient: npt.NDArray[np.float64]


def passed(training: Training, part: Any, seed: Callable[[], None]) -> Pass:
    """One pass over a copy of a batch or a chunk, as a loss may write to its batch."""
    seed()
    training.model.zero_grad(set_to_none=True)
    loss = training.forward(map_tensors(part, torch.Tensor.clone))
    training.backward(loss)
    return Pass(float(loss.detach()), _gradient(training.model))


def _gradient(model: torch.nn.Module) -> npt.NDArray[np.float64]:
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    stride = stride_of(parameters, _MOST_ELEMENTS)
    parts = [
        np.zeros(len(range(0, one.numel(), stride))) if one.grad is None else every_nth(one.grad, stride)
        for one in parameters
    ]
    return np.concatenate(parts).astype(np.float64)


def error_of(found: npt.NDArray[np.float64], exact: npt.NDArray[np.float64]) -> float:
    """Norm of the difference of two gradients, relative to the exact one."""
    norm = float(np.linalg.norm(exact))
    return float(np.linalg.norm(found - exact)) / norm if norm else float(np.linalg.norm(found) > 0)


class Looked(NamedTuple):
    """The passes over a batch and its chunks, and what follows from them."""

    training: Training
    batch: Any
    chunks: list[Any]
    whole: Pass
    parts: list[Pass]
    dims: SampleDims
    products: npt.NDArray[np.float64]
    """Dot products of the gradients of the chunks and, last, of the whole."""
    changed: list[str]
    """Model state that the chunks changed differently from the whole."""
    drawn: Sequence[Sequence[float]] = ()
    """If random numbers are used: losses of several draws, of each chunk and, last, of the whole."""

    @property
    def has_gradient(self) -> bool:
        """Whether the gradient is not zero: a loss of zero adds up however it is split."""
        return float(self.products[-1, -1]) > 0

    @property
    def samples(self) -> int:
        """Samples in the batch."""
        return int(sum(self.counts(Reduction())))

    def usual(self) -> list[float]:
        """The chunks' weights in the training."""
        shares = self.training.micro_batch_weights.of(self.chunks)
        return [sum(share for chunk, share in shares if chunk is one) for one in self.chunks]

    def weights(self, reduction: Reduction) -> list[float]:
        """The chunks' weights under a reduction."""
        if reduction.kind == "sum":
            return [1.0] * len(self.chunks)
        counts = self.counts(reduction)
        total = max(sum(counts), reduction.at_least)
        return [max(count, reduction.at_least) / total for count in counts] if total else [0.0] * len(counts)

    def counts(self, reduction: Reduction) -> list[float]:
        """The chunks' target counts."""
        return [count_targets(chunk, reduction, self.dims) for chunk in self.chunks]

    def is_even(self, reduction: Reduction) -> bool:
        """Whether all chunks have equally many targets per sample, which would tell nothing about the loss."""
        counts, by_sample = self.counts(reduction), self.weights(Reduction())
        total = sum(counts)
        return all(abs(count - total * share) <= 1e-3 * total for count, share in zip(counts, by_sample, strict=True))

    def error(self, weights: Sequence[float]) -> float:
        """Relative error of the weighted chunks: the larger of those of the gradient and the loss."""
        return max(self._errors(weights))

    def adds_up(self, weights: Sequence[float], tolerance: float, tolerance_of_loss: float) -> bool:
        """Whether the weighted chunks equal the whole, up to these relative errors and the loss's random error."""
        gradient, loss = self._errors(weights)
        if not self.drawn:
            return gradient <= tolerance and loss <= tolerance_of_loss
        if gradient > tolerance:
            return False
        terms = [(weight, losses) for weight, losses in zip((*weights, -1.0), self.drawn, strict=True) if weight]
        if not all(math.isfinite(one) for _, losses in terms for one in losses):
            return False
        difference = sum(weight * statistics.fmean(losses) for weight, losses in terms)
        square = sum(weight**2 * statistics.variance(losses) / len(losses) for weight, losses in terms)
        size = max(abs(weight * statistics.fmean(losses)) for weight, losses in terms)
        return abs(difference) <= _BY_CHANCE_OF_LOSS * math.sqrt(square) + tolerance_of_loss * size

    def _errors(self, weights: Sequence[float]) -> tuple[float, float]:
        """Relative errors of the gradient and of the loss."""
        counted = [number for number, weight in enumerate(weights) if weight]  # one without targets may be 0 / 0
        terms = [weights[number] * self.parts[number].loss for number in counted]
        place = [*counted, len(self.parts)]
        difference = np.array([*(weights[number] for number in counted), -1.0])
        products = self.products[np.ix_(place, place)]
        if not counted or not np.isfinite(products).all() or not all(map(math.isfinite, (*terms, self.whole.loss))):
            return math.inf, math.inf
        square, whole = float(difference @ products @ difference), float(products[-1, -1])
        gradient = math.sqrt(max(0.0, square) / whole) if whole else float(square > 0)
        loss = abs(sum(terms) - self.whole.loss) / max(abs(self.whole.loss), *map(abs, terms), 1e-6)
        return gradient, loss

    def why_not(self, changed: Sequence[str] = ()) -> str:
        """Why training on the chunks differs from training on the batch.

        The loss may depend on ``changed``, model state that every pass changes.
        """
        off = self.error(self.usual())
        words = f"by {format_percent(off)} of its gradient or loss" if math.isfinite(off) else "beyond all bounds"
        own = self.training.micro_batch_weights.counts_targets
        counted = "count_targets does not count what the loss averages over, or " if own else ""
        state = f"depends on what every pass changes ({some_of(changed)}), or " if changed else ""
        return (
            f"the loss of a batch is not the weighed mean, nor the sum, of those of its micro-batches (off {words}): "
            f"{counted}it {state}looks at samples together, as normalization over a batch and negatives within it do, "
            "or adds up means over different things, such as targets and samples"
        )


def some_of(names: Sequence[str]) -> str:
    """The first few names, as text."""
    return ", ".join(names[:3]) + (" ..." if len(names) > 3 else "")


def is_number(value: Any) -> bool:
    """Whether a value is a single number, in a tensor or not."""
    if isinstance(value, torch.Tensor):
        return value.dim() == 0 and value.dtype != torch.bool
    return isinstance(value, int | float) and not isinstance(value, bool)
