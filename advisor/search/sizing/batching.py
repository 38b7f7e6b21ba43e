"""Choose the batch of a trial from the largest feasible micro-batch and a fraction of it."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from advisor.errors import OptionError
from advisor.hardware.mesh import DATA_ONLY, Mesh, MeshAxis
from advisor.search.sizing.memory_model import round_batch
from advisor.text.units import format_bytes
from advisor.workload.batch_layout import ANY_SIZE, BatchLayout

__all__ = [
    "AFTER_FLUSHES",
    "AFTER_OUT_OF_MEMORY",
    "Batch",
    "choose_batch",
    "dividing_gpu_counts",
    "does_not_fit",
    "pipeline_passes",
]

AFTER_OUT_OF_MEMORY = (0.85, 0.5)
"""Shares of a batch to try after it did not fit: predictions are usually off by a few percent, but not always."""

AFTER_FLUSHES = 0.92
"""Share of a batch to try as well when memory was so full that the allocator flushed its cache."""

_MICRO_BATCHES_OF_A_STAGE = 4
"""At 4 stages, these leave devices without work for 16 % of the time."""

_FEWEST_OF_A_STAGE = 2
"""Where more would only make them smaller, these are enough for every schedule: 27 % of the time at 4 stages."""


class Batch(msgspec.Struct, frozen=True):
    """Samples per forward pass, and passes per optimizer step, of each share of the data.

    Attributes:
        micro_batch: Samples per forward pass.
        accumulation_steps: Forward-backward passes per optimizer step.
    """

    micro_batch: int
    accumulation_steps: int = 1


def choose_batch(
    *,
    largest: int,
    fraction: float,
    global_batch: int | None = None,
    gpu_count: int = 1,
    mesh: Mesh = DATA_ONLY,
    layout: BatchLayout = ANY_SIZE,
) -> Batch | None:
    """Choose the batch of a trial; ``None`` if not even the smallest fits.

    Args:
        largest: The largest micro-batch that fits; 0 if none does.
        fraction: Share of it to use, above 0 and up to 1.
        global_batch: Samples per optimizer step over all devices if they are fixed: the micro-batch is then the
            largest divisor of a share that is at most ``fraction * largest``, and accumulation makes up the rest, so
            that micro-batch x accumulation steps x shares is the global batch exactly.
        gpu_count: Devices that train together. Their shares must divide the global batch.
        mesh: How they divide the model: those that hold one together have one share. The micro-batches of a pipeline
            are several (:func:`pipeline_passes`); of a fixed global batch twice its stages or more, if it has so many.
        layout: How many samples a micro-batch may have.

    Example:
        >>> choose_batch(largest=40, fraction=0.5)
        Batch(micro_batch=20, accumulation_steps=1)
        >>> choose_batch(largest=10, fraction=1.0, global_batch=24)
        Batch(micro_batch=8, accumulation_steps=3)
        >>> choose_batch(largest=10, fraction=1.0, global_batch=24, gpu_count=2)
        Batch(micro_batch=6, accumulation_steps=2)
    """
    assert 0 < fraction <= 1, f"0 < fraction <= 1 must hold, got {fraction}"
    if largest < layout.least_samples:
        return None
    wanted = max(layout.least_samples, math.floor(fraction * largest + 1e-9))
    if global_batch is None:
        return Batch(round_batch(wanted, layout), pipeline_passes(mesh))
    shares = mesh.degree(MeshAxis.DATA, gpu_count)
    share, rest = divmod(global_batch, shares)
    assert rest == 0, f"{shares} shares do not divide a global batch of {global_batch}"
    fitting = [
        size
        for size in range(min(largest, share // mesh.pipeline), 0, -1)
        if share % size == 0 and layout.fitted(size) == size
    ]
    sizes = [size for size in fitting if size <= wanted] or fitting[-1:]
    if not sizes:
        return None
    micro_batch = sizes[0] if mesh.pipeline == 1 else _largest_for_stages(sizes, share, mesh.pipeline)
    return Batch(micro_batch, share // micro_batch)


def _largest_for_stages(sizes: Sequence[int], share: int, stages: int) -> int:
    """The largest micro-batch of which a pipeline gets enough: a multiple of its stages, if there is any."""
    enough = _FEWEST_OF_A_STAGE * stages
    for least, multiple in ((enough, stages), (enough, 1), (stages, 1)):
        for size in sizes:
            if share // size >= least and share // size % multiple == 0:
                return size
    raise AssertionError(f"{stages} stages cannot work on {share} samples: such a mesh is not feasible")


def pipeline_passes(mesh: Mesh, share: int | None = None) -> int:
    """Micro-batches of a step that profiling runs make, and of every trial whose global batch is free.

    Stages wait for each other at the beginning and the end of a step: of p stages and m micro-batches
    (p - 1) / (m + p - 1) of the time, with the simplest schedules.

    Args:
        mesh: The mesh; 1 if it has no pipeline.
        share: Samples of a share of the global batch, if it is fixed: two micro-batches for each stage are made of
            them, as nearly as :func:`choose_batch` can, so that each is as large as possible.

    Example:
        >>> pipeline_passes(Mesh(pipeline=2)), pipeline_passes(Mesh(pipeline=2), share=6), pipeline_passes(Mesh())
        (8, 4, 1)
    """
    stages = mesh.pipeline
    if stages == 1:
        return 1
    if share is None:
        return _MICRO_BATCHES_OF_A_STAGE * stages
    return max(stages, min(_FEWEST_OF_A_STAGE * stages, share // stages * stages))


def dividing_gpu_counts(
    global_batch: int, gpu_counts: Sequence[int], *, name: str = "--global-batch"
) -> tuple[int, ...]:
    """The numbers of devices among which a global batch can be split evenly.

    Raises:
        OptionError: None of them divides it.
    """
    counts = tuple(count for count in gpu_counts if global_batch % count == 0)
    if not counts:
        allowed = " or ".join(f"{count:,}" for count in gpu_counts)
        below = max(count * (global_batch // count) for count in gpu_counts)
        above = min(count * -(-global_batch // count) for count in gpu_counts)
        nearest = " or ".join(str(batch) for batch in sorted({below, above}) if batch > 0)
        raise OptionError(
            f"{name} must be a multiple of the number of devices ({allowed}), but got {global_batch}. "
            f"The nearest that work: {nearest}; or ask for other --gpus."
        )
    return counts


def does_not_fit(*, need_bytes: int | None, limit_bytes: int, micro_batch: int = 1) -> str:
    """Why a combination was screened, in one line."""
    samples = "one sample" if micro_batch == 1 else f"a micro-batch of {micro_batch}"
    if need_bytes is None:
        return f"{samples} does not fit below {format_bytes(limit_bytes)}"
    return f"{samples} is predicted to need {format_bytes(need_bytes)}; the limit is {format_bytes(limit_bytes)}"
