"""torch's schedules, by our names."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining import schedules as of_torch

from advisor.methods.pipeline.schedule_rules import stages_per_rank, why_not

__all__ = ["Schedule", "schedule_of"]

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


def _loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """The last stage returns its loss; a view of it could not be detached."""
    return output.sum()
