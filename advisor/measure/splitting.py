"""Find out what cutting a batch into micro-batches does to a loss: one whole pass is held against uneven pieces.

Nothing is assumed of the loss. If the gradients of the pieces, weighed as a training would weigh them, add up to the
whole one's, it would be right. Else the weights with which they do are solved for, and what they count is looked for in
the batch. A loss for which there are none looks at samples together, and cannot be split.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from advisor.methods.batch import count_targets, cut, leaves_of
from advisor.methods.training import Training
from advisor.problem.batch_layout import SampleDims
from advisor.problem.reduction import Reduction

__all__ = ["Splitting", "splitting_of"]

_MOST_ELEMENTS = 2**22
"""Of a gradient that are looked at, spread evenly over every parameter."""

_TOLERANCE = 2e-3
_TOLERANCE_OF_HALF = 3e-2
"""Relative error of a gradient that is due to the order of sums, in float32 and where parameters are shorter."""

_BY_CHANCE = 3.0
"""Times as far off as another pass over the same batch with other random numbers."""

_COUNTS = (int, float, torch.Tensor)
"""What a module may count in, besides buffers."""

_MOST_VALUES = 64
"""A tensor of more distinct values has no padding that is worth looking for."""


class Splitting(NamedTuple):
    """What was found.

    Attributes:
        reduction: How pieces weigh, if not as the training weighed them.
        changes: Why training on pieces is another training; empty if it is not.
    """

    reduction: Reduction | None
    changes: str


class _Pass(NamedTuple):
    loss: float
    gradient: npt.NDArray[np.float64]


def splitting_of(
    training: Training, batch: Any, at: int, samples: int, dims: SampleDims, *, seed: Callable[[], None]
) -> Splitting:
    """Hold one pass over a batch against passes over two pieces of it.

    Parameters are not updated, and what the passes change in the model is put back.

    Args:
        training: Plain training.
        batch: On the host.
        at: Samples in the first piece.
        samples: In the batch.
        dims: Where it has them.
        seed: Seeds all generators for a pass.

    Raises:
        WorkloadError: The batch cannot be cut.
        Exception: What the user's code raises, perhaps for a piece alone.
    """
    pieces = cut(batch, (0, at, samples), dims)
    with _without_dropout(training.model):
        state = _State(training.model)
        try:
            whole = _pass(training, batch, seed)
            after_whole = _State(training.model)
            state.restore()
            parts = [_pass(training, piece, seed) for piece in pieces]
            changed = after_whole.difference(_State(training.model))
            state.restore()
            gradients = np.stack([one.gradient for one in (*parts, whole)])
            looked = _Looked(training, batch, pieces, whole, parts, dims, gradients @ gradients.T)
            found = looked.found(_tolerance(training.model))
            if found is None:  # perhaps by chance: what noise does shows where nothing but the noise is another
                again = _pass(training, batch, lambda: _other_numbers(seed))
                found = looked.found(_BY_CHANCE * _error(again.gradient, whole.gradient))
        finally:
            state.restore()
            training.model.zero_grad(set_to_none=True)
    if found is None:
        return Splitting(None, looked.why_not())
    return Splitting(found[0], f"a forward pass changes {changed}, once for each micro-batch" if changed else "")


def _other_numbers(seed: Callable[[], None]) -> None:
    seed()
    torch.rand(1)


def _pass(training: Training, part: Any, seed: Callable[[], None]) -> _Pass:
    seed()
    training.model.zero_grad(set_to_none=True)
    loss = training.forward(part)
    training.backward(loss)
    return _Pass(float(loss.detach()), _gradient(training.model))


def _gradient(model: torch.nn.Module) -> npt.NDArray[np.float64]:
    """Every n-th element of the gradient, on the host."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    stride = max(1, math.ceil(sum(parameter.numel() for parameter in parameters) / _MOST_ELEMENTS))
    # numpy's, because on a CPU a meter may be counting torch's at that moment.
    parts = []
    for parameter in parameters:
        if parameter.grad is None:
            parts.append(np.zeros(len(range(0, parameter.numel(), stride))))
        else:
            grad = parameter.grad.to_dense() if parameter.grad.is_sparse else parameter.grad
            parts.append(grad.detach().flatten()[::stride].float().cpu().numpy().astype(np.float64))
    return np.concatenate(parts)


def _tolerance(model: torch.nn.Module) -> float:
    short = any(parameter.dtype in (torch.float16, torch.bfloat16) for parameter in model.parameters())
    return _TOLERANCE_OF_HALF if short else _TOLERANCE


def _error(found: npt.NDArray[np.float64], exact: npt.NDArray[np.float64]) -> float:
    norm = float(np.linalg.norm(exact))
    return float(np.linalg.norm(found - exact)) / norm if norm else float(np.linalg.norm(found) > 0)


class _Looked(NamedTuple):
    """The passes that were made, and what follows from them."""

    training: Training
    batch: Any
    pieces: list[Any]
    whole: _Pass
    parts: list[_Pass]
    dims: SampleDims
    products: npt.NDArray[np.float64]
    """Of the gradients of the pieces and, last, of the whole."""

    def found(self, tolerance: float) -> tuple[Reduction | None] | None:
        """What pieces weigh, if they add up to the whole: nothing where the training weighs them so by itself."""
        if self.error(self.usual()) <= tolerance:
            return (None,)
        for reduction in self.candidates():
            if self.error(self.weights(reduction)) <= tolerance:
                return (reduction,)
        return None

    def usual(self) -> list[float]:
        """The weights that the training gives the pieces."""
        shares = self.training.shares(self.pieces)
        return [sum(share for piece, share in shares if piece is one) for one in self.pieces]

    def weights(self, reduction: Reduction) -> list[float]:
        if reduction.kind == "sum":
            return [1.0] * len(self.pieces)
        counts = [count_targets(piece, reduction, self.dims) for piece in self.pieces]
        return [count / sum(counts) for count in counts] if sum(counts) else [0.0] * len(counts)

    def error(self, weights: Sequence[float]) -> float:
        """How far the weighed pieces are off, in the gradient or in the loss, whichever is further; relative."""
        difference = np.array([*weights, -1.0])
        square, whole = float(difference @ self.products @ difference), float(self.products[-1, -1])
        gradient = math.sqrt(max(0.0, square) / whole) if whole else float(square > 0)
        terms = [weight * part.loss for weight, part in zip(weights, self.parts, strict=True)]
        loss = abs(sum(terms) - self.whole.loss) / max(abs(self.whole.loss), *map(abs, terms), 1e-6)
        error = max(gradient, loss)
        return error if math.isfinite(error) else math.inf

    def candidates(self) -> Iterator[Reduction]:
        """What a loss may do, the most usual first."""
        yield Reduction(kind="sum")
        yield Reduction()
        for leaf in reversed(list(leaves_of(self.batch))):  # targets follow inputs
            tensor = leaf.value
            whole_numbers = isinstance(tensor, torch.Tensor) and not tensor.is_floating_point() and tensor.dim() > 0
            if not whole_numbers or not isinstance(self.dims.get(leaf.path), int):
                continue
            values = torch.unique(tensor)
            if len(values) > _MOST_VALUES:  # of words: padding is one of the outermost, or a usual one
                outermost = torch.stack([values[0], values[1], values[-1]])
                values = torch.unique(torch.cat([outermost, values[(values >= -100) & (values <= 3)]]))
            for value in sorted(values.tolist(), key=lambda value: (value >= 0, abs(value))):
                for shifted in (False, True) if tensor.dim() > 1 else (False,):
                    yield Reduction(targets=leaf.path, ignore_index=int(value), shifted=shifted)

    def why_not(self) -> str:
        off = self.error(self.usual())
        words = f"by {100 * off:.2g} % of its gradient or loss" if math.isfinite(off) else "beyond all bounds"
        own = self.training.counts_targets
        counted = "count_targets does not count what the loss averages over, or " if own else ""
        return (
            f"the loss of a batch is not the weighed mean, nor the sum, of those of its micro-batches (off {words}): "
            f"{counted}it looks at samples together, as normalization over a batch and negatives within it do"
        )


class _State:
    """Everything in a model that a forward pass may change besides gradients: buffers, tensors and numbers."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._model = model
        self._buffers = {name: buffer.detach().clone() for name, buffer in model.named_buffers()}
        self._others: dict[tuple[str, str], Any] = {}
        for name, module in model.named_modules():
            for attribute, value in vars(module).items():
                if isinstance(value, torch.Tensor):
                    self._others[name, attribute] = value.detach().clone()
                elif isinstance(value, _COUNTS):
                    self._others[name, attribute] = value

    def restore(self) -> None:
        """Put everything back."""
        with torch.no_grad():
            for name, buffer in self._model.named_buffers():
                if name in self._buffers and buffer.shape == self._buffers[name].shape:
                    buffer.copy_(self._buffers[name])
        modules = dict(self._model.named_modules())
        for name, module in modules.items():
            for attribute in [one for one, value in vars(module).items() if isinstance(value, _COUNTS)]:
                if (name, attribute) not in self._others:
                    delattr(module, attribute)  # it was the class's until a pass counted
        for (name, attribute), value in self._others.items():
            module = modules[name]
            object.__setattr__(module, attribute, value.clone() if isinstance(value, torch.Tensor) else value)

    def difference(self, other: _State) -> str:
        """What is not as in another state, by name; empty if nothing."""
        names = [name for name, buffer in self._buffers.items() if not _alike(buffer, other._buffers.get(name))]
        names += [
            ".".join(filter(None, key))
            for key, value in self._others.items()
            if not _alike(value, other._others.get(key))
        ]
        return ", ".join(names[:3]) + (" ..." if len(names) > 3 else "")


def _alike(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        if one.shape != other.shape:
            return False
        if not one.is_floating_point():
            return bool(torch.equal(one, other))
        return bool(torch.allclose(one.float(), other.float(), rtol=1e-3, atol=1e-6, equal_nan=True))
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=1e-3, abs_tol=1e-6) or (math.isnan(one) and math.isnan(other))
    return bool(one == other)


@contextlib.contextmanager
def _without_dropout(model: torch.nn.Module) -> Iterator[None]:
    """Let no dropout draw: its masks differ between a batch and its pieces, and say nothing of the loss."""
    changed: list[tuple[dict[str, Any], str, float]] = []
    for module in model.modules():
        is_dropout = isinstance(module, torch.nn.modules.dropout._DropoutNd)
        for name, value in vars(module).items():
            if isinstance(value, float) and value > 0 and ("drop" in name.lower() or (is_dropout and name == "p")):
                changed.append((vars(module), name, value))
    for attributes, name, _ in changed:
        attributes[name] = 0.0
    try:
        yield
    finally:
        for attributes, name, value in changed:
            attributes[name] = value
