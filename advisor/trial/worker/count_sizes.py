"""Count how many parameters the model has at every size, found without giving them memory."""

from __future__ import annotations

from collections.abc import Callable

import psutil
import torch

from advisor.errors import DeviceOutOfMemoryError, WorkloadError
from advisor.measure.batches.batches import make_batches, seed_everything
from advisor.measure.memory.live_storage import LiveStorages
from advisor.measure.memory.storages import HostData
from advisor.training.batch.tree import leaves_of
from advisor.training.structure import parameter_count
from advisor.trial.outcome import Outcome
from advisor.trial.result import CountResult
from advisor.trial.spec import CountTrial
from advisor.trial.worker.bench import Bench
from advisor.workload.missing_sizes import missing_sizes_message
from advisor.workload.sizes import CountedSize, SizeCounts, accepted, check_taken, own_size, sizes_of

__all__ = ["count_sizes"]

_HOST_SHARE = 0.5
"""Share of free host memory that a model may take which can only be counted by building it for real."""

_Size = dict[str, int | float]


def count_sizes(bench: Bench[CountTrial]) -> CountResult:
    """Run the trial.

    Raises:
        WorkloadError: There are no sizes, an argument that no function takes, too many, or none that can be built.
    """
    workload = bench.workload
    if not workload.sizes:
        raise WorkloadError(missing_sizes_message(bench.spec.workload))
    check_taken(workload.sizes, workload.build_model, workload.make_batch)
    own = own_size(workload.sizes, workload.build_model, workload.make_batch)
    known: dict[str, CountedSize] = {}

    def counted(size: _Size) -> CountedSize:
        arguments = accepted(workload.build_model, size)
        key = repr(arguments)  # sizes of the batch alone build the same model
        if key not in known:
            bench.tell(f"counting parameters, size {len(known) + 1}")
            seed_everything(bench.spec.seed)
            known[key] = _counted(workload.build_model, arguments)
        return CountedSize(size=size, parameter_count=known[key].parameter_count, error=known[key].error)

    counts = SizeCounts(own=counted(own), listed=tuple(counted(size) for size in sizes_of(workload.sizes)))
    _check_that_sizes_differ(counts, bench)
    if all(one.parameter_count is None for one in (counts.own, *counts.listed)):
        raise WorkloadError(
            f"build_model must build at one of its SIZES at least, but all failed. The first: {counts.own.error}"
        )
    return bench.spec.ended(Outcome.OK, counts=counts)


def _check_that_sizes_differ(counts: SizeCounts, bench: Bench[CountTrial]) -> None:
    """Refuse sizes of which none is larger than another."""
    known = {one.parameter_count for one in counts.listed}
    if len(counts.listed) < 2 or len(known) > 1 or None in known:
        return
    make_batch = bench.workload.make_batch
    shapes = set()
    for size in (counts.listed[0].size, counts.listed[-1].size):
        try:
            (batch,) = make_batches(make_batch, 2, 1, bench.spec.seed, accepted(make_batch, size))
        except Exception:  # a size that the user's code refuses is another one
            return
        shapes.add(tuple((leaf.path, leaf.shape) for leaf in leaves_of(batch)))
    if len(shapes) == 1:
        names = " and ".join(bench.workload.sizes)
        raise WorkloadError(
            f"SIZES must change the model or its batches, but at all {len(counts.listed)} sizes of {names} the model "
            f"has {known.pop():,} parameters and a batch the same shapes. Use {names} where they are made."
        )


def _counted(build_model: Callable[..., torch.nn.Module], arguments: _Size) -> CountedSize:
    """Count on the meta device, where nothing takes memory; a model that cannot be built there is built for real."""
    try:
        with torch.device("meta"):
            return CountedSize(size=arguments, parameter_count=parameter_count(build_model(**arguments)))
    except Exception:  # code that reads values (``.item()``, numpy) fails without any: then only building helps
        return _built_for_real(build_model, arguments)


def _built_for_real(build_model: Callable[..., torch.nn.Module], arguments: _Size) -> CountedSize:
    limit = int(_HOST_SHARE * psutil.virtual_memory().available)
    try:
        with LiveStorages(torch.device("cpu"), HostData(), limit):
            return CountedSize(size=arguments, parameter_count=parameter_count(build_model(**arguments)))
    except (DeviceOutOfMemoryError, MemoryError) as error:
        reason = f"it can only be counted by building it, and host memory is too small: {error}"
        return CountedSize(size=arguments, parameter_count=None, error=reason)
    except Exception as error:  # one size that the user's code refuses is no reason to give up the others
        summary = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        return CountedSize(size=arguments, parameter_count=None, error=summary)
