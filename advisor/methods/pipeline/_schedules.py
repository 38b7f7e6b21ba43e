"""torch's schedules, by our names."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining import schedules as of_torch
from torch.distributed.pipelining._utils import InferenceMode

from advisor.methods.pipeline.schedule_rules import stages_per_rank, why_not
from advisor.replaced import replaced

__all__ = ["Schedule", "holding_what_is_sent", "schedule_of"]

Schedule = of_torch.PipelineScheduleSingle | of_torch.PipelineScheduleMulti


def schedule_of(name: str, stages: Sequence[PipelineStage], micro_batches: int) -> Schedule:
    """A schedule of torch for a number of micro-batches.

    A step with too few micro-batches for its schedule, such as the last one of an epoch, runs all forward passes before
    all backward passes, with the same result.

    Args:
        name: One of :data:`~advisor.methods.pipeline.schedule_rules.SCHEDULES`.
        stages: The stages of this rank, in order.
        micro_batches: Micro-batches of the step.
    """
    schedule = _schedule_of(name, stages, micro_batches)
    if dist.get_backend(stages[0].group) == "fake":
        schedule._warmup_p2p = _unasked  # type: ignore[assignment, method-assign]
    return schedule


def _schedule_of(name: str, stages: Sequence[PipelineStage], micro_batches: int) -> Schedule:
    size = stages[0].group_size
    fits = not why_not(name, micro_batches=micro_batches, size=size)
    # Each micro-batch's loss has its share as a factor already: torch must not divide by their number.
    if stages_per_rank(name) == 1:
        single = of_torch.Schedule1F1B if name == "1f1b" and fits else of_torch.ScheduleGPipe
        return single(stages[0], micro_batches, loss_fn=_loss, scale_grads=False)
    if name == "zero_bubble":
        return of_torch.ScheduleZBVZeroBubble(list(stages), micro_batches, loss_fn=_loss, scale_grads=False)
    if fits:
        return of_torch.ScheduleInterleaved1F1B(list(stages), micro_batches, loss_fn=_loss, scale_grads=False)
    return of_torch.ScheduleLoopedBFS(list(stages), micro_batches, loss_fn=_loss, scale_grads=False)


class _Sent:
    """Holds what is under way until somebody drops it, as the work of a true process group does.

    Args:
        operations: Sends and receives.
    """

    def __init__(self, operations: Sequence[dist.P2POp]) -> None:
        self._tensors = [operation.tensor for operation in operations]

    def wait(self) -> None:
        """Nothing is under way in truth."""


def holding_what_is_sent() -> contextlib.AbstractContextManager[None]:
    """Context for a step in a trace, whose process group would hold nothing."""
    return replaced(of_torch, _batch_p2p=lambda operations, desc=None: [_Sent(operations)] if operations else [])


def _unasked(stages: Sequence[PipelineStage], *known: bool) -> None:
    """Do as all ranks do that know what they send: in a trace there is none to ask."""
    for stage in stages:
        stage._inference_mode = InferenceMode.STATIC


def _loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """The last stage returns its loss; a view of it could not be detached."""
    return output.sum()
