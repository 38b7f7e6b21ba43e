"""Choose batches to compare whole and in chunks: those whose chunks differ most in their shares of the targets.

With equally many targets per sample, means over targets and over samples cannot be distinguished; and only a chunk
without targets shows how the loss treats one.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from advisor.measure.batches.loss_reductions import candidates, targets_in
from advisor.training.batch.targets import count_targets
from advisor.training.batch.tree import cut, with_leaf
from advisor.workload.batch_layout import SampleDims
from advisor.workload.reduction import THE_BATCH, Reduction

__all__ = ["Look", "emptied_look", "uneven_looks"]

_ENOUGH_SECONDS = 0.1
"""Time for searching batches."""
_MOST_LOOKS = 4


class Look(NamedTuple):
    """A batch on the host, and where to cut it.

    Attributes:
        batch: The batch.
        at: Samples in the first of the two chunks.
        samples: Samples in the batch.
    """

    batch: Any
    at: int
    samples: int

    def chunks(self, dims: SampleDims) -> list[Any]:
        """The two chunks."""
        return cut(self.batch, (0, self.at, self.samples), dims)


def uneven_looks(
    batches: Sequence[Any],
    at: int,
    samples: int,
    dims: SampleDims,
    *,
    clock: Callable[[], float] = time.perf_counter,
) -> list[Look]:
    """Looks at some of two batches or more, first at those whose chunks differ most in their shares of targets.

    They are cut alternately after the first ``at`` samples and before the last ``at``.
    """
    counted = [one for one in candidates(batches, dims) if one.targets]
    scores: dict[tuple[int, int], float] = {}
    end = clock() + _ENOUGH_SECONDS
    places = list(dict.fromkeys((at, samples - at)))
    for number, batch in enumerate(batches):
        for place in places:
            late = number > 1 and clock() > end
            scores[number, place] = 0.0 if late else _unevenness(Look(batch, place, samples), dims, counted)
    left, chosen = list(range(len(batches))), []
    for place in itertools.islice(itertools.cycle(places), min(_MOST_LOOKS, len(batches))):
        best = max(left, key=lambda number: scores[number, place])
        left.remove(best)
        chosen.append(Look(batches[best], place, samples))
    return chosen


def emptied_look(
    batches: Sequence[Any], at: int, samples: int, dims: SampleDims, reduction: Reduction, *, new_values: bool
) -> Look | None:
    """A look at a batch whose second chunk has no targets: a drawn one, or else one whose targets are overwritten.

    ``new_values`` says whether they may be overwritten with an ignored value that occurs in no batch.
    """
    looks = [Look(batch, at, samples) for batch in batches]
    emptied = (_emptied(look, dims, reduction, new_values=new_values) for look in looks)
    drawn = (look for look in looks if _is_emptied(look, dims, reduction))
    return next(itertools.chain(drawn, filter(None, emptied)), None)


def _is_emptied(look: Look, dims: SampleDims, reduction: Reduction) -> bool:
    first, second = (count_targets(chunk, reduction, dims) for chunk in look.chunks(dims))
    return bool(first and not second)


def _unevenness(look: Look, dims: SampleDims, counted: Sequence[Reduction]) -> float:
    """Largest difference between shares of targets and of samples, over all possible targets; 0 if a chunk has none."""
    chunks = look.chunks(dims)
    far = 0.0
    for reduction in counted:
        first, second = (count_targets(chunk, reduction, dims) for chunk in chunks)
        if first > 0 and second > 0:
            far += abs(first / (first + second) - look.at / look.samples)
    return far


def _emptied(look: Look, dims: SampleDims, reduction: Reduction, *, new_values: bool) -> Look | None:
    """The look with no targets in its second chunk."""
    path = "" if reduction.targets == THE_BATCH else reduction.targets
    targets, dim = targets_in(look.batch, path), dims.get(path)
    if targets is None or not isinstance(dim, int) or reduction.counted == "rows":
        return None
    none = 0 if reduction.counted == "values" else reduction.ignore_index
    if not new_values and not bool((targets == none).any()):
        return None  # on a GPU an index out of range kills the process
    changed = targets.clone()
    changed.narrow(dim, look.at, look.samples - look.at).fill_(none)
    made = look._replace(batch=with_leaf(look.batch, path, changed))
    return made if _is_emptied(made, dims, reduction) else None
