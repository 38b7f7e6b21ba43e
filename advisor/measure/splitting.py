"""Find out what cutting a batch into micro-batches does to a loss: one whole pass is held against uneven pieces.

Nothing is assumed of the loss. If the gradients of the pieces, weighed as a training would weigh them, add up to the
whole one's, it would be right. Else the weights with which they do are solved for, and what they count is looked for in
the batch. A loss for which there are none looks at samples together, and cannot be split.
"""

from __future__ import annotations

import functools
import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from advisor.measure.model_state import ModelState
from advisor.measure.no_dropout import without_dropout
from advisor.methods.batch import count_targets, cut, leaves_of
from advisor.methods.training import Training
from advisor.problem.batch_layout import SampleDims
from advisor.problem.reduction import Reduction

__all__ = ["Look", "Splitting", "splitting_of"]

_MOST_ELEMENTS = 2**22
"""Of a gradient that are looked at, spread evenly over every parameter."""

_TOLERANCE = 2e-3
_TOLERANCE_OF_TF32 = 5e-3
_TOLERANCE_OF_HALF = 3e-2
"""Relative error of a gradient that is due to the order of sums: in float32, on a GPU that may multiply in fewer bits,
and where anything is computed in 16."""

_QUICK_SECONDS = 0.3
"""A look that is over sooner is followed by others, whatever it found."""

_BY_CHANCE = 3.0
"""Times as far off as another pass over the same batch with other random numbers."""

_FEWEST_DRAWS, _MOST_DRAWS, _DRAW_SECONDS = 3, 64, 0.5
"""Of random numbers with which the losses of a batch and of its pieces are looked at again, and for how long."""

_BY_CHANCE_OF_LOSS = 3.0
"""Standard errors that mean losses may be apart."""

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


class Look(NamedTuple):
    """A batch to look at.

    Attributes:
        batch: On the host.
        at: Samples in the first of two pieces.
        samples: In the batch.
    """

    batch: Any
    at: int
    samples: int


class _Pass(NamedTuple):
    loss: float
    gradient: npt.NDArray[np.float64]


def splitting_of(training: Training, looks: Sequence[Look], dims: SampleDims, *, seed: Callable[[], None]) -> Splitting:
    """Hold one pass over a batch against passes over two pieces of it, for several batches where that is cheap.

    Parameters are not updated, and what the passes change in the model is put back. What is found of the first batch is
    held against a second one unless it is what the training takes for granted and a pass takes long.

    Args:
        training: Plain training.
        looks: The batches, and where each is cut.
        dims: Where a batch has its samples.
        seed: Seeds all generators for a pass, and puts back what the one before has written to its batch.

    Raises:
        WorkloadError: A batch cannot be cut.
        Exception: What the user's code raises, perhaps for a piece alone.
    """
    with without_dropout(training.model):
        state = ModelState(training.model)
        try:
            begin = time.perf_counter()
            looked = [_look(training, looks[0], dims, state, seed)]
            quick = time.perf_counter() - begin < _QUICK_SECONDS
            for look in looks[1:]:
                if not quick and looked[0].error(looked[0].usual()) <= _tolerance(training):
                    break
                looked.append(_look(training, look, dims, state, seed))
            tolerance = _tolerance(training)
            found = _found(looked, tolerance)
            if found is None:
                # Perhaps by chance, or for lack of digits: seen where the same batch is passed with other numbers.
                with _SeesShort() as short:
                    again = _pass(training, looks[0].batch, lambda: _other_numbers(seed))
                chance = _BY_CHANCE * _error(again.gradient, looked[0].whole.gradient)
                least = max(tolerance, _TOLERANCE_OF_HALF if short.seen else 0.0)
                if chance > least:
                    looked = [_drawn_again(training, one, state, seed) for one in looked]
                found = _found(looked, max(least, chance), least)
            changed = looked[0].changed
            if changed and found is not None:
                changed = _carried(training, looks[0].batch, state, seed, changed)
        finally:
            state.restore()
            training.model.zero_grad(set_to_none=True)
    if found is None:
        return Splitting(None, looked[0].why_not())
    words = ", ".join(changed[:3]) + (" ..." if len(changed) > 3 else "")
    return Splitting(found[0], f"a forward pass changes {words}, once for each micro-batch" if changed else "")


def _look(training: Training, look: Look, dims: SampleDims, state: ModelState, seed: Callable[[], None]) -> _Looked:
    pieces = cut(look.batch, (0, look.at, look.samples), dims)
    state.restore()
    whole = _pass(training, look.batch, seed)
    after_whole = ModelState(training.model)
    state.restore()
    parts = [_pass(training, piece, seed) for piece in pieces]
    seed()  # what is looked for in the batch is looked for in it as it was
    changed = after_whole.difference(ModelState(training.model))
    state.restore()
    gradients = np.stack([one.gradient for one in (*parts, whole)])
    products = gradients @ gradients.T
    return _Looked(training, look.batch, pieces, whole, parts, dims, products, changed)


def _found(
    looked: Sequence[_Looked], tolerance: float, tolerance_of_loss: float | None = None
) -> tuple[Reduction | None] | None:
    """What pieces of every batch weigh, if they add up to it: nothing where the training weighs them so by itself.

    Args:
        looked: The passes.
        tolerance: Largest relative error of a gradient.
        tolerance_of_loss: Of a loss, beside what chance does to its mean over the draws; by default the same.
    """
    loss = tolerance if tolerance_of_loss is None else tolerance_of_loss
    if all(one.adds_up(one.usual(), tolerance, loss) for one in looked):
        return (None,)
    for reduction in looked[0].candidates():
        if all(one.adds_up(one.weights(reduction), tolerance, loss) for one in looked):
            return (reduction,)
    return None


def _drawn_again(training: Training, looked: _Looked, state: ModelState, seed: Callable[[], None]) -> _Looked:
    """With the losses of further draws: in one gradient chance may hide a factor, in a mean of losses it does not."""
    parts = [*looked.pieces, looked.batch]
    drawn = [[one.loss] for one in (*looked.parts, looked.whole)]
    begin = time.perf_counter()
    for draw in range(1, _MOST_DRAWS):
        if draw >= _FEWEST_DRAWS and time.perf_counter() - begin > _DRAW_SECONDS:
            break
        for part, losses in zip(parts, drawn, strict=True):
            state.restore()
            losses.append(_pass(training, part, functools.partial(_other_numbers, seed, draw)).loss)
    return looked._replace(drawn=drawn)


def _carried(
    training: Training, batch: Any, state: ModelState, seed: Callable[[], None], changed: list[str]
) -> list[str]:
    """What a pass makes of its own earlier value; what it only stores, such as its last output, is no state."""
    state.restore()
    _pass(training, batch, seed)
    once = ModelState(training.model)
    _pass(training, batch, seed)
    twice = set(once.difference(ModelState(training.model)))
    return [name for name in changed if name in twice]


class _SeesShort(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sees whether anything is computed in 16 bits, as under the user's own autocast."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor) and result.dtype in (torch.float16, torch.bfloat16):
            self.seen = True
        return result


def _other_numbers(seed: Callable[[], None], count: int = 1) -> None:
    seed()
    torch.rand(count)


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
            if grad.is_complex():
                grad = torch.view_as_real(grad.resolve_conj())
            parts.append(grad.detach().flatten()[::stride].float().cpu().numpy().astype(np.float64))
    return np.concatenate(parts)


def _tolerance(training: Training) -> float:
    short = any(parameter.dtype in (torch.float16, torch.bfloat16) for parameter in training.model.parameters())
    if short:
        return _TOLERANCE_OF_HALF
    return _TOLERANCE if training.device.type == "cpu" else _TOLERANCE_OF_TF32


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
    changed: list[str]
    """What the pieces left otherwise in the model than the whole."""
    drawn: Sequence[Sequence[float]] = ()
    """Where numbers are drawn: the losses of several draws, of each piece and, last, of the whole."""

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
        return max(self._errors(weights))

    def adds_up(self, weights: Sequence[float], tolerance: float, tolerance_of_loss: float) -> bool:
        """Whether the weighed pieces are the whole, up to these relative errors and to what chance does to a loss."""
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
        """Of the gradient and of the loss."""
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

    def candidates(self) -> Iterator[Reduction]:
        """What a loss may do, the most usual first."""
        yield Reduction(kind="sum")
        yield Reduction()
        for leaf in reversed(list(leaves_of(self.batch))):  # targets follow inputs
            tensor = leaf.value
            if (
                not isinstance(tensor, torch.Tensor)
                or not tensor.dim()
                or not isinstance(self.dims.get(leaf.path), int)
            ):
                continue
            values = torch.unique(tensor)
            if tensor.is_floating_point():
                if not set(values.tolist()) <= {0.0, 1.0}:
                    continue  # no mask
                values = torch.zeros(1, dtype=torch.long)
            elif len(values) > _MOST_VALUES:  # of words: padding is one of the outermost, or a usual one
                outermost = torch.stack([values[0], values[1], values[-1]])
                values = torch.unique(torch.cat([outermost, values[(values >= -100) & (values <= 3)]]))
            for value in sorted((int(value) for value in values), key=_unusual):
                for shifted in (False, True) if tensor.dim() > 1 else (False,):
                    yield Reduction(targets=leaf.path, ignore_index=value, shifted=shifted)

    def why_not(self) -> str:
        off = self.error(self.usual())
        words = f"by {100 * off:.2g} % of its gradient or loss" if math.isfinite(off) else "beyond all bounds"
        own = self.training.counts_targets
        counted = "count_targets does not count what the loss averages over, or " if own else ""
        return (
            f"the loss of a batch is not the weighed mean, nor the sum, of those of its micro-batches (off {words}): "
            f"{counted}it looks at samples together, as normalization over a batch and negatives within it do"
        )


def _unusual(value: int) -> tuple[int, int]:
    """How unusual it is that a value stands for no target."""
    usual = (-100, 255, -1, 0)
    return (usual.index(value), 0) if value in usual else (len(usual) + (value >= 0), abs(value))
