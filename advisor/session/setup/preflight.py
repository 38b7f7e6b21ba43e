"""Mistakes that can be seen by reading: they come before a folder is made and before anything of the user's runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from advisor.errors import OptionError, SearchSpaceError
from advisor.goal import GoalKind
from advisor.search.sizing.batching import dividing_gpu_counts
from advisor.search.space.space_file import SearchSpace
from advisor.session.request import TuneRequest
from advisor.session.setup.device_counts import NO_GLOBAL_BATCH, WAYS, may_cut, nothing_distributes
from advisor.workload.outline import read_outline
from advisor.workload.workload import WorkloadKind, WorkloadSource

__all__ = ["check_preflight"]


def check_preflight(request: TuneRequest, space: SearchSpace, gpu_counts: Sequence[int]) -> None:
    """Check what batch and devices need of the file and of the space, as far as reading tells.

    The rest is checked where the workload is known (:mod:`advisor.session.setup.device_counts`).

    Args:
        request: What is asked for.
        space: The search space.
        gpu_counts: Numbers of devices that may train together, ascending.

    Raises:
        OptionError: ``cheapest`` without a global batch, or one that cannot be split over any number of devices.
        SearchSpaceError: Several devices were asked for, and the space has no method for them.
    """
    if request.global_batch is not None and not may_cut(space):
        gpu_counts = dividing_gpu_counts(request.global_batch, gpu_counts)
    if request.global_batch is None and request.goal is GoalKind.CHEAPEST and _states_no_batch(request.source):
        raise OptionError(NO_GLOBAL_BATCH)
    several = [count for count in gpu_counts if count > 1]
    if several and request.asks_for_several and not set(WAYS) & set(space.methods):
        raise SearchSpaceError(nothing_distributes(several[0], f": {space.name} lists none of them"))


def _states_no_batch(source: WorkloadSource) -> bool:
    """Whether there surely is no ``BATCH_SIZE``: a star import may bind it, functions may come from anywhere."""
    if source.kind is not WorkloadKind.FILE:
        return source.kind is WorkloadKind.HUGGING_FACE
    outline = read_outline(Path(source.location))
    return "BATCH_SIZE" not in outline.names and not outline.star_import
