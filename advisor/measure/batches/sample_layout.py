"""Find where a workload's batches hold their samples, by asking it for batches of several sizes.

A dimension holds the samples if its size is what was asked for, whatever was asked for. Dimension 0 is no more than the
usual place: sequences may come time first, and a loader of a fixed batch has the samples nowhere.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
import torch

from advisor.errors import WorkloadError
from advisor.measure.batches.batches import make_one
from advisor.measure.batches.fitting_sizes import FittingSizes, fitting_sizes
from advisor.measure.batches.parts import Part, Parts, parts_of
from advisor.measure.memory.storages import tensors_in
from advisor.training.batch.tree import assumed_dims, leaves_of
from advisor.workload.batch_layout import UNCUT, BatchLayout, SampleDims

__all__ = ["find_layout", "samples_in"]

_SIZES = (2, 3, 5, 4, 8, 6, 16)
"""What is asked for, until three are there: two may agree with a length by chance, and some make no odd batch."""

_USUAL_BATCH = 32
"""One that works, it is assumed, where the user states none and two samples cannot be made."""

_UNCUT_KINDS = {
    "object": "an object of a class that cannot be cut",
    "packed": "a packed sequence cannot be cut; return the padded tensor with its lengths, and pack it in the model",
}
"""Why what is of these kinds cannot be cut."""

_GROWTH = 4
_LARGEST = 65536
_ENOUGH_SECONDS = 0.1
_ENOUGH_BYTES = 64 * 2**20
"""Larger batches are asked for while they cost no more than this. A data set that ends is seen then, or when a trial
asks for more than it has."""


def find_layout(
    make_batch: Callable[[int], Any],
    *,
    seed: int = 0,
    own_batch: int | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> BatchLayout:
    """Ask for batches of several sizes and see what grows with them.

    The user's own batch size is asked for as well, whatever it costs.

    Raises:
        WorkloadError: Nothing in a batch has as many entries as samples were asked for.
        Exception: Whatever the user's function raises.
    """
    batches, fitting = _three(make_batch, seed, own_batch or _USUAL_BATCH)
    made = {size: parts_of(batch) for size, batch in batches.items()}
    *smaller, largest = made
    for last in range(largest, smaller[-1] - 1, -1):  # a data set may end before the last size
        layout = _layout(list(made.values()), (*smaller, last))
        if layout is None:
            continue
        if fitting is not None:
            layout = msgspec.structs.replace(layout, least_samples=fitting.least, multiple=fitting.multiple)
        most = last if last < largest else _most_samples(make_batch, layout, seed, largest, own_batch, clock)
        # What all samples share is taken for theirs where it happens to be as long as the batch.
        shared = any(dim is None and made[largest][path].sizes for path, dim in layout.dims.items())
        # Nor can anybody count the samples of a batch without a tensor who is not told.
        countable = any(one.value.dim() for one in leaves_of(batches[largest]) if isinstance(one.value, torch.Tensor))
        usual = not shared and countable and _cut(assumed_dims(batches[largest], last)) == _cut(layout.dims)
        return msgspec.structs.replace(layout, most_samples=most, is_usual=usual)
    raise WorkloadError(_nothing_grows(made))


def samples_in(batch: Any, layout: BatchLayout) -> int | None:
    """How many samples a batch has; ``None`` where it is not made as the layout says."""
    parts = parts_of(batch)
    counted = parts.get(layout.counted_by)
    if counted is None or len(counted.sizes) <= layout.counted_dim:
        return None
    samples, rest = divmod(counted.sizes[layout.counted_dim] - layout.extra, layout.per_sample)
    agree = all(
        path in parts and len(parts[path].sizes) > dim and parts[path].sizes[dim] == samples
        for path, dim in layout.dims.items()
        if isinstance(dim, int)
    )
    return samples if agree and not rest else None


def _cut(dims: SampleDims) -> SampleDims:
    return {path: dim for path, dim in dims.items() if isinstance(dim, int)}


def _three(make_batch: Callable[[int], Any], seed: int, own_batch: int) -> tuple[dict[int, Any], FittingSizes | None]:
    """Batches of three sizes, growing, and the sizes that can be made, if some cannot.

    Raises:
        Exception: What the user's function raised first, where fewer went well.
    """
    made: dict[int, Any] = {}
    errors: list[Exception] = []

    def makes(size: int) -> bool:
        try:
            made[size] = make_one(make_batch, size, seed)
        except Exception as error:  # an odd number of samples may be none for which it was written
            errors.append(error)
        return size in made

    for size in _SIZES:
        makes(size)
        if len(made) == 3:
            break
    fitting = fitting_sizes(makes, own_batch) if errors else None
    if fitting == FittingSizes(_SIZES[0], 1):  # it is others that fail: the data ends there
        fitting = None
    while fitting is not None:
        sizes = [fitting.least + number * fitting.multiple for number in range(3)]
        if all(size in made or makes(size) for size in sizes):
            return {size: made[size] for size in sizes}, fitting
        fitting = fitting_sizes(makes, own_batch, above=fitting.least)
    if len(made) < 3:
        raise errors[0]
    return dict(sorted(made.items())[:3]), None


def _most_samples(
    make_batch: Callable[[int], Any],
    layout: BatchLayout,
    seed: int,
    size: int,
    own_batch: int | None,
    clock: Callable[[], float],
) -> int | None:
    """The most that it returns, if it is seen to return fewer than it is asked for while batches are cheap."""

    def asked(size: int) -> tuple[int | None, bool]:
        """The samples that came where they were fewer, and whether still more are worth asking for."""
        begin = clock()
        batch = make_one(make_batch, size, seed)
        seconds = clock() - begin
        found = samples_in(batch, layout)
        held = sum(tensor.nbytes for tensor in tensors_in(batch))
        cheap = _GROWTH * seconds <= _ENOUGH_SECONDS and held <= _ENOUGH_BYTES
        return (found if found is not None and found < size else None), cheap

    go_on = True
    if own_batch is not None and own_batch > size:
        fewer, go_on = asked(own_batch)
        if fewer is not None:
            return fewer
        size = own_batch
    while go_on and _GROWTH * size <= _LARGEST:
        try:
            fewer, go_on = asked(_GROWTH * size)
        except Exception:  # "larger than the population": the data ends in between
            return _last_that_works(make_batch, size, _GROWTH * size, seed, layout.multiple)
        if fewer is not None:
            return fewer
        size *= _GROWTH
    return None


def _last_that_works(make_batch: Callable[[int], Any], works: int, fails: int, seed: int, multiple: int) -> int:
    """The largest size below one that ``make_batch`` raises for, by bisection."""
    while (steps := (fails - works) // multiple) > 1:
        middle = works + steps // 2 * multiple
        try:
            make_one(make_batch, middle, seed)
            works = middle
        except Exception:
            fails = middle
    return works


# ---- from sizes to a layout -----------------------------------------------------------------------------------------


def _layout(batches: Sequence[Parts], counts: Sequence[int]) -> BatchLayout | None:
    """The layout of batches that have so many samples; ``None`` if nothing in them has."""
    dims: SampleDims = {}
    reasons: dict[str, str] = {}
    paths = list(dict.fromkeys(path for batch in batches for path in batch))
    columns = {path: _columns([batch.get(path) for batch in batches]) for path in paths}
    kinds = {path: next(batch[path].kind for batch in batches if path in batch) for path in paths}
    lists = [path for path in paths if kinds[path] in ("list", "words") and columns[path] == [tuple(counts)]]
    lengths = _lengths(columns, counts)
    for path in paths:
        kind = kinds[path]
        inside_list = any(path != one and path.startswith(f"{one}." if one else "") for one in lists)
        if inside_list or kind == "inside" or (kind == "list" and path not in lists):
            continue
        if kind == "words" and path not in lists:
            dims[path] = None
            continue
        known = _UNCUT_KINDS.get(kind)
        dims[path], reason = (UNCUT, known) if known else _dim(columns[path], counts, lengths)
        if reason:
            reasons[path] = reason
    layout = BatchLayout(dims=dims, counted_by="", counted_dim=0, uncut_because=reasons)
    cut = [(dim, number, path) for number, (path, dim) in enumerate(dims.items()) if isinstance(dim, int)]
    if cut:
        dim, _, path = min(cut)
        return msgspec.structs.replace(layout, counted_by=path, counted_dim=dim)
    for path, found in columns.items():
        for dim, sizes in enumerate(found or ()):
            if (line := _line(sizes, counts)) is not None:
                per_sample, extra = line
                return msgspec.structs.replace(
                    layout, counted_by=path, counted_dim=dim, per_sample=per_sample, extra=extra
                )
    return None


def _columns(parts: Sequence[Part | None]) -> list[tuple[int, ...]] | None:
    """Dimension by dimension the sizes batch by batch; ``None`` if a part is not always there, or of another rank."""
    there = [part.sizes for part in parts if part is not None]
    if len(there) < len(parts) or len({len(sizes) for sizes in there}) > 1:
        return None
    return list(zip(*there, strict=True))


def _dim(
    columns: list[tuple[int, ...]] | None, counts: Sequence[int], lengths: set[tuple[int, ...]]
) -> tuple[Any, str]:
    """The dimension of one leaf's samples, and why it cannot be cut, if so."""
    if columns is None:
        return UNCUT, "it is not in every batch, or not always of as many dimensions"
    own = [dim for dim, sizes in enumerate(columns) if sizes == tuple(counts)]
    if len(own) == 1:
        return own[0], ""
    if own:
        return UNCUT, f"as many entries as samples in each of dimensions {' and '.join(map(str, own))}"
    for dim, sizes in enumerate(columns):
        line = _line(sizes, counts)
        if line is not None:
            return UNCUT, f"{_line_words(*line)} in dimension {dim}"
    if all(len(set(sizes)) == 1 or sizes in lengths for sizes in columns):
        return None, ""
    return UNCUT, "its size differs from batch to batch, but not with the number of samples"


def _line(sizes: Sequence[int], counts: Sequence[int]) -> tuple[int, int] | None:
    """Entries for each sample, and those beyond, if sizes grow in that way."""
    if len(set(counts)) < len(counts):
        return None  # two points are always on a line
    per_sample, rest = divmod(sizes[1] - sizes[0], counts[1] - counts[0])
    extra = sizes[0] - per_sample * counts[0]
    fits = all(size == per_sample * count + extra for size, count in zip(sizes, counts, strict=True))
    return (per_sample, extra) if fits and not rest and per_sample >= 1 else None


def _line_words(per_sample: int, extra: int) -> str:
    samples = "as many entries as samples" if per_sample == 1 else f"{per_sample} entries for each sample"
    return f"{samples}, {'and' if extra > 0 else 'less'} {abs(extra)}," if extra else samples


def _lengths(columns: Mapping[str, list[tuple[int, ...]] | None], counts: Sequence[int]) -> set[tuple[int, ...]]:
    """Sizes of the other dimensions of what holds samples: the lengths of a batch, which what is shared may have."""
    own = tuple(counts)
    return {sizes for found in columns.values() if found and own in found for sizes in found if sizes != own}


# ---- words --------------------------------------------------------------------------------------------------------


def _nothing_grows(made: Mapping[int, Parts]) -> str:
    """What to say, and write, where no batch has as many samples as were asked for."""
    asked = ", ".join(map(str, list(made)[:-1])) + f" and {list(made)[-1]}"
    found = {size: _words(parts) for size, parts in made.items()}
    if len(set(found.values())) == 1:
        returned = f"each time it returned {next(iter(found.values()))}"
    else:
        returned = "; ".join(f"for {size} it returned {words}" for size, words in found.items())
    return (
        f"make_batch(batch_size) must return batch_size samples, but asked for {asked}, {returned}. Cut or gather what "
        "you have:\n"
        "    def make_batch(batch_size):\n"
        "        inputs, targets = ...  # as now\n"
        "        return inputs[:batch_size], targets[:batch_size]\n"
        "or make the loader there:\n"
        "    def make_batch(batch_size):\n"
        "        return next(iter(DataLoader(dataset, batch_size=batch_size, shuffle=True)))"
    )


def _words(parts: Parts) -> str:
    shown = [
        f"{path or 'a tensor'} of {'x'.join(map(str, part.sizes)) or '1'}"
        for path, part in parts.items()
        if part.kind in ("array", "inside")
    ]
    return ", ".join(shown[:4]) + (" ..." if len(shown) > 4 else "") if shown else "no tensor"
