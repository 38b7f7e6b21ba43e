"""Find out how splitting a batch into micro-batches affects a loss, by comparing a whole pass with uneven chunks.

Nothing is assumed about the loss. If the gradients of the chunks, weighted as in training, add up to the whole batch's,
training is correct. Otherwise solve for the weights with which they do, and search the batch for what they count. A
loss without such weights depends on several samples together and cannot be split.
"""

from __future__ import annotations

import functools
import itertools
import math
import random
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from advisor.measure.batches.looks import Look, emptied_look
from advisor.measure.batches.loss_reductions import by_class, candidates
from advisor.measure.batches.weighing import Looked, Pass, error_of, is_number, passed, some_of
from advisor.measure.state.model_state import ModelState
from advisor.measure.state.no_dropout import without_dropout
from advisor.training.batch.class_weights import ClassWeights
from advisor.training.batch.tree import leaves_of, with_leaf
from advisor.training.training import Training
from advisor.workload.batch_layout import SampleDims
from advisor.workload.reduction import Reduction

__all__ = ["Splitting", "splitting_of"]

_TOLERANCE = 2e-3
_TOLERANCE_OF_TF32 = 5e-3
_TOLERANCE_OF_HALF = 3e-2
"""Relative error of a gradient due to the order of summation: in float32, on a GPU that may multiply in fewer bits, and
if anything is computed in 16 bits."""

_QUICK_SECONDS = 0.3
"""Looks quicker than this are followed by others, whatever they find."""

_BY_CHANCE = 3.0
"""Accepted error, as a multiple of that of another pass over the same batch with other random numbers."""

_FEWEST_DRAWS, _MOST_DRAWS, _DRAW_SECONDS = 3, 64, 0.5
"""Number of draws of random numbers for comparing the losses of a batch and of its chunks, and the time for them."""


class Splitting(NamedTuple):
    """How splitting affects the loss.

    Attributes:
        reduction: How to weight chunks, if not as the training already does.
        changes: Why splitting would change the training; empty if it would not.
    """

    reduction: Reduction | None
    changes: str


def splitting_of(
    training: Training,
    looks: Sequence[Look],
    dims: SampleDims,
    *,
    seed: Callable[[], None],
    drawn: Sequence[Any] = (),
    larger: Callable[[], Look | None] = lambda: None,
) -> Splitting:
    """Compare one pass over a batch with passes over two chunks of it, for several batches if that is cheap.

    Parameters are not updated, and the model's state is restored. The result for the first batch is checked on a second
    one and on a chunk without targets, unless it is the training's default and passes are slow.

    Args:
        training: Plain training.
        looks: The batches, and where each is cut.
        dims: Where a batch has its samples.
        seed: Seeds all generators for a pass, and undoes what the previous one wrote to its batch.
        drawn: Batches of equal size, one of which may have a chunk without targets.
        larger: Makes a look at more samples, if possible: among few, perhaps no two share a class.

    Raises:
        WorkloadError: A batch cannot be cut.
        Exception: What the user's code raises, perhaps for a chunk alone.
    """
    with without_dropout(training.model):
        looking = _Looking(training, dims, seed)
        try:
            return looking.splitting(looks, drawn, larger)
        finally:
            looking.state.restore()
            training.model.zero_grad(set_to_none=True)


class _Tolerance(NamedTuple):
    """Largest relative errors; that of a loss in addition to the random error of its mean over the draws."""

    gradient: float
    loss: float


class _Looking:
    """Makes the passes, from the same state of the model each time."""

    def __init__(self, training: Training, dims: SampleDims, seed: Callable[[], None]) -> None:
        self._training = training
        self._dims = dims
        self._seed = seed
        self._draws = False
        self._shuffles = False
        self.state = self._state_now()

    def splitting(self, looks: Sequence[Look], drawn: Sequence[Any], larger: Callable[[], Look | None]) -> Splitting:
        begin, computed = time.perf_counter(), time.process_time()

        def is_quick() -> bool:
            # On a busy machine the clock says nothing.
            return min(time.perf_counter() - begin, time.process_time() - computed) < _QUICK_SECONDS

        looked = [self._look(looks[0])]
        quick, least = is_quick(), _tolerance(self._training)
        tolerance = _Tolerance(least, least)
        if quick or looked[0].error(looked[0].usual()) > least:
            looked += [self._look(look) for look in looks[1:2]]
        found = _found(looked, tolerance, self._candidates(looked))
        if found is None:
            looked, found, tolerance = self._looked_closer(looked, tolerance)
        for look in looks[2:]:  # what is unusual may be a coincidence
            if found is None or found[0] is None or not is_quick():
                break
            looked.append(self._look(look))
            tried = [found[0], *self._candidates(looked)]
            found = _found(looked, tolerance, tried)
        silent = not any(one.has_gradient for one in looked)
        if found is not None and (silent or is_quick()):
            more = self._looked_if_possible(larger)
            if more is not None:
                silent = silent and not more.has_gradient
                looked.append(more)
                before = [one for one in found if one is not None]
                found = _found(looked, tolerance, [*before, *self._candidates(looked)])
        if found is None:
            furthest = max(looked, key=lambda one: one.error(one.usual()))
            return Splitting(None, furthest.why_not(self._carried(looks[0].batch, looked[0].changed)))
        if silent:
            why = "none of the batches checked has a gradient, so nothing is known of their micro-batches"
            return Splitting(None, why)
        if self._shuffles:
            why = "its samples are shuffled in the loss or the model (torch.randperm): what is paired with what then "
            return Splitting(None, f"{why}depends on how many there are")
        if quick or found[0] is not None:
            found = self._with_empty_chunk(found, looked, looks[0], drawn, tolerance)
        if found[0] is not None and found[0].kind == "sum" and self._divides(looks[0].batch, larger):
            found = (msgspec.structs.replace(found[0], needs="one process"),)
        changed = self._carried(looks[0].batch, looked[0].changed)
        why = f"a forward pass changes {some_of(changed)}, once for each micro-batch" if changed else ""
        return Splitting(found[0], why)

    def _candidates(self, looked: Sequence[Looked]) -> Iterator[Reduction]:
        return candidates([one.batch for one in looked], self._dims)

    def _state_now(self) -> ModelState:
        groups = self._training.optimizer.param_groups
        return ModelState(self._training.model, [self._training.compute_loss], groups)

    def _passed(self, part: Any, seed: Callable[[], None] | None = None) -> Pass:
        """A pass from the first state of the model."""
        self.state.restore()
        return passed(self._training, part, seed or self._seed)

    def _look(self, look: Look) -> Looked:
        chunks = look.chunks(self._dims)
        whole = self._passed(look.batch)
        after_whole = self._state_now()
        self.state.restore()
        parts = [passed(self._training, chunk, self._seed) for chunk in chunks]
        changed = after_whole.difference(self._state_now())
        self.state.restore()
        gradients = np.stack([one.gradient for one in (*parts, whole)])
        products = gradients @ gradients.T
        found = Looked(self._training, look.batch, chunks, whole, parts, self._dims, products, changed)
        return self._drawn_again(found) if self._draws else found

    def _looked_if_possible(self, larger: Callable[[], Look | None]) -> Looked | None:
        try:
            look = larger()
            return None if look is None else self._look(look)
        except Exception:  # it may not fit, or there may be too little data
            return None

    def _looked_closer(
        self, looked: list[Looked], tolerance: _Tolerance
    ) -> tuple[list[Looked], tuple[Reduction | None] | None, _Tolerance]:
        """The loss may weight classes, be random, or lack precision: a pass with other random numbers tells."""
        batch = looked[0].batch
        with ClassWeights() as listening, _SeesShort() as short:
            again = self._passed(batch, lambda: _other_numbers(self._seed))
        self._shuffles = len(looked[0].chunks) > 1 and looked[0].samples in listening.shuffled
        chance = _BY_CHANCE * error_of(again.gradient, looked[0].whole.gradient)
        least = max(tolerance.loss, _TOLERANCE_OF_HALF if short.seen else 0.0)
        if chance > least:
            self._draws = True
            looked = [self._drawn_again(one) for one in looked]
        tolerance = _Tolerance(max(least, chance), least)
        heard = by_class([one.batch for one in looked], self._dims, listening.heard)
        tried = itertools.chain(self._candidates(looked), heard)
        return looked, _found(looked, tolerance, tried), tolerance

    def _with_empty_chunk(
        self,
        found: tuple[Reduction | None],
        looked: Sequence[Looked],
        look: Look,
        drawn: Sequence[Any],
        tolerance: _Tolerance,
    ) -> tuple[Reduction | None]:
        """The result adjusted for a chunk without targets, on which the other looks have no bearing."""
        usual = self._training.micro_batch_weights.usual_reduction(look.batch)
        reduction = usual if found[0] is None else found[0]
        if reduction is None or reduction.kind == "sum" or not reduction.targets:
            return found
        batches = [one.batch for one in looked] + list(drawn)
        new_values = self._training.device.type == "cpu"
        empty = emptied_look(batches, look.at, look.samples, self._dims, reduction, new_values=new_values)
        if empty is None:
            return found
        try:
            emptied = self._look(empty)
        except Exception:  # the loss rejects such a chunk, and training will report it
            return found
        if not math.isfinite(emptied.whole.loss) or emptied.adds_up(emptied.weights(reduction), *tolerance):
            return found
        tried = [reduction, *self._candidates(looked)]
        another = _found([*looked, emptied], tolerance, tried, usual=False)
        if another is not None:
            return another
        even = all(one.is_even(reduction) for one in looked)
        return (msgspec.structs.replace(reduction, needs="even targets" if even else "targets"),)

    def _drawn_again(self, looked: Looked) -> Looked:
        """Add the losses of further draws: chance may hide a factor in one gradient, but not in a mean of losses."""
        parts = [*looked.chunks, looked.batch]
        drawn = [[one.loss] for one in (*looked.parts, looked.whole)]
        begin = time.perf_counter()
        for draw in range(1, _MOST_DRAWS):
            if draw >= _FEWEST_DRAWS and time.perf_counter() - begin > _DRAW_SECONDS:
                break
            for part, losses in zip(parts, drawn, strict=True):
                losses.append(self._passed(part, functools.partial(_other_numbers, self._seed, draw)).loss)
        return looked._replace(drawn=drawn)

    def _divides(self, batch: Any, larger: Callable[[], Look | None]) -> bool:
        """Whether the loss is divided by a number in the batch that differs for a larger batch."""
        whole = self._passed(batch).loss
        for leaf in leaves_of(batch):
            if not is_number(leaf.value) or not leaf.value:
                continue
            try:
                loss = self._passed(with_leaf(batch, leaf.path, 2 * leaf.value)).loss
            except Exception:  # a number of another kind, such as one that is a shape
                continue
            if math.isclose(2 * loss, whole, rel_tol=1e-3):
                other = larger()
                values = [] if other is None else [one.value for one in leaves_of(other.batch) if one.path == leaf.path]
                return not any(is_number(value) and float(value) == float(leaf.value) for value in values)
        return False

    def _carried(self, batch: Any, changed: list[str]) -> list[str]:
        """State that a pass computes from its earlier value; values that are only stored do not count."""
        if not changed:
            return []
        self._passed(batch)
        once = self._state_now()
        passed(self._training, batch, self._seed)
        twice = set(once.difference(self._state_now()))
        return [name for name in changed if name in twice]


def _found(
    looked: Sequence[Looked], tolerance: _Tolerance, tried: Iterable[Reduction], *, usual: bool = True
) -> tuple[Reduction | None] | None:
    """The first reduction tried with which the chunks of every batch add up to it.

    No reduction if the training's default works, which is tried before if ``usual``.
    """
    if usual and all(one.adds_up(one.usual(), *tolerance) for one in looked):
        return (None,)
    for reduction in itertools.chain.from_iterable(_variants(one, looked) for one in tried):
        if all(one.adds_up(one.weights(reduction), *tolerance) for one in looked):
            return (reduction,)
    return None


def _variants(reduction: Reduction, looked: Sequence[Looked]) -> Iterator[Reduction]:
    """A reduction, and its variant in which a chunk without targets counts as having one."""
    if reduction.kind == "sum" or not reduction.targets:
        yield reduction
        return
    counts = [one.counts(reduction) for one in looked]
    if any(map(all, counts)):  # where one chunk alone has targets, whatever looks at samples together may add up
        yield reduction
        if not all(map(all, counts)):
            yield msgspec.structs.replace(reduction, at_least=1.0)


class _SeesShort(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Detects computation in 16 bits, such as under the user's own autocast."""

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
    np.random.rand(count)
    for _ in range(count):
        random.random()


def _tolerance(training: Training) -> float:
    short = any(parameter.dtype in (torch.float16, torch.bfloat16) for parameter in training.model.parameters())
    if short:
        return _TOLERANCE_OF_HALF
    return _TOLERANCE if training.device.type == "cpu" else _TOLERANCE_OF_TF32
