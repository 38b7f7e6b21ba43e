"""Batches of equally many samples that differ in size: many are drawn; the largest tells memory, typical ones time.

Where batches are padded to their longest sample, or samples are documents, images or graphs of any size, two batches
that happen to be small say nothing about what fits.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from advisor.measure.batches.batches import make_one
from advisor.measure.batches.parts import Parts, numbers_in, parts_of
from advisor.measure.memory.storages import tensors_in
from advisor.workload.batch_layout import BatchSizes, SampleDims

__all__ = ["Drawn", "draw_batches", "find_sizes"]

_MOST_BATCHES = 256
"""One batch in a hundred is among them with a probability of 92 %."""
_FEWEST_BATCHES = 4
"""At any number of samples, where batches are known to differ."""
_ENOUGH_SECONDS = 0.5
"""Batches are drawn while that takes no longer: once to find out, and for every number of samples at most."""
_REMEMBERED = 4
"""Draws of the largest batches, which are drawn again at other numbers of samples."""
_HELD_BYTES = 256 * 2**20
"""Of the batches among which the typical ones are chosen; larger ones are seen, and dropped again."""


class Drawn(NamedTuple):
    """Batches of one number of samples.

    Attributes:
        typical: The nearest to the average size.
        largest: The largest that was seen.
    """

    typical: list[Any]
    largest: Any


def find_sizes(
    make_batch: Callable[[int], Any],
    samples: int,
    dims: SampleDims,
    *,
    seed: int = 0,
    clock: Callable[[], float] = time.perf_counter,
) -> BatchSizes | None:
    """Draw many batches, and see whether they differ in size; ``None`` if all are of one size.

    What the user's function raises ends the drawing.
    """
    begin = clock()
    drawn: list[Parts] = []
    while len(drawn) < _MOST_BATCHES and (len(drawn) < 2 or clock() - begin < _ENOUGH_SECONDS):
        try:
            drawn.append(parts_of(make_one(make_batch, samples, seed, len(drawn))))
        except Exception:  # the data may end here
            break
    numbers = [numbers_in(parts) for parts in drawn]
    if len(set(numbers)) < 2:
        return None
    path, dim, entries = _most_different(drawn, dims) or ("", None, numbers)
    in_order = sorted(range(len(drawn)), key=lambda number: -numbers[number])
    return BatchSizes(
        samples=samples,
        batches=len(drawn),
        path=path,
        dim=dim,
        smallest=min(entries),
        mean=sum(entries) / len(entries),
        largest=max(entries),
        largest_draws=tuple(in_order[:_REMEMBERED]),
    )


def draw_batches(make_batch: Callable[[int], Any], samples: int, sizes: BatchSizes, count: int, seed: int) -> Drawn:
    """Draw about as many samples in all as were looked at before; keep ``count`` typical batches.

    The draws are the same in every trial: policies are compared on the same batches.

    Raises:
        Exception: What the user's function raises, unless enough batches are there.
    """
    draws = max(_FEWEST_BATCHES, count, min(sizes.batches, sizes.batches * sizes.samples // samples))
    held: list[tuple[int, Any]] = []
    held_bytes = total = most = 0
    largest: Any = None
    # Draws that were large before count for the largest alone: among typical ones they would shift the average.
    ahead = [number for number in sizes.largest_draws if number >= draws]
    made = 0
    for number in [*range(draws), *ahead]:
        try:
            batch = make_one(make_batch, samples, seed, number)
        except Exception:
            if made < count:
                raise
            break  # the data may end here
        numbers = numbers_in(parts_of(batch))
        if numbers > most:
            most, largest = numbers, batch
        if number >= draws:
            continue
        made += 1
        total += numbers
        batch_bytes = sum(tensor.nbytes for tensor in tensors_in(batch))
        if len(held) < count or held_bytes + batch_bytes <= _HELD_BYTES:
            held.append((numbers, batch))
            held_bytes += batch_bytes
    mean = total / made
    held.sort(key=lambda one: abs(one[0] - mean))
    return Drawn([batch for _, batch in held[:count]], largest)


def _most_different(drawn: Sequence[Parts], dims: SampleDims) -> tuple[str, int, list[int]] | None:
    """The dimension that differs most, by its largest against its smallest size, and its size batch by batch."""
    found: list[tuple[str, int, list[int]]] = []
    for path, part in drawn[0].items():
        # Entries of a list, and what is in an object, are no part that a user would know by its path.
        if path not in dims or part.kind != "array":
            continue
        shapes = [parts[path].sizes for parts in drawn if path in parts and len(parts[path].sizes) == len(part.sizes)]
        if len(shapes) == len(drawn):
            columns = enumerate(map(list, zip(*shapes, strict=True)))
            found += [(path, dim, sizes) for dim, sizes in columns if dim != dims[path] and min(sizes) < max(sizes)]
    return max(found, key=lambda one: max(one[2]) / max(1, min(one[2])), default=None)
